"""Timeouts and cancels: who is late or unwanted is stopped, who only ran beside it is not harmed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ropeway.core.states import DeadReason, EventName, State
from tests.worker.facts import Facts
from tests.worker.kit import StartWorker, is_alive, opened, until

ONCE = {"timeout": 1.0, "max_attempts": 1}


async def test_a_handler_is_stopped_when_its_timeout_is_over(
    url: str, start_worker: StartWorker, facts: Facts
) -> None:
    async with opened(url) as store:
        worker = start_worker("-c", "10")
        others = await store.add("wait", 2, gate="go")
        kinds = ("wait", "wait_thread", "wait_process")
        late = [id for kind in kinds for id in await store.add(kind, gate="never", options=ONCE)]
        for job in await store.reach(late, State.DEAD):
            assert (job.dead_reason, job.lease_lost_count) == (DeadReason.MAX_ATTEMPTS, 0)
            assert job.last_error is not None
            assert job.last_error.type == "TimeoutError"
            assert "1 s" in job.last_error.message
        assert {note.job_id for note in facts.notes("stopped")} == {str(id) for id in late}
        facts.open_gate("go")
        for job in await store.reach(others, State.SUCCEEDED):
            assert job.attempt == 1
        assert not worker.lines("child_died")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sleeps_in_thread", "blocks_loop", "holds_interpreter", "clings"])
async def test_only_a_job_that_does_not_stop_is_lost_with_its_process(
    sqlite_url: str, postgres_url: str, start_worker: StartWorker, facts: Facts, kind: str
) -> None:
    url = sqlite_url if kind in ("sleeps_in_thread", "holds_interpreter") else postgres_url
    async with opened(url) as store:
        worker = start_worker("-c", "10", "--lease-seconds", "60", url=url)
        neighbours = await store.add("wait", 3, gate="go")
        await until(lambda: len(facts.notes("started")) == 3, "the neighbours run")
        payload = {"gate": "never"} if kind == "clings" else {"seconds": 60}
        (late,) = await store.add(kind, options=ONCE, **payload)
        (job,) = await store.reach([late], State.DEAD)
        assert job.dead_reason is DeadReason.MAX_ATTEMPTS
        (attempt,) = await store.history(late)
        assert attempt.outcome == "timed out"
        await worker.says("job_timeout", job_id=str(late))
        facts.open_gate("go")
        for other in await store.reach(neighbours, State.SUCCEEDED):
            assert (other.attempts, other.lease_lost_count) == (1, 0)
            assert await store.outcomes(other.id) == ["released", "succeeded"]


async def test_a_late_process_is_killed_alone(url: str, start_worker: StartWorker, facts: Facts) -> None:
    async with opened(url) as store:
        worker = start_worker("-c", "10")
        neighbours = await store.add("wait", 3, gate="go")
        (late,) = await store.add("sleeps_in_process", options=ONCE, seconds=60)
        await store.reach([late], State.DEAD)
        (attempt,) = await store.history(late)
        assert attempt.outcome == "timed out"
        facts.open_gate("go")
        for other in await store.reach(neighbours, State.SUCCEEDED):
            assert other.attempt == 1
        assert not worker.lines("child_died")
        # The place of the killed process is taken by another.
        await store.reach(await store.add("noop_process", 5), State.SUCCEEDED)


async def test_a_cancelled_job_is_stopped_within_a_heartbeat(
    url: str, start_worker: StartWorker, facts: Facts
) -> None:
    async with opened(url) as store:
        worker = start_worker("-c", "10", "--lease-seconds", "3")
        ids = [
            id for kind in ("wait", "wait_thread", "wait_process") for id in await store.add(kind, gate="never")
        ]
        (other,) = await store.add("wait", gate="go")
        await until(lambda: len(facts.notes("started")) == 4, "all run")
        await store.engine.cancel(ids)
        cancelled_at = await store.engine.now()
        await until(lambda: len(facts.notes("stopped")) == 3, "all three were stopped", within=20)
        # A heartbeat is a third of the lease; the bound is loose because the machine may be busy.
        assert await store.engine.now() - cancelled_at < timedelta(seconds=10)
        for id in ids:
            await worker.says("job_cancelled", job_id=str(id))
            assert (await store.job(id)).state is State.CANCELLED
            assert await store.story(id) == ["enqueued", "started", "cancelled"]
        facts.open_gate("go")
        await store.reach([other], State.SUCCEEDED)
        assert {note.job_id for note in facts.notes("stopped")} == {str(id) for id in ids}


async def test_a_cancelled_suspect_is_stopped_too(
    sqlite_url: str, start_worker: StartWorker, facts: Facts
) -> None:
    """It runs in a process of its own; one that does not listen is killed, and nothing is written for it."""
    async with opened(sqlite_url) as store:
        worker = start_worker("-c", "4", url=sqlite_url)
        (id,) = await store.add("sleeps_in_process", seconds=600)
        await until(lambda: facts.notes("started"), "it runs")
        (pid,) = {note.pid for note in facts.notes("started")}
        await store.engine.cancel([id])
        await worker.says("job_cancelled", job_id=str(id))
        assert [event.event for event in await store.events(id)][-1] is EventName.CANCELLED
        await until(lambda: not is_alive(pid), "its process is gone")
