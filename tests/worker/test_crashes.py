"""Processes die: children, whole workers, parents. What they ran runs again, what they held is given back."""

from __future__ import annotations

import signal
import time
from collections import Counter
from uuid import UUID

import pytest

from ropeway.core.states import DeadReason, EventName, State
from tests.worker.facts import Facts
from tests.worker.kit import SHORT_LEASE, StartWorker, is_alive, opened, until


async def test_a_killed_childs_jobs_run_again_and_unstarted_ones_keep_their_attempt(
    url: str, start_worker: StartWorker, facts: Facts, record_property: pytest.RecordProperty
) -> None:
    async with opened(url) as store:
        worker = start_worker("-c", "4", "--lease-seconds", "60")
        ids = await store.add("wait", 4, gate="go")
        await until(lambda: len(facts.notes("started")) == 4, "all four run")
        (child,) = worker.children()
        killed_at = time.monotonic()
        worker.signal(signal.SIGKILL, [child])
        await until(lambda: len(facts.notes("started")) == 8, "all four run again", within=10)
        record_property("seconds until they ran again", round(time.monotonic() - killed_at, 2))
        facts.open_gate("go")
        for job in await store.reach(ids, State.SUCCEEDED):
            assert (job.attempts, job.lease_lost_count) == (2, 1)
            crashed, done = await store.history(job.id)
            assert (crashed.outcome, crashed.signal, crashed.exit_code) == ("crashed", signal.SIGKILL, None)
            assert done.outcome == "succeeded"
        died = await worker.says("child_died", pid=child)
        assert died["running"] == 4
        # A lease of a minute has not passed: the death was noticed, not waited for.
        assert not worker.lines("sweep_complete")


async def test_what_only_waited_in_a_dead_child_is_released(
    url: str, start_worker: StartWorker, facts: Facts
) -> None:
    """A loop that is blocked cannot start what was claimed with the blocker; the death costs that nothing."""
    async with opened(url) as store:
        worker = start_worker("-c", "2", "--lease-seconds", "60")
        before = await store.add("noop", 600)
        (blocker,) = await store.add("blocks_loop", seconds=300)
        behind = await store.add("noop", 600)
        await until(lambda: facts.notes("started"), "the loop is blocked")
        held = [job.id for job in await store.jobs(behind) if job.state is State.RUNNING]
        assert held, "at this rate something is claimed ahead"
        (child,) = worker.children()
        worker.signal(signal.SIGKILL, [child])
        await until(lambda: len(facts.notes("started")) == 2, "the blocker runs again")
        assert await store.story(blocker) == ["enqueued", "started", "reclaimed", "started"]
        # The blocker runs alone now, so the rest goes on beside it.
        for job in await store.reach(behind, State.SUCCEEDED):
            assert (job.attempts, job.lease_lost_count) == (1, 0)
        for id in held:
            assert await store.outcomes(id) == ["released", "succeeded"]
        # Some of these had ended, and nobody could tell the engine before the process died: they run twice.
        for job in await store.reach(before, State.SUCCEEDED):
            assert (job.attempts, job.lease_lost_count) == (1, 0)


async def test_a_killed_worker_loses_its_jobs_when_the_lease_is_over(
    url: str, start_worker: StartWorker, facts: Facts
) -> None:
    async with opened(url) as store:
        first = start_worker("-c", "3", *SHORT_LEASE)
        ids = await store.add("wait", 3, gate="go")
        await until(lambda: len(facts.notes("started")) == 3, "all three run")
        first.signal(signal.SIGKILL, first.everyone())
        await first.exit_code()
        second = start_worker("-c", "3", *SHORT_LEASE)
        await until(lambda: len(facts.notes("started")) == 6, "all three run again")
        facts.open_gate("go")
        for job in await store.reach(ids, State.SUCCEEDED):
            assert [a.outcome for a in await store.history(job.id)] == ["lost", "succeeded"]
            (reclaimed,) = await store.events(job.id, EventName.RECLAIMED)
            assert reclaimed.data["cause"] == "expired"
        assert await second.says("sweep_complete", sweep="rescue")


@pytest.mark.slow
async def test_a_stopped_worker_that_goes_on_is_told_that_its_jobs_are_gone(
    url: str, start_worker: StartWorker, facts: Facts
) -> None:
    async with opened(url) as store:
        first = start_worker("-c", "4", *SHORT_LEASE, "--no-upkeep")
        ids = await store.add("wait", 3, gate="go")
        late = await store.add("wait", 1, gate="late")
        await until(lambda: len(facts.notes("started")) == 4, "all four run")
        stopped = first.everyone()
        pids = {note.pid for note in facts.notes("started")}
        first.stop_between_writes(stopped, url)
        start_worker("-c", "4", *SHORT_LEASE)
        await until(lambda: len(facts.notes("started")) == 8, "the other worker has all of them")
        facts.open_gate("go")
        await store.reach(ids, State.SUCCEEDED)
        first.signal(signal.SIGCONT, stopped)

        # Of the three, the handlers went through the open gate and their outcomes are refused, or they were
        # stopped before that. The fourth still waits, so it is stopped.
        def stopped_or_refused() -> bool:
            told = {note.job_id for note in facts.notes("stopped") if note.pid in pids}
            refused = {line["job_id"] for line in first.lines("lease_lost")}
            return told | refused == {str(id) for id in ids + late}

        await until(stopped_or_refused, "every lost run was stopped or refused")
        assert str(late[0]) in {note.job_id for note in facts.notes("stopped") if note.pid in pids}
        facts.open_gate("late")
        for job in await store.reach(ids + late, State.SUCCEEDED):
            assert len(await store.events(job.id, EventName.COMPLETED)) == 1
            assert job.attempt == 2
        # It works again.
        after = await store.add("noop", 20)
        await store.reach(after, State.SUCCEEDED)


@pytest.mark.slow
async def test_a_child_whose_parent_is_gone_finishes_and_exits(
    url: str, start_worker: StartWorker, facts: Facts
) -> None:
    async with opened(url) as store:
        worker = start_worker("-c", "2", "--drain-seconds", "60")
        (id,) = await store.add("wait", gate="go")
        await until(lambda: facts.notes("started"), "it runs")
        (child,) = worker.children()
        worker.signal(signal.SIGKILL)
        await worker.exit_code()
        await worker.says("child_orphaned")
        (unclaimed,) = await store.add("noop")
        # It beats for itself: three leases later the job is still its own.
        before = await store.job(id)
        assert before.locked_until is not None

        async def beaten() -> bool:
            await store.engine.rescue()
            now = await store.job(id)
            return now.locked_until is not None and (now.locked_until - before.locked_until).total_seconds() > 4

        await until(beaten, "the lease was extended for longer than two leases")
        facts.open_gate("go")
        (job,) = await store.reach([id], State.SUCCEEDED)
        assert job.attempt == 1
        await until(lambda: not is_alive(child), "the child has exited")
        assert (await store.job(unclaimed)).state is State.QUEUED


@pytest.mark.parametrize(
    ("pill", "payload", "end"),
    [
        ("segfaults", {}, (signal.SIGSEGV, None)),
        ("exits_at_once", {"code": 0}, (None, 0)),
        ("exits_at_once", {"code": 7}, (None, 7)),
        ("kills_itself", {}, (signal.SIGKILL, None)),
        ("kills_its_process", {}, (signal.SIGKILL, None)),
    ],
    ids=["segfault", "exit-0", "exit-7", "kill", "kill-process"],
)
async def test_a_pill_is_dead_after_three_deaths(
    sqlite_url: str,
    start_worker: StartWorker,
    facts: Facts,
    pill: str,
    payload: dict[str, int],
    end: tuple[int | None, int | None],
) -> None:
    async with opened(sqlite_url) as store:
        worker = start_worker("-c", "4", "--lease-seconds", "60", url=sqlite_url)
        neighbours = await store.add("wait", 2, gate="go")
        await until(lambda: len(facts.notes("started")) == 2, "the neighbours run")
        (id,) = await store.add(pill, **payload)
        (job,) = await store.reach([id], State.DEAD)
        assert (job.dead_reason, job.lease_lost_count) == (DeadReason.CRASH_LIMIT, 3)
        assert [(a.outcome, a.signal, a.exit_code) for a in await store.history(id)] == [("crashed", *end)] * 3
        assert len([note for note in facts.notes("started") if note.job_id == str(id)]) == 3
        facts.open_gate("go")
        shared = pill != "kills_its_process"
        for job in await store.reach(neighbours, State.SUCCEEDED):
            assert job.lease_lost_count == (1 if shared else 0)
        assert len(worker.lines("child_died")) == (1 if shared else 0), "suspects die alone"
        (dead,) = worker.lines("job_dead")
        assert dead["job_id"] == str(id)


@pytest.mark.slow
async def test_many_pills_among_many_good_jobs(url: str, start_worker: StartWorker) -> None:
    async with opened(url) as store:
        start_worker("-c", "100", "--processes", "2", "--lease-seconds", "60")
        good: list[UUID] = []
        pills: list[UUID] = []
        for _ in range(4):
            good += await store.add("noop", 250)
            pills += await store.add("segfaults") + await store.add("exits_at_once", code=9)
            good += await store.add("noop_thread", 250)
            pills += await store.add("kills_itself") + await store.add("exits_at_once", code=0)
            pills += await store.add("kills_its_process")
        for job in await store.reach(pills, State.DEAD, within=240):
            assert (job.dead_reason, job.lease_lost_count) == (DeadReason.CRASH_LIMIT, 3)
        for job in await store.reach(good, State.SUCCEEDED, within=240):
            assert job.lease_lost_count <= 1


@pytest.mark.slow
async def test_no_innocent_dies_of_several_pills(url: str, start_worker: StartWorker) -> None:
    async with opened(url) as store:
        start_worker("-c", "50", "--lease-seconds", "60")
        good = await store.add("noop", 70)
        pills = [
            *(await store.add("segfaults")),
            *(await store.add("exits_at_once", code=0)),
            *(await store.add("exits_at_once", code=7)),
            *(await store.add("kills_itself")),
            *(await store.add("kills_its_process")),
        ]
        good += await store.add("noop_thread", 65)
        good += await store.add("noop", 65)
        for job in await store.reach(pills, State.DEAD, within=90):
            assert (job.dead_reason, job.lease_lost_count) == (DeadReason.CRASH_LIMIT, 3)
            assert Counter(await store.outcomes(job.id))["crashed"] == 3
        for job in await store.reach(good, State.SUCCEEDED, within=90):
            assert job.lease_lost_count <= 1, "an innocent is lost once at most: then it runs alone"
