"""The whole worker, as it is run in production: `ropeway worker` with real processes, events on, logs on."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

import msgspec

from bench.figures import Figure, Report, say
from bench.processes import cpu_seconds, rss_mib
from bench.stores import Store, Stores
from bench.worker_tasks import app, arrive
from ropeway.core.job import Job, NewJob
from ropeway.core.query import JobFilter
from ropeway.core.states import LIVE_STATES, State
from ropeway.engines.protocol import Engine

#: Floors (ceilings where it says so) on a 2-core machine.
RATES = {
    "postgres": {1: 30_000, 2: 40_000},
    "sqlite": {1: 25_000},
}
LATENCY_P50_MS, LATENCY_P99_MS = 2.0, 4.0
CHILD_RSS_MIB = 90
IDLE_PERCENT = 1.0

DRAIN_JOBS = 200_000
LATENCY_SAMPLES = 400
IDLE_SECONDS = 10.0
TASKS = Path(__file__).with_name("worker_tasks.py")


class WorkerBench:
    """One run over one kind of engine. `scale` shrinks the sizes for a quick look; targets need scale 1."""

    def __init__(self, stores: Stores, *, scale: float = 1.0, quiet: bool = False, only: str = "") -> None:
        self._stores = stores
        self._scale = scale
        self._quiet = quiet
        self._only = only
        self.report = Report(stores.kind, stores.version)

    async def run(self) -> Report:
        parts = {"drain": self._drains, "latency": self._latency, "idle": self._idle}
        for name, part in parts.items():
            if not self._only or name in self._only.split(","):
                await part()
        return self.report

    # ── throughput ──

    async def _drains(self) -> None:
        say("No-op async tasks through the whole worker, 100 slots per child", quiet=self._quiet)
        for processes in (1, 2):
            number = max(1_000, int(DRAIN_JOBS * self._scale))
            async with self._store() as store, store.engine() as engine:
                ids = await _fill(engine, number)
                async with _worker(store, processes) as worker:
                    await _until_drained(engine, number, worker)
                    children = await worker.children(engine)
                    cpu = sum(map(cpu_seconds, children)) / number * 1e6
                    rss = max(map(rss_mib, children))
                rate = number / await _span(engine, ids)
            plural = "ren" if processes > 1 else ""
            target = RATES.get(self._stores.kind, {}).get(processes) if self._scale >= 1 else None
            self._add(
                Figure(
                    f"drain, {processes} child{plural}", rate, "jobs/s", target, note=f"{cpu:.1f} µs Python/job"
                )
            )
            # SQLite's page cache lives in the child; PostgreSQL's does not.
            ceiling = CHILD_RSS_MIB if self._scale >= 1 and self._stores.kind == "postgres" else None
            self._add(Figure(f"RSS of a child, {processes} child{plural}", rss, "MiB", ceiling, at_most=True))

    # ── latency ──

    async def _latency(self) -> None:
        say("From the enqueue call to the handler's start, idle worker", quiet=self._quiet)
        samples = max(50, int(LATENCY_SAMPLES * self._scale))
        async with self._store() as store, store.engine() as engine, _worker(store, 1) as worker:
            app.program.adopt(engine)
            # The first ones open connections and import what is imported late.
            await _arrivals(engine, 20, worker)
            taken = sorted(await _arrivals(engine, samples, worker))
        strict = self._stores.kind == "postgres" and self._scale >= 1
        p99 = taken[int(len(taken) * 0.99) - 1]
        self._add(
            Figure(
                "enqueue to start, p50",
                statistics.median(taken),
                "ms",
                LATENCY_P50_MS if strict else None,
                at_most=True,
            )
        )
        self._add(Figure("enqueue to start, p99", p99, "ms", LATENCY_P99_MS if strict else None, at_most=True))
        self._add(Figure("enqueue to start, longest", taken[-1], "ms"))

    # ── doing nothing ──

    async def _idle(self) -> None:
        say("An idle worker, parent and child together", quiet=self._quiet)
        async with self._store() as store, store.engine() as engine, _worker(store, 1) as worker:
            pids = [worker.process.pid, *await worker.children(engine)]
            await asyncio.sleep(2.0)
            before = sum(map(cpu_seconds, pids))
            await asyncio.sleep(IDLE_SECONDS)
            used = sum(map(cpu_seconds, pids)) - before
        percent = 100 * used / IDLE_SECONDS
        self._add(Figure("CPU of an idle worker", percent, "% of a core", IDLE_PERCENT, at_most=True))

    @contextlib.asynccontextmanager
    async def _store(self) -> AsyncIterator[Store]:
        store = await self._stores.fresh()
        try:
            yield store
        finally:
            self._stores.drop(store)

    def _add(self, figure: Figure) -> None:
        self.report.add(figure, quiet=self._quiet)


class _Running:
    """A `ropeway worker` and how to find its children."""

    def __init__(self, process: subprocess.Popen[bytes], log: BinaryIO) -> None:
        self.process = process
        self._log = log

    def check(self) -> None:
        """Raise if the worker has ended: nothing that is waited for would come."""
        if self.process.poll() is not None:
            self._log.seek(0)
            raise AssertionError(f"the worker ended: {self._log.read()[-2000:].decode()}")

    async def children(self, engine: Engine) -> list[int]:
        """The pids of its children, once they have reported."""
        while not (workers := await engine.workers()):
            self.check()
            await asyncio.sleep(0.05)
        return [worker.pid for worker in workers]


@contextlib.asynccontextmanager
async def _worker(store: Store, processes: int) -> AsyncIterator[_Running]:
    url = store.address if store.kind == "postgres" else f"sqlite:///{store.address}"
    command = [sys.executable, "-m", "ropeway", "worker", str(TASKS), "--url", url, "--port", "-1"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(  # noqa: ASYNC220 - nothing else happens meanwhile
            [*command, "--processes", str(processes)], stdout=log, stderr=log
        )
        running = _Running(process, log)
        try:
            yield running
            running.check()
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait)


async def _fill(engine: Engine, number: int) -> list[UUID]:
    ids: list[UUID] = []
    while len(ids) < number:
        batch = [NewJob("noop") for _ in range(min(1_000, number - len(ids)))]
        ids += [answer.id for answer in await engine.enqueue(batch)]
    return ids


async def _until_drained(engine: Engine, number: int, worker: _Running) -> None:
    live = JobFilter(states=LIVE_STATES)
    while (await engine.count(live, cap=1)).number:
        worker.check()
        await asyncio.sleep(0.1)
    done = (await engine.count(JobFilter(states=frozenset({State.SUCCEEDED})), cap=number + 1)).number
    if done != number:
        raise AssertionError(f"{done:,} of {number:,} jobs are recorded as finished")


async def _span(engine: Engine, ids: list[UUID]) -> float:
    """Seconds from the first start to the last finish, by the engine's clock; jobs start in their order."""
    first = await _got(engine, ids[:1_000])
    last = await _got(engine, ids[-3_000:])
    starts = [job.started_at for job in first if job.started_at is not None]
    ends = [job.finished_at for job in last if job.finished_at is not None]
    return (max(ends) - min(starts)).total_seconds()


async def _got(engine: Engine, ids: list[UUID]) -> list[Job]:
    jobs: list[Job] = []
    for at in range(0, len(ids), 500):
        jobs += [job for job in await engine.get(ids[at : at + 500]) if job is not None]
    return jobs


async def _arrivals(engine: Engine, samples: int, worker: _Running) -> list[float]:
    """Milliseconds on their way, one job at a time with pauses that fall out of step with every timer."""
    taken: list[float] = []
    for index in range(samples):
        handle = await arrive.aenqueue(time.time())
        await asyncio.sleep(0.011 + 0.007 * (index % 5))
        while (job := (await engine.get([handle.id]))[0]) is None or job.result is None:
            worker.check()
            await asyncio.sleep(0.005)
        taken.append(msgspec.json.decode(job.result) * 1000)
    return taken
