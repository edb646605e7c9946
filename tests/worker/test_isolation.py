"""Processes of their own: what waits for one, what dies in one, and what cannot even begin in one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ropeway.core.states import EventName, State
from ropeway.worker.loading import load_program
from tests.worker import apart
from tests.worker.facts import Facts
from tests.worker.inside import NEVER, processes, stored, working
from tests.worker.kit import StartWorker, Store, is_alive, opened, until


@asynccontextmanager
async def apart_worker(**options: float) -> AsyncIterator[Store]:
    """A worker with one kept process, on jobs in memory."""
    async with stored() as store, working(apart.app, store.engine, processes(), poll_seconds=0.05, **options):
        yield store


async def test_waiting_for_a_process_is_no_part_of_the_timeout(facts: Facts) -> None:
    folder = str(facts.folder)
    async with apart_worker() as store:
        (first,) = await store.add("waits_apart", folder=folder, gate="go")
        await until(lambda: facts.notes("started"), "the only process is taken")
        late = {"timeout": 2.0, "max_attempts": 1}
        (waiting,) = await store.add("tells_pid", folder=folder, options=late)
        # Its own timeout is over a little later than that of the one that waits.
        (clock,) = await store.add("hangs", options=late)
        (timed_out,) = await store.reach([clock], State.DEAD)
        assert timed_out.last_error is not None
        assert timed_out.last_error.type == "TimeoutError"
        facts.open_gate("go")
        (job, _) = await store.reach([waiting, first], State.SUCCEEDED)
        assert (job.attempt, job.lease_lost_count) == (1, 0)


async def test_jobs_that_wait_for_a_process_at_a_drain_are_released(facts: Facts) -> None:
    """They have not begun, and do not begin while the worker leaves."""
    folder = str(facts.folder)
    options = {"poll_seconds": 0.05, "lease_seconds": NEVER, "concurrency": 20}
    async with stored() as store:
        async with working(apart.app, store.engine, processes(), **options) as inside:
            (runs,) = await store.add("sleeps_apart", folder=folder, seconds=NEVER)
            await until(lambda: facts.notes("started"), "the only process is taken")
            waiting = await store.add("tells_pid", 15, folder=folder)
            await store.reach(waiting, State.RUNNING)
            await asyncio.wait_for(inside.stop(0.0), 10)
        for job in await store.jobs([*waiting, runs]):
            assert (job.state, job.attempts, job.lease_lost_count) == (State.QUEUED, 0, 0)
            assert len(await store.events(job.id, EventName.RELEASED)) == 1
        assert [note.job_id for note in facts.notes("started")] == [str(runs)]


async def test_a_process_that_died_while_idle_is_not_handed_out(facts: Facts) -> None:
    folder = str(facts.folder)
    async with apart_worker() as store:
        (first,) = await store.reach(await store.add("tells_pid", folder=folder), State.SUCCEEDED)
        (second,) = await store.reach(await store.add("tells_pid", folder=folder), State.SUCCEEDED)
        assert first.result is not None
        assert first.result == second.result, "it is kept"
        pid = int(first.result)
        os.kill(pid, signal.SIGKILL)
        # As a zombie it may still have a thread that holds its end of the line.
        await until(lambda: not Path(f"/proc/{pid}").exists(), "nothing is left of it")
        (job,) = await store.reach(await store.add("tells_pid", folder=folder), State.SUCCEEDED)
        assert (job.attempt, job.attempts, job.lease_lost_count) == (1, 1, 0)
        assert job.result is not None
        assert int(job.result) != pid


FAILING_APP = """
import os
from contextlib import asynccontextmanager

from ropeway import Ropeway

WORKER = {worker}
app = Ropeway("memory://")


@app.lifespan
@asynccontextmanager
async def lifespan():
    if os.getpid() != WORKER:
        raise ConnectionError("the cache is away")
    yield


@app.task(process=True)
def heavy() -> None: ...
"""


@pytest.fixture
def failing_app(tmp_path: Path) -> Path:
    """An app whose resources cannot be had in a process of its own."""
    file = tmp_path / f"failing_{tmp_path.name}.py"
    file.write_text(FAILING_APP.format(worker=os.getpid()))
    return file


async def test_a_lifespan_that_fails_apart_is_a_failed_attempt(failing_app: Path) -> None:
    """With its retry policy's patience; not a crash, however many jobs want a process at once."""
    made = load_program(str(failing_app))
    async with stored() as store:
        kept = processes(1, str(failing_app))
        worker = working(_App(made), store.engine, kept, poll_seconds=0.05)  # type: ignore[arg-type]
        async with worker:
            ids = await store.add("heavy", 4)
            await until(lambda: worker.worker.runner.finished == 4, "all have run")
            await worker.worker.settled()
        for job in await store.jobs(ids):
            assert (job.attempts, job.lease_lost_count) == (1, 0)
            assert job.last_error is not None
            assert job.last_error.type == "ConnectionError"
            assert "the cache is away" in job.last_error.message
            assert len(await store.events(job.id, EventName.FAILED)) == 1


class _App:
    """Only its program."""

    def __init__(self, program: object) -> None:
        self.program = program


def everyone(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    for one in found:
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            found += [int(child) for child in children.read_text().split()]
    return found


async def test_a_sigterm_to_every_process_lets_isolated_jobs_finish(
    sqlite_url: str, start_worker: StartWorker, facts: Facts
) -> None:
    """As a service manager sends it to a whole control group."""
    async with opened(sqlite_url) as store:
        worker = start_worker("--cpu-processes", "2", "--drain-seconds", "30", url=sqlite_url)
        ids = await store.add("wait_process", 2, gate="go")
        await until(lambda: len(facts.notes("started")) == 2, "both run")
        pids = everyone(worker.process.pid)
        assert {note.pid for note in facts.notes("started")} <= set(pids)
        worker.signal(signal.SIGTERM, pids)
        await worker.says("worker_stopping")
        facts.open_gate("go")
        assert await worker.exit_code() == 0
        for job in await store.jobs(ids):
            assert (job.state, job.attempt, job.lease_lost_count) == (State.SUCCEEDED, 1, 0)
        await until(lambda: not any(is_alive(pid) for pid in pids), "nobody is left")
