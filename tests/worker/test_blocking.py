"""Handlers that do not let go of the loop or the interpreter: their leases are kept, and they are named."""

from __future__ import annotations

import pytest

from ropeway.core.states import DeadReason, State
from tests.worker.facts import Facts
from tests.worker.kit import StartWorker, opened, until

#: Five of the shortest leases there are.
LEASE, FIVE_LEASES = "1", 5


@pytest.mark.parametrize(
    ("kind", "url"),
    [
        pytest.param("blocks_loop", "sqlite", marks=pytest.mark.slow),
        ("blocks_loop", "postgres"),
        pytest.param("spins", "sqlite", marks=pytest.mark.slow),
        pytest.param("holds_interpreter", "sqlite", marks=pytest.mark.slow),
        pytest.param("holds_interpreter", "postgres", marks=pytest.mark.slow),
        pytest.param("holds_interpreter_on_loop", "postgres", marks=pytest.mark.slow),
    ],
    indirect=["url"],
)
async def test_five_leases_are_not_too_long(url: str, start_worker: StartWorker, facts: Facts, kind: str) -> None:
    async with opened(url) as store:
        worker = start_worker("-c", "10", "--lease-seconds", LEASE)
        # Another worker on the same store, which would take them if it could.
        start_worker("-c", "10", "--lease-seconds", LEASE, "-q", "other")
        neighbours = await store.add("wait", 3, gate="go")
        await until(lambda: len(facts.notes("started")) == 3, "the neighbours run")
        ids = await store.add(kind, seconds=FIVE_LEASES)
        facts.open_gate("go")
        for job in await store.reach(ids + neighbours, State.SUCCEEDED):
            assert (job.attempt, job.lease_lost_count) == (1, 0)
        assert not worker.lines("lease_lost", "job_lost", "child_died")
        if kind.startswith("holds_interpreter"):
            # Nothing else of the process moved, its watchdog neither: only its parent can see that.
            told = await worker.says("loop_blocked", logger="ropeway.supervisor")
            assert str(ids[0]) in told["jobs"]
        else:
            told = next(line for line in worker.lines("loop_blocked") if "stack" in line)
            assert (told["job_id"], told["type"]) == (str(ids[0]), kind)
            assert f"in {kind}" in told["stack"]


async def test_handlers_that_end_in_odd_ways_only_fail(url: str, start_worker: StartWorker) -> None:
    async with opened(url) as store:
        worker = start_worker("-c", "20")
        odd = {
            "calls_exit": "SystemExit",
            "calls_exit_in_thread": "SystemExit",
            "interrupts": "KeyboardInterrupt",
            "recurses": "RecursionError",
            "stops_iteration": "StopIteration",
            "stops_iteration_on_loop": "StopIteration",
            "cancels_itself": "CancelledError",
        }
        for kind, error in odd.items():
            (id,) = await store.add(kind, options={"max_attempts": 1})
            (job,) = await store.reach([id], State.DEAD)
            assert (job.dead_reason, job.lease_lost_count) == (DeadReason.MAX_ATTEMPTS, 0)
            assert job.last_error is not None
            assert error in job.last_error.type + job.last_error.message, kind
        await store.reach(await store.add("noop", 20), State.SUCCEEDED)
        assert not worker.lines("child_died", "loop_failed")


async def test_a_process_that_takes_all_memory_ends_alone(url: str, start_worker: StartWorker) -> None:
    """Neighbours of a handler that exhausts its process's memory finish, there or elsewhere."""
    async with opened(url) as store:
        start_worker("-c", "20")
        good = await store.add("noop_thread", 30)
        bad = await store.add("exhausts_memory", options={"max_attempts": 1})
        good += await store.add("noop", 60)
        await store.reach(bad, State.DEAD)
        for job in await store.reach(good, State.SUCCEEDED):
            assert job.lease_lost_count <= 1
