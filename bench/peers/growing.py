"""What a drained job costs at one point: so many waiting, so many workers, so large a payload, so many queues, so
many finished ones kept. The engine by itself, leasing and acking as a worker does, events on."""

from __future__ import annotations

import asyncio
import base64
import multiprocessing
import random
import time
from collections.abc import Awaitable, Callable
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import NamedTuple

from bench import fleet, loads
from bench.peers.places import Place, ask
from ropeway.core.job import NewJob
from ropeway.engines.postgres import PostgresEngine

#: As many as a worker's child with its default number of slots asks for at most.
BATCH = 100

#: Processes that the workers are spread over: as many as there are cores would do, more come nearer to a fleet.
PROCESSES = 4

#: No more than this is enqueued for one point of the payloads, nor in one call.
PAYLOAD_BYTES = 256_000_000
CALL_BYTES = 8_000_000


class Cost(NamedTuple):
    """What a drain took, without the filling before it."""

    jobs: int = 0
    seconds: float = 0.0
    postgres_seconds: float = 0.0
    python_seconds: float = 0.0

    def plus(self, other: Cost) -> Cost:
        return Cost(
            self.jobs + other.jobs,
            self.seconds + other.seconds,
            self.postgres_seconds + other.postgres_seconds,
            self.python_seconds + other.python_seconds,
        )

    @property
    def rate(self) -> float:
        return self.jobs / self.seconds

    @property
    def postgres_us(self) -> float:
        return self.postgres_seconds / self.jobs * 1e6

    @property
    def python_us(self) -> float:
        return self.python_seconds / self.jobs * 1e6


async def backlog(place: Place, waiting: int, jobs: int) -> Cost:
    """Drain `jobs` while `waiting` are there; a small backlog is filled up and drained again and again."""
    cost = Cost()
    async with PostgresEngine(place.url) as engine:
        at_once = min(waiting, jobs)
        fill = waiting
        while cost.jobs < jobs:
            await loads.fill(engine, fill)
            cost = cost.plus(await _drained(engine, place, ["q0"], at_once))
            fill = at_once
    return cost


async def payload(place: Place, size: int, jobs: int) -> Cost:
    """Drain jobs of about this many bytes each, which do not compress."""
    jobs = max(1_000, min(jobs, PAYLOAD_BYTES // size))
    text = base64.b64encode(random.Random(size).randbytes(size * 3 // 4)).decode()[: max(1, size - 10)]
    body = f'{{"text":"{text}"}}'.encode()
    at_once = max(1, min(1_000, CALL_BYTES // size))
    async with PostgresEngine(place.url) as engine:
        for start in range(0, jobs, at_once):
            number = min(at_once, jobs - start)
            await engine.enqueue([NewJob("bench", body, queue="q0") for _ in range(number)])
        return await _drained(engine, place, ["q0"], jobs)


async def queues(place: Place, number: int, jobs: int) -> Cost:
    """Drain jobs that lie in so many queues, all of which the worker asks for at once."""
    async with PostgresEngine(place.url) as engine:
        await loads.fill(engine, jobs, queues=number)
        return await _drained(engine, place, [f"q{at}" for at in range(number)], jobs)


async def finished(place: Place, kept: int, jobs: int) -> Cost:
    """Drain while so many finished jobs are kept, each with the three events of its life."""
    async with PostgresEngine(place.url) as engine:
        if kept:
            await asyncio.to_thread(keep_finished, place.url, kept)
        await loads.fill(engine, jobs)
        return await _drained(engine, place, ["q0"], jobs)


async def workers(place: Place, number: int, jobs: int) -> Cost:
    """Drain with so many workers, each with connections of its own, and enough jobs for all of them."""
    jobs = max(jobs, 10 * BATCH * number)
    async with PostgresEngine(place.url) as engine:
        await loads.fill(engine, jobs)
    return await asyncio.to_thread(_fleet_drained, place, number, jobs)


POINTS: dict[str, Callable[[Place, int, int], Awaitable[Cost]]] = {
    "growth_backlog": backlog,
    "growth_workers": workers,
    "growth_payload": payload,
    "growth_queues": queues,
    "growth_finished": finished,
}


async def migrated(place: Place) -> None:
    engine = PostgresEngine(place.url)
    try:
        await engine.migrations.up()
    finally:
        await engine.close()


# ── one process ──


async def _drained(engine: PostgresEngine, place: Place, names: list[str], jobs: int) -> Cost:
    await asyncio.to_thread(_settle_down, place.url)
    postgres, python, began = _postgres_seconds(place), time.process_time(), time.perf_counter()
    done = await loads.drain(engine, names, BATCH, stop_at=jobs)
    seconds, python = time.perf_counter() - began, time.process_time() - python
    return _checked(Cost(done, seconds, _postgres_seconds(place) - postgres, python), jobs)


def _settle_down(url: str) -> None:
    """What the filling left to do is done before the clock starts: it is not the drain's to pay for."""
    ask(url, "VACUUM (ANALYZE) ropeway.jobs")
    ask(url, "CHECKPOINT")


def _postgres_seconds(place: Place) -> float:
    return place.cpu_seconds() or 0.0


def _checked(cost: Cost, jobs: int) -> Cost:
    if cost.jobs < jobs:
        raise AssertionError(f"drained {cost.jobs:,} of {jobs:,} jobs")
    return cost


# ── several ──


def _fleet_drained(place: Place, number: int, jobs: int) -> Cost:
    context = multiprocessing.get_context("spawn")
    processes = min(number, PROCESSES)
    gate = context.Barrier(processes + 1)
    answers: Queue[fleet.Share] = context.Queue()
    children = [
        context.Process(target=_work, args=(place.url, number // processes, gate, answers), daemon=True)
        for _ in range(processes)
    ]
    for child in children:
        child.start()
    gate.wait(120)  # all are connected
    _settle_down(place.url)
    postgres = _postgres_seconds(place)
    gate.wait(120)
    shares = [answers.get(timeout=600) for _ in children]
    postgres = _postgres_seconds(place) - postgres
    for child in children:
        child.join()
    done = sum(share.jobs for share in shares)
    python = sum(share.cpu_seconds for share in shares)
    return _checked(Cost(done, done / fleet.rate(shares), postgres, python), jobs)


def _work(url: str, engines: int, gate: Barrier, answers: Queue[fleet.Share]) -> None:
    """One process with so many workers; they are connected and warm before the clock starts."""

    async def work() -> None:
        opened = [PostgresEngine(url) for _ in range(engines)]
        try:
            for engine in opened:
                await engine.open()
                await engine.queue_stats([])
            await asyncio.to_thread(gate.wait, 120)
            await asyncio.to_thread(gate.wait, 120)
            began, cpu = time.time(), time.process_time()
            jobs = sum(await asyncio.gather(*(loads.drain(engine, ["q0"], BATCH) for engine in opened)))
            answers.put(fleet.Share(jobs, began, time.time(), time.process_time() - cpu))
        finally:
            for engine in opened:
                await engine.close()

    fleet.run(work())


# ── finished jobs ──

#: Ids in the order of time, as Ropeway makes them, so that the index grows where a real one would. All of today:
#: that is the partition to which the drain writes.
_KEEP_JOBS = """
    WITH day AS (SELECT date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' AS start, now() AS till)
    INSERT INTO ropeway.archive_succeeded (
        tenant, id, finished_at, run_at, created_at, started_at, attempt, event_seq, priority, attempts,
        max_attempts, failures, lost, state, queue, type, spent_token, spent_verb, payload
    )
    SELECT 'default', {id}, {at}, {at}, {at}, {at}, 1, 3, 5, 1, 5, 0, 0, 'succeeded', 'q0', 'bench', {id}, 'ack',
           '{payload}'
    FROM generate_series({first}, {last}) n, day
"""
_KEEP_EVENTS = """
    WITH day AS (SELECT date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' AS start, now() AS till)
    INSERT INTO ropeway.events (xid, at, job_id, seq, attempt, event, tenant, queue, type, worker)
    SELECT pg_current_xact_id()::text::bigint, {at}, {id}, seq, 1, event::ropeway.event, 'default', 'q0', 'bench',
           'bench'
    FROM generate_series({first}, {last}) n, day,
         (VALUES (1, 'job.enqueued'), (2, 'job.started'), (3, 'job.completed')) AS life (seq, event)
"""
_AT = "day.start + (day.till - day.start) * n / {number}"
_ID = (
    f"(lpad(to_hex((extract(epoch FROM {_AT}) * 1000)::bigint), 12, '0') || '7' "
    "|| lpad(to_hex(n & 4095), 3, '0') || 'a' || lpad(to_hex(n), 15, '0'))::uuid"
)
_ROWS_AT_ONCE = 500_000


def keep_finished(url: str, number: int) -> None:
    """Write finished jobs and their events straight into the tables: to run ten million would take far longer."""
    at, id = _AT.format(number=number), _ID.format(number=number)
    for first in range(1, number + 1, _ROWS_AT_ONCE):
        last = min(number, first + _ROWS_AT_ONCE - 1)
        for statement in (_KEEP_JOBS, _KEEP_EVENTS):
            ask(url, statement.format(at=at, id=id, first=first, last=last, payload=loads.PAYLOAD.decode()))
    ask(url, "VACUUM (ANALYZE) ropeway.archive, ropeway.events")
