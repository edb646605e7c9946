"""What an engine does by itself, without a worker round it, events on: enqueue, claim, complete."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from bench import fleet, loads
from bench.figures import Figure, Report, say
from bench.stores import Store, Stores
from ropeway.core.outcome import Released
from ropeway.engines.protocol import EngineRules, Settlement, WorkerRef

#: Floors on a 2-core machine, jobs per second; for other engines and sizes there is none.
TARGETS = {
    "postgres": {
        "bulk enqueue": 100_000,
        "bulk enqueue, keyed": 55_000,
        "single enqueue, 200 callers": 50_000,
        "drain, batch 500, 1 process": 45_000,
        "drain, batch 500, 2 processes": 55_000,
    },
    "sqlite": {"drain, batch 100, 1 process": 30_000, "drain, batch 500, 1 process": 38_000},
    "memory": {},
}
#: Jobs per drain, by batch: some seconds each.
DRAIN_JOBS = {1: 5_000, 10: 40_000, 100: 150_000, 500: 200_000}
SEGMENTS = 10
SEGMENT_JOBS = 100_000
LATENCY_BATCH = 50
FAIR_PROCESSES = 4


class EngineBench:
    """One run over one kind of engine. `scale` shrinks the sizes for a quick look; targets need scale 1."""

    def __init__(self, stores: Stores, *, scale: float = 1.0, quiet: bool = False, only: str = "") -> None:
        self._stores = stores
        self._scale = scale
        self._quiet = quiet
        self._only = only
        self.report = Report(stores.kind, stores.version)

    async def run(self) -> Report:
        parts = {
            "enqueue": self._enqueue,
            "drain": self._drains,
            "latency": self._latencies,
            "ageing": self._ageing,
        }
        if self._stores.kind == "postgres":
            parts["pinned"] = self._pinned
        if self._stores.kind == "sqlite":
            parts["shares"] = self._shares
        for name, part in parts.items():
            if not self._only or name in self._only.split(","):
                await part()
        return self.report

    async def _enqueue(self) -> None:
        say("Enqueue", quiet=self._quiet)
        number = self._size(200_000)
        async with self._store() as store, store.engine() as engine:
            self._rate("bulk enqueue", number, await loads.bulk(engine, number, keyed=False))
            number = self._size(100_000)
            self._rate("bulk enqueue, keyed", number, await loads.bulk(engine, number, keyed=True))
            self._rate("single enqueue, 200 callers", number, await loads.singles(engine, number, callers=200))
            self._rate(
                "single enqueue, 200 callers, keyed",
                number,
                await loads.singles(engine, number, callers=200, keyed=True),
            )
            few = self._size(5_000)
            self._rate("single enqueue, 1 caller", few, await loads.singles(engine, few, callers=1))

    async def _drains(self) -> None:
        say("Lease and ack", quiet=self._quiet)
        for processes in (1, 2) if self._stores.kind != "memory" else (1,):
            for batch, jobs in DRAIN_JOBS.items():
                number = self._size(jobs)
                async with self._store() as store:
                    shares = await self._drain(store, processes, batch, number)
                plural = "es" if processes > 1 else ""
                done = sum(share.jobs for share in shares)
                if done != number:
                    raise AssertionError(f"drained {done:,} of {number:,} jobs")
                name = f"drain, batch {batch}, {processes} process{plural}"
                cpu = sum(share.cpu_seconds for share in shares) / number * 1e6
                self._add(
                    Figure(name, fleet.rate(shares), "jobs/s", self._target(name), note=f"{cpu:.1f} µs Python/job")
                )

    async def _drain(self, store: Store, processes: int, batch: int, number: int) -> list[fleet.Share]:
        if store.kind == "memory":
            async with store.engine() as engine:
                await loads.fill(engine, number)
                began, cpu = time.time(), time.process_time()
                jobs = await loads.drain(engine, ["q0"], batch)
                return [fleet.Share(jobs, began, time.time(), time.process_time() - cpu)]
        async with store.engine() as engine:
            await loads.fill(engine, number)
        return await asyncio.to_thread(fleet.drain, store, processes, batch, ["q0"])

    async def _latencies(self) -> None:
        for queues, priorities in ((1, 1), (20, 4)):
            say(
                f"Time of a claim of {LATENCY_BATCH}: {queues} queue(s), {priorities} priorities",
                quiet=self._quiet,
            )
            medians = {}
            for backlog in (1_000, 100_000, 1_000_000):
                number = self._size(backlog)
                async with self._store() as store, store.engine() as engine:
                    await loads.fill(engine, number, queues=queues, priorities=priorities)
                    medians[backlog] = await self._claim_median(engine, [f"q{i}" for i in range(queues)])
                self._add(Figure(f"claim p50, backlog {number:,}", medians[backlog], "ms"))
            target = 1.5 if self._stores.kind == "postgres" else None
            ratio = medians[1_000_000] / medians[1_000]
            self._add(Figure(f"claim at 1M against 1k, {queues} queue(s)", ratio, "times", target, at_most=True))

    async def _claim_median(self, engine: Any, queues: list[str]) -> float:
        """Claim and give back, so that every claim meets the same backlog."""
        worker = WorkerRef("bench", uuid4())
        times = []
        for _ in range(60):
            queues = queues[1:] + queues[:1]
            began = time.perf_counter()
            batch = await engine.lease(queues, LATENCY_BATCH, worker)
            times.append((time.perf_counter() - began) * 1000)
            await engine.settle([Settlement(leased.lease, Released()) for leased in batch.leases])
        return statistics.median(times[10:])

    async def _ageing(self) -> None:
        say("Ageing", quiet=self._quiet)
        number = self._size(100_000)
        rates = {}
        for name, rules in (
            ("off", EngineRules(ageing_seconds=0)),
            ("on (looked up once a second)", EngineRules()),
            ("on, looked up at every claim", EngineRules(ageing_lookup_seconds=0)),
        ):
            async with self._store() as store, store.engine(rules) as engine:
                await loads.fill(engine, number, priorities=4)
                began = time.perf_counter()
                await loads.drain(engine, ["q0"], 100)
                rates[name] = number / (time.perf_counter() - began)
                self._add(Figure(f"drain, batch 100, ageing {name}", rates[name], "jobs/s"))

    async def _pinned(self) -> None:
        say("Drain while another transaction pins xmin", quiet=self._quiet)
        import asyncpg

        number = self._size(SEGMENT_JOBS)
        rates = []
        async with self._store() as store, store.engine() as engine:
            pin = await asyncpg.connect(store.address)
            transaction = pin.transaction(isolation="repeatable_read")
            await transaction.start()
            await pin.fetchval("SELECT count(*) FROM pg_class")
            for segment in range(1, SEGMENTS + 1):
                await loads.fill(engine, number)
                began = time.perf_counter()
                done = await loads.drain(engine, ["q0"], 500)
                rates.append(done / (time.perf_counter() - began))
                # The worst moment for the planner: statistics taken while the queue is empty.
                async with engine.chores.bare() as connection:  # type: ignore[attr-defined]
                    await connection.execute("ANALYZE ropeway.jobs")
                self._add(Figure(f"drain, segment {segment} of {number:,}", rates[-1], "jobs/s"))
            await transaction.rollback()
            await pin.close()
        self._add(Figure("last segment against first, xmin pinned", rates[-1] / rates[0], "times", 0.8))

    async def _shares(self) -> None:
        say(f"{FAIR_PROCESSES} processes on one file", quiet=self._quiet)
        number = self._size(200_000)
        async with self._store() as store:
            shares = await self._drain(store, FAIR_PROCESSES, 100, number)
        equal = number / FAIR_PROCESSES
        worst = max(abs(share.jobs - equal) / equal for share in shares)
        told = " / ".join(f"{share.jobs:,}" for share in shares)
        self._add(Figure(f"drain, batch 100, {FAIR_PROCESSES} processes", fleet.rate(shares), "jobs/s"))
        self._add(Figure("largest distance from an equal share", worst, "", 0.2, at_most=True, note=told))

    @asynccontextmanager
    async def _store(self) -> AsyncIterator[Store]:
        store = await self._stores.fresh()
        try:
            yield store
        finally:
            self._stores.drop(store)

    def _rate(self, name: str, number: int, seconds: float) -> None:
        self._add(Figure(name, number / seconds, "jobs/s", self._target(name)))

    def _add(self, figure: Figure) -> None:
        self.report.add(figure, quiet=self._quiet)

    def _target(self, name: str) -> float | None:
        return TARGETS[self._stores.kind].get(name) if self._scale == 1.0 else None

    def _size(self, number: int) -> int:
        return max(1_000, round(number * self._scale / 1_000) * 1_000)
