"""A parent and its children when something goes wrong with either: at the start, at the end, in between."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ropeway.core.states import State
from ropeway.engines.open import engine_for
from ropeway.engines.protocol import Engine
from ropeway.runtime.backoff import Backoff
from ropeway.settings import Settings
from ropeway.worker import nursery, supervisor
from ropeway.worker.family import Child
from ropeway.worker.options import WorkerOptions
from ropeway.worker.supervisor import Supervisor
from tests.worker.facts import VARIABLE, Facts
from tests.worker.kit import ROOT, StartWorker, is_alive, opened, until

#: Real processes, seconds each: other files of this room show the main things sooner.
pytestmark = pytest.mark.slow

NOBODY_LISTENS = "postgresql://nobody@127.0.0.1:1/nothing"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, facts: Facts) -> None:
    """For children that the test's own process starts."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "src")]))
    monkeypatch.setenv(VARIABLE, str(facts.folder))


@asynccontextmanager
async def supervised(
    url: str, target: str = str(ROOT / "tests/worker/tasks.py"), **options: Any
) -> AsyncIterator[tuple[Supervisor, asyncio.Task[int]]]:
    """A supervisor in the test's own process, and its run."""
    flags = {"url": url, "worker_http_port": -1, "drain_seconds": 0.5, "lease_seconds": 600.0, "concurrency": 5}
    parent = Supervisor(target, WorkerOptions(), flags=flags, **options)
    running = asyncio.create_task(parent.run())
    try:
        yield parent, running
    finally:
        parent.stop()
        with contextlib.suppress(BaseException):
            await asyncio.wait_for(running, 20)


def ready(parent: Supervisor) -> list[Child]:
    return [child for child in parent._nursery.children.values() if child.ready and child.alive]


# ── starting ──


@pytest.mark.usefixtures("environment")
async def test_a_start_that_the_system_refuses_is_tried_again(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nursery, "Backoff", lambda *_: Backoff(0.01, 0.01))
    refusals = 2
    start = Child.start

    async def sometimes(*args: Any) -> Child:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return await start(*args)

    monkeypatch.setattr(Child, "start", sometimes)
    async with supervised(sqlite_url) as (parent, running):
        await until(lambda: running.done() or ready(parent), "the first child is ready")
        assert not running.done()
        refusals = 2
        (first,) = ready(parent)
        first.kill()
        await until(lambda: running.done() or (ready(parent) and first not in ready(parent)), "another is ready")
        assert refusals == 0
        parent.stop()
        assert await asyncio.wait_for(running, 20) == 0


@pytest.mark.usefixtures("environment")
async def test_no_child_claims_before_its_parent_beats(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, facts: Facts
) -> None:
    """A lease that nobody extends would end while its job runs."""
    connected = asyncio.Event()

    def slow_to_open(settings: Settings) -> Engine:
        engine = engine_for(settings)
        at_once = engine.open

        async def when_told() -> None:
            await connected.wait()
            await at_once()

        monkeypatch.setattr(engine, "open", when_told)
        return engine

    monkeypatch.setattr(supervisor, "engine_for", slow_to_open)
    async with opened(sqlite_url) as store, supervised(sqlite_url) as (parent, running):
        (id,) = await store.add("noop")
        await until(lambda: running.done() or bool(facts.notes("lifespan-entered")), "the child has all it needs")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(until(lambda: bool(ready(parent)), "it claims"), 0.5)
        assert (await store.job(id)).state is State.QUEUED
        connected.set()
        await store.reach([id], State.SUCCEEDED)


BREAKABLE_APP = """
from pathlib import Path

from ropeway import Ropeway

if Path(__file__).with_suffix(".broken").exists():
    raise RuntimeError("half deployed")

app = Ropeway()


@app.task
async def quick() -> None: ...
"""


@pytest.mark.usefixtures("environment")
async def test_a_replacement_that_refuses_does_not_end_a_worker_that_works(
    sqlite_url: str, tmp_path: Path
) -> None:
    app, broken = tmp_path / "breakable.py", tmp_path / "breakable.broken"
    app.write_text(BREAKABLE_APP)
    async with opened(sqlite_url) as store, supervised(sqlite_url, str(app), processes=2) as (parent, running):
        await until(lambda: running.done() or len(ready(parent)) == 2, "both are ready")
        broken.touch()
        ready(parent)[0].kill()
        await until(lambda: running.done() or parent._nursery.failed_starts >= 1, "its replacement refuses")
        assert not running.done()
        await store.reach(await store.add("quick", 3), State.SUCCEEDED)
        broken.unlink()
        await until(lambda: running.done() or len(ready(parent)) == 2, "a later one works")
        parent.stop()
        assert await asyncio.wait_for(running, 20) == 0


async def test_a_worker_without_an_engine_stops_at_once(start_worker: StartWorker) -> None:
    worker = start_worker("--drain-seconds", "20", url=NOBODY_LISTENS)
    await worker.says("engine_away", logger="ropeway.worker")
    await worker.says("engine_away", logger="ropeway.supervisor")
    children = worker.children()
    worker.signal(signal.SIGTERM)
    assert await worker.exit_code(within=6) == 0
    assert not any(is_alive(pid) for pid in children)
    assert not worker.lines("child_died", "loop_failed")


async def test_a_worker_whose_engine_does_not_answer_stops_at_once(start_worker: StartWorker) -> None:
    """It takes the connection and says nothing: as behind a firewall, or a pooler that is stuck."""
    connections: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: connections.append(writer), "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        worker = start_worker("--drain-seconds", "20", url=f"postgresql://nobody@127.0.0.1:{port}/nothing")
        await until(lambda: len(connections) >= 2, "parent and child are waiting for an answer")
        worker.signal(signal.SIGTERM)
        assert await worker.exit_code(within=4) == 0
    finally:
        for connection in connections:
            connection.close()
        server.close()


async def test_a_child_without_an_engine_does_not_outlive_its_parent(start_worker: StartWorker) -> None:
    worker = start_worker("--drain-seconds", "20", url=NOBODY_LISTENS)
    await worker.says("engine_away", logger="ropeway.worker")
    (child,) = worker.children()
    worker.signal(signal.SIGKILL)
    await until(lambda: not is_alive(child), "the child has ended too", within=6)


# ── an error of the parent's own ──


@pytest.mark.usefixtures("environment")
async def test_an_error_of_the_parent_gives_back_what_its_children_hold(
    sqlite_url: str, facts: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_house = Supervisor._open_house

    async def breaks(*arguments: Any) -> None:
        await open_house(*arguments)
        await until(lambda: len(facts.notes("started")) == 2, "the child has claimed")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Supervisor, "_open_house", breaks)
    async with opened(sqlite_url) as store:
        ids = await store.add("wait", gate="never") + await store.add("clings", gate="never")
        async with supervised(sqlite_url) as (_, running):
            await asyncio.wait([running], timeout=20)
            assert isinstance(running.exception(), OSError)
        for job in await store.jobs(ids):
            assert (job.state, job.attempts, job.lease_lost_count) == (State.QUEUED, 0, 0)


async def test_an_address_that_cannot_be_bound_is_no_success(sqlite_url: str, start_worker: StartWorker) -> None:
    async with opened(sqlite_url) as store:
        (id,) = await store.add("wait", gate="never")
        worker = start_worker(
            "--port", "9555", "--lease-seconds", "600", "--drain-seconds", "0.5",
            env={"ROPEWAY_HOST": "203.0.113.9"}, url=sqlite_url,
        )  # fmt: skip
        assert await worker.exit_code(within=20) != 0
        assert "Traceback" not in worker.other_output()
        job = await store.job(id)
        assert (job.state, job.attempts, job.lease_lost_count) == (State.QUEUED, 0, 0)


# ── leaving ──


async def test_a_child_that_recycles_hurries_when_the_worker_stops(
    sqlite_url: str, start_worker: StartWorker, facts: Facts
) -> None:
    """It was told to take its time before; the handler hears that the time is over now."""
    async with opened(sqlite_url) as store:
        worker = start_worker("-c", "2", "--max-jobs", "1", "--drain-seconds", "0.5", url=sqlite_url)
        (long,) = await store.add("wait", gate="never")
        await until(lambda: facts.notes("started"), "it runs")
        await store.reach(await store.add("noop"), State.SUCCEEDED)
        await worker.says("child_recycled")
        worker.signal(signal.SIGTERM)
        assert await worker.exit_code(within=10) == 0
        assert [note.job_id for note in facts.notes("stopped")] == [str(long)]
        job = await store.job(long)
        assert (job.state, job.attempts, job.lease_lost_count) == (State.QUEUED, 0, 0)
        await worker.says("job_released", job_id=str(long))


async def test_an_orphan_gives_back_what_would_not_stop(
    sqlite_url: str, start_worker: StartWorker, facts: Facts
) -> None:
    async with opened(sqlite_url) as store:
        worker = start_worker("--lease-seconds", "600", "--drain-seconds", "0.5", url=sqlite_url)
        (id,) = await store.add("clings", gate="never")
        await until(lambda: facts.notes("started"), "it runs")
        (child,) = worker.children()
        worker.signal(signal.SIGKILL)
        await until(lambda: not is_alive(child), "the orphan has ended", within=10)
        job = await store.job(id)
        assert (job.state, job.attempts, job.lease_lost_count) == (State.QUEUED, 0, 0)


STUCK_APP = """
import time
from contextlib import asynccontextmanager
from pathlib import Path

from ropeway import Ropeway

app = Ropeway()


@app.task
def stuck() -> None:
    Path(__file__).with_suffix(".started").touch()
    time.sleep(600)


@app.lifespan
@asynccontextmanager
async def lifespan():
    await stuck.aenqueue()
    yield
"""


@asynccontextmanager
async def a_worker(shell: str, url: str, facts: Facts) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker as a shell starts it; ended at the end."""
    process = await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        f"exec {shell}",
        cwd=ROOT,
        start_new_session=True,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
            "ROPEWAY_URL": url,
            VARIABLE: str(facts.folder),
        },
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_stuck_thread_does_not_keep_a_worker_in_memory(tmp_path: Path, facts: Facts) -> None:
    app = tmp_path / "stuck.py"
    app.write_text(STUCK_APP)
    command = f"{sys.executable} -m ropeway worker {app} --port -1 --drain-seconds 0.2"
    async with a_worker(command, "memory://", facts) as worker:
        await until(app.with_suffix(".started").exists, "the handler is stuck")
        worker.terminate()
        assert await asyncio.wait_for(worker.wait(), 10) == 0


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
async def test_closed_streams_stop_no_worker(sqlite_url: str, facts: Facts, closed: str) -> None:
    command = f"{sys.executable} -m ropeway worker tests/worker/tasks.py --port -1 --drain-seconds 5 {closed}"
    async with opened(sqlite_url) as store, a_worker(command, sqlite_url, facts) as worker:
        ids = await store.add("noop", 2) + await store.add("noop_process")
        await store.reach(ids, State.SUCCEEDED, within=20)
        worker.terminate()
        assert await asyncio.wait_for(worker.wait(), 10) == 0
