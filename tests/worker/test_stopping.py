"""Signals: finish, stop now, be quiet, tell what runs. No attempt is wasted by any of them."""

from __future__ import annotations

import signal

from ropeway.core.states import State
from tests.worker.facts import Facts
from tests.worker.kit import StartWorker, opened, until


async def test_sigterm_gives_back_what_does_not_finish_in_time(
    url: str, start_worker: StartWorker, facts: Facts
) -> None:
    async with opened(url) as store:
        worker = start_worker("-c", "60", "--processes", "2", "--drain-seconds", "2")
        waiting = await store.add("wait", 60, gate="never") + await store.add("wait_thread", 20, gate="never")
        finishing = await store.add("wait", 20, gate="go")
        await until(lambda: len(facts.notes("started")) == 100, "100 jobs run")
        worker.signal(signal.SIGTERM)
        await worker.says("worker_stopping", signal="SIGTERM")
        facts.open_gate("go")
        await store.reach(finishing, State.SUCCEEDED)
        # By now every child has been told.
        unclaimed = await store.add("noop", 5)
        assert await worker.exit_code(within=30) == 0
        for job in await store.jobs(waiting):
            assert (job.state, job.attempts, job.lease_lost_count) == (State.QUEUED, 0, 0)
            assert await store.outcomes(job.id) == ["released"]
        assert await store.states(unclaimed) == {State.QUEUED: 5}
        assert not worker.lines("engine_away", "loop_failed", "child_died")
        assert [note.word for note in facts.notes("lifespan-left")] == ["lifespan-left"] * 2
        assert await store.engine.workers() == []


async def test_sigterm_is_in_time_whatever_handlers_do(url: str, start_worker: StartWorker, facts: Facts) -> None:
    """A thread in C, a coroutine that does not listen, a process: none keeps the worker, none uses an attempt."""
    async with opened(url) as store:
        worker = start_worker("-c", "10", "--drain-seconds", "1")
        ids = [
            *(await store.add("sleeps_in_thread", seconds=600)),
            *(await store.add("clings", gate="never")),
            *(await store.add("sleeps_in_process", seconds=600)),
            *(await store.add("wait_process", gate="never")),
        ]
        await until(lambda: len(facts.notes("started")) == 4, "all run")
        worker.signal(signal.SIGTERM)
        assert await worker.exit_code(within=30) == 0
        for job in await store.jobs(ids):
            assert (job.state, job.attempts, job.lease_lost_count) == (State.QUEUED, 0, 0), job.type
        await until(lambda: not worker.children(), "no process is left")
        assert not worker.lines("engine_away", "loop_failed", "child_died", "job_lost")


async def test_a_blocked_loop_does_not_keep_the_worker(url: str, start_worker: StartWorker, facts: Facts) -> None:
    async with opened(url) as store:
        worker = start_worker("-c", "10", "--drain-seconds", "1")
        (id,) = await store.add("blocks_loop", seconds=600)
        await until(lambda: facts.notes("started"), "it blocks")
        worker.signal(signal.SIGTERM)
        assert await worker.exit_code(within=30) == 0
        job = await store.job(id)
        assert (job.state, job.attempts, job.lease_lost_count) == (State.QUEUED, 0, 0)


async def test_a_second_signal_stops_now(url: str, start_worker: StartWorker, facts: Facts) -> None:
    async with opened(url) as store:
        worker = start_worker("-c", "10", "--drain-seconds", "600")
        ids = await store.add("wait", 5, gate="never") + await store.add("sleeps_in_thread", 2, seconds=600)
        await until(lambda: len(facts.notes("started")) == 7, "all run")
        worker.signal(signal.SIGINT)
        await worker.says("worker_stopping", signal="SIGINT")
        worker.signal(signal.SIGINT)
        assert await worker.exit_code(within=30) == 0
        for job in await store.jobs(ids):
            assert (job.state, job.attempts, job.lease_lost_count) == (State.QUEUED, 0, 0)


async def test_sigtstp_is_quiet_until_sigcont(url: str, start_worker: StartWorker, facts: Facts) -> None:
    async with opened(url) as store:
        worker = start_worker("-c", "10")
        (running,) = await store.add("wait", gate="go")
        await until(lambda: facts.notes("started"), "it runs")
        worker.signal(signal.SIGTSTP)
        await worker.says("worker_quiet")

        # The child is told by a message; whatever it claimed before that has come to its end by now.
        async def unclaimed() -> bool:
            (id,) = await store.add("noop")
            facts.note("probed", id)
            return (await store.job(id)).state is State.QUEUED

        await until(unclaimed, "a new job is left alone")
        facts.open_gate("go")
        await store.reach([running], State.SUCCEEDED)
        left = await store.add("noop", 3)
        assert await store.states(left) == {State.QUEUED: 3}
        worker.signal(signal.SIGCONT)
        await worker.says("worker_resumed")
        await store.reach(left, State.SUCCEEDED)


async def test_sigusr1_tells_what_runs(url: str, start_worker: StartWorker, facts: Facts) -> None:
    async with opened(url) as store:
        worker = start_worker("-c", "10")
        ids = await store.add("wait", gate="go") + await store.add("wait_thread", gate="go")
        await until(lambda: len(facts.notes("started")) == 2, "both run")
        await worker.says("worker_started")
        worker.signal(signal.SIGUSR1)
        for id, kind in zip(ids, ("wait", "wait_thread"), strict=True):
            await worker.says("running_now", job_id=str(id), type=kind)
        # The stacks of every thread, that of the sync handler too.
        await until(lambda: "_wait_here" in worker.other_output(), "the handler's stack")
        facts.open_gate("go")
        await store.reach(ids, State.SUCCEEDED)


async def test_sigusr1_does_no_harm_to_threads_that_run(
    sqlite_url: str, start_worker: StartWorker, facts: Facts
) -> None:
    async with opened(sqlite_url) as store:
        worker = start_worker("-c", "10", url=sqlite_url)
        ids = await store.add("busy_thread", 3, gate="go")
        await until(lambda: len(facts.notes("started")) == 3, "all run")

        def told() -> int:
            return sum("buffered" in line for line in worker.lines("running_now"))

        for _ in range(30):
            before = told()
            worker.signal(signal.SIGUSR1, worker.children())
            await until(lambda before=before: told() > before or worker.lines("child_died"), "it tells")
        facts.open_gate("go")
        await store.reach(ids, State.SUCCEEDED)
        assert not worker.lines("child_died")


async def test_sigusr1_while_a_child_starts_does_not_end_it(
    sqlite_url: str, start_worker: StartWorker, facts: Facts
) -> None:
    async with opened(sqlite_url) as store:
        worker = start_worker("-c", "10", url=sqlite_url)
        await worker.says("child_started")
        worker.signal(signal.SIGUSR1)
        await store.reach(await store.add("noop"), State.SUCCEEDED)
        assert not worker.lines("child_died")
        assert worker.children() == worker.started_children()


async def test_a_child_that_is_told_to_stop_is_replaced(url: str, start_worker: StartWorker, facts: Facts) -> None:
    async with opened(url) as store:
        worker = start_worker("-c", "10", "--drain-seconds", "1")
        (stuck,) = await store.add("sleeps_in_thread", seconds=600)
        await until(lambda: facts.notes("started"), "it runs")
        (child,) = worker.children()
        worker.signal(signal.SIGTERM, [child])
        await until(lambda: len(facts.notes("started")) == 2, "it runs again, in another child")
        assert await store.outcomes(stuck) == ["released", None]
        await store.reach(await store.add("noop"), State.SUCCEEDED)
        assert not worker.lines("child_died")


async def test_sigterm_as_soon_as_something_runs_leaves_nothing_behind(
    postgres_url: str, start_worker: StartWorker, facts: Facts
) -> None:
    async with opened(postgres_url) as store:
        ids = await store.add("wait", 3, gate="never")
        worker = start_worker("-c", "3", "--drain-seconds", "1", "--lease-seconds", "600", url=postgres_url)
        await until(lambda: facts.notes("started"), "they run")
        worker.signal(signal.SIGTERM)
        assert await worker.exit_code(within=30) == 0
        for job in await store.jobs(ids):
            assert (job.state, job.attempts, job.lease_lost_count) == (State.QUEUED, 0, 0)
