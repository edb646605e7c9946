"""Eight processes on one file: every job is finished once, though one of them is killed in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from ropeway.core.events import Event
from ropeway.core.job import NewJob
from ropeway.core.query import JobFilter
from ropeway.core.states import EventName, State
from ropeway.engines.sqlite import SqliteEngine

JOBS = 20_000
PROCESSES = 8

#: Leases and finishes until its standard input is closed. With "hold" it keeps its first jobs, and says so.
WORKER = """
import asyncio, sys
from ropeway.core.outcome import Done
from ropeway.engines.protocol import Settlement, WorkerRef
from ropeway.engines.sqlite import SqliteEngine
from ropeway.runtime import ids

async def main(path, name, hold):
    stop = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    me = WorkerRef(name, ids.token())
    seconds = 2 if hold else 20
    async with SqliteEngine(path) as engine:
        signals = await engine.subscribe(["default"])
        if hold:
            batch = await engine.lease(["default"], 50, me, lease_seconds=seconds)
            print("holds", len(batch.leases), flush=True)
        while not stop.done():
            batch = await engine.lease(["default"], 50, me, lease_seconds=seconds)
            if batch.leases:
                await engine.settle([Settlement(leased.lease, Done()) for leased in batch.leases])
            else:
                await signals.wait(0.2)

asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3] == "hold"))
"""


@contextlib.contextmanager
def workers(file: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes; the first holds on to some jobs."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(file), f"w{number}", "" if number else "hold"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


async def until(fact: Callable[[], Awaitable[bool]], what: str, within: float = 40.0) -> None:
    """Ask until it is so; fail after a time."""
    deadline = time.monotonic() + within
    while not await fact():
        assert time.monotonic() < deadline, f"not true within {within:g} s: {what}"
        await asyncio.sleep(0.05)


async def whole_log(engine: SqliteEngine) -> list[Event]:
    events: list[Event] = []
    position = None
    while True:
        page = await engine.tail(position, limit=5_000)
        events += page.events
        position = page.position
        if not page.events:
            return events


@pytest.mark.limit(60)
async def test_each_of_20000_jobs_is_finished_once_by_eight_processes(tmp_path: Path) -> None:
    async with SqliteEngine(tmp_path / "ropeway.db") as engine:
        for _ in range(JOBS // 5_000):
            await engine.enqueue([NewJob("task", b'{"n":1}')] * 5_000)

        async def finished(number: int) -> bool:
            return (await engine.count(JobFilter(states=frozenset({State.SUCCEEDED})), cap=JOBS)).number >= number

        with workers(tmp_path / "ropeway.db") as processes:
            victim = processes[0]
            assert victim.stdout is not None
            assert await asyncio.to_thread(victim.stdout.readline) == "holds 50\n"
            await until(lambda: finished(JOBS // 10), "a tenth is finished")
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            rescued: list[object] = []

            async def all_finished() -> bool:
                rescued.extend(await engine.rescue())
                return await finished(JOBS)

            await until(all_finished, "all are finished")
            for process in processes[1:]:
                assert process.stdin is not None
                process.stdin.close()
            assert {process.wait(timeout=20) for process in processes[1:]} == {0}

        log = await whole_log(engine)
        completed = Counter(event.job_id for event in log if event.event is EventName.COMPLETED)
        reclaimed = Counter(event.job_id for event in log if event.event is EventName.RECLAIMED)
        started = Counter(event.job_id for event in log if event.event is EventName.STARTED)
        assert len(completed) == JOBS
        assert set(completed.values()) == {1}
        assert 50 <= reclaimed.total() == len(rescued)
        assert started == completed + reclaimed, "every second start has a recorded cause"
        victims = {event.job_id for event in log if event.event is EventName.RECLAIMED}
        assert {e.worker_id for e in log if e.event is EventName.RECLAIMED} == {"w0"}
        assert all(e.worker_id != "w0" for e in log if e.event is EventName.COMPLETED and e.job_id in victims)
        assert len({event.worker_id for event in log if event.event is EventName.COMPLETED}) >= PROCESSES - 1
