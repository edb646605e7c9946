"""The loads: enqueue in bulk, enqueue singly by many callers, drain. Each runs in the calling process."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from uuid import uuid4

from ropeway.core.job import NewJob
from ropeway.core.outcome import Done
from ropeway.engines.protocol import Engine, Settled, Settlement, WorkerRef

#: About 100 bytes, as the peers are measured.
PAYLOAD = b'{"user_id": 1234567, "template": "welcome", "locale": "en-GB", "campaign": "spring-2026", "ab": [1]}'

ACK_LIMIT = 1_000


async def fill(engine: Engine, number: int, *, queues: int = 1, priorities: int = 1) -> None:
    """Put `number` jobs into the store, spread evenly."""
    for start in range(0, number, 5_000):
        jobs = [
            NewJob("bench", PAYLOAD, queue=f"q{i % queues}", priority=5 - (i // queues) % priorities)
            for i in range(start, min(number, start + 5_000))
        ]
        await engine.enqueue(jobs)


async def bulk(engine: Engine, number: int, *, keyed: bool, batch: int = 1_000) -> float:
    """Enqueue in batches; seconds. Two batches are under way, so one is made while the store writes the other."""
    starts = iter(range(0, number, batch))

    async def producer() -> None:
        for start in starts:
            await engine.enqueue(
                [
                    NewJob("bench", PAYLOAD, queue="q0", idempotency_key=f"key-{start + i}" if keyed else None)
                    for i in range(batch)
                ]
            )

    began = time.perf_counter()
    await asyncio.gather(producer(), producer())
    return time.perf_counter() - began


async def singles(engine: Engine, number: int, *, callers: int, keyed: bool = False) -> float:
    """Enqueue one job per call from many concurrent callers; seconds."""
    per_caller = number // callers

    async def caller(me: int) -> None:
        for i in range(per_caller):
            key = f"key-{me}-{i}" if keyed else None
            await engine.enqueue([NewJob("bench", PAYLOAD, queue="q0", idempotency_key=key)])

    began = time.perf_counter()
    await asyncio.gather(*(caller(me) for me in range(callers)))
    return time.perf_counter() - began


async def drain(engine: Engine, queues: list[str], batch: int, *, stop_at: int | None = None) -> int:
    """Lease and ack until the queues are empty (or `stop_at` jobs); answers how many were acked.

    Leasing and acking overlap, as in a worker: the next batch is claimed while the last one is acked, and an ack
    carries everything that was finished since the one before returned.
    """
    worker = WorkerRef(f"bench-{uuid4().hex[:8]}", uuid4())
    finished: deque[Settlement] = deque()
    room = asyncio.Event()
    work = asyncio.Event()
    leased_all = False
    acked = 0

    async def lease() -> None:
        nonlocal leased_all
        taken = 0
        while stop_at is None or taken < stop_at:
            got = await engine.lease(queues, batch, worker, lease_seconds=600)
            if not got.leases:
                break
            taken += len(got.leases)
            finished.extend(Settlement(leased.lease, Done()) for leased in got.leases)
            work.set()
            while len(finished) >= 2 * batch:
                room.clear()
                await room.wait()
        leased_all = True
        work.set()

    async def ack() -> None:
        nonlocal acked
        while finished or not leased_all:
            if not finished:
                work.clear()
                await work.wait()
                continue
            outcomes = [finished.popleft() for _ in range(min(ACK_LIMIT, len(finished)))]
            room.set()
            answers = await engine.settle(outcomes)
            acked += sum(isinstance(answer, Settled) and not answer.already for answer in answers)

    await asyncio.gather(lease(), ack())
    return acked
