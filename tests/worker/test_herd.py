"""Many jobs that fail together do not come back together (T6): through a whole worker."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from ropeway import Ropeway
from ropeway.core.job import NewJob
from ropeway.core.query import JobFilter
from ropeway.core.retry import RetryPolicy
from ropeway.core.states import State
from ropeway.engines.memory import MemoryEngine
from ropeway.worker.inprocess import InProcessWorker
from ropeway.worker.options import WorkerOptions

HERD = 10_000
POLICY = RetryPolicy(base=60.0, factor=2.0, cap=3600.0)


@pytest.mark.slow
async def test_ten_thousand_failures_spread_their_retries() -> None:
    app = Ropeway("memory://")

    @app.task
    async def fails() -> None:
        raise ConnectionError("the other side is down")

    random.seed(6)
    async with MemoryEngine() as engine:
        await engine.enqueue([NewJob("fails", b"{}", retry=POLICY)] * HERD)
        began = await engine.now()
        async with InProcessWorker(app.program, engine, WorkerOptions(concurrency=500)) as worker:
            await worker.drain()
        over = await engine.now()
        assert (await engine.count(JobFilter(states=frozenset({State.RETRYING})), cap=HERD)).number == HERD
        waits: list[float] = []
        retries: Counter[int] = Counter()
        after = None
        while True:
            page = await engine.find(limit=500, after=after)
            for job in page.jobs:
                assert (job.attempts, job.failures) == (1, 1)
                waits.append((job.run_at - job.updated_at).total_seconds())
                retries[int((job.run_at - began).total_seconds())] += 1
            if (after := page.next) is None:
                break
        # Each waits for 60 s, a quarter more or less, and any second has a small share of them.
        assert min(waits) >= 45
        assert max(waits) <= 75
        assert max(retries.values()) <= HERD * 0.05
        assert len(retries) >= 30
        assert max(retries) <= 76 + (over - began).total_seconds()
