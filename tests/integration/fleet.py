"""Worker processes of an engine, for tests that kill some of them. Any engine that a URL names."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

from ropeway.core.events import Event
from ropeway.core.states import EventName
from ropeway.engines.protocol import Engine

#: Leases and finishes until its standard input is closed. With "hold" it keeps its first jobs, and says so.
WORKER = """
import asyncio, sys
from ropeway.core.outcome import Done
from ropeway.engines.open import engine_for
from ropeway.engines.protocol import Settlement, WorkerRef
from ropeway.runtime import ids
from ropeway.settings import Settings

async def main(url, name, batch_size, hold):
    stop = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    me = WorkerRef(name, ids.token())
    seconds = 2 if hold else 30
    async with engine_for(Settings(url=url)) as engine:
        signals = await engine.subscribe(["default"])
        if hold:
            batch = await engine.lease(["default"], 50, me, lease_seconds=seconds)
            print("holds", len(batch.leases), flush=True)
        while not stop.done():
            batch = await engine.lease(["default"], batch_size, me, lease_seconds=seconds)
            if batch.leases:
                await engine.settle([Settlement(leased.lease, Done()) for leased in batch.leases])
            else:
                await signals.wait(0.2)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "hold"))
"""


@contextlib.contextmanager
def workers(url: str, number: int, *, batch: int = 50) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes, named w0, w1 ...; the first holds on to 50 jobs and prints "holds 50"."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, url, f"w{each}", str(batch), "" if each else "hold"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for each in range(number)
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


def ended_well(processes: list[subprocess.Popen[str]]) -> bool:
    """Tell them to stop; whether all of them did, without an error."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    return {process.wait(timeout=20) for process in processes} == {0}


async def whole_log(engine: Engine) -> list[Event]:
    events: list[Event] = []
    position = None
    while True:
        page = await engine.tail(position, limit=5_000)
        events += page.events
        position = page.position
        if not page.events:
            return events


def check_story(log: list[Event], jobs: int, victim: str) -> None:
    """Each job was completed once; each further start has a loss as its cause; the losses were the victim's."""

    def of(name: EventName) -> Counter[object]:
        return Counter(event.job_id for event in log if event.event is name)

    completed, reclaimed = of(EventName.COMPLETED), of(EventName.RECLAIMED)
    assert len(completed) == jobs
    assert set(completed.values()) == {1}
    assert of(EventName.STARTED) == completed + reclaimed, "a start without a recorded cause"
    assert {event.worker_id for event in log if event.event is EventName.RECLAIMED} == {victim}
    by_victim = {event.job_id for event in log if event.event is EventName.COMPLETED and event.worker_id == victim}
    assert not by_victim & set(reclaimed)
    seqs: dict[object, int] = {}
    for event in log:
        assert event.seq == seqs.get(event.job_id, 0) + 1, f"{event.job_id} out of order"
        seqs[event.job_id] = event.seq
