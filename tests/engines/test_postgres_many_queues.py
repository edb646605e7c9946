"""A worker of very many queues: they are looked at some at a time, in their order, and none is left out."""

from __future__ import annotations

from uuid import uuid4

import pytest

from ropeway.core.job import NewJob
from ropeway.engines.choosing import EmptyQueues
from ropeway.engines.postgres.claiming import QUEUES_AT_ONCE
from ropeway.engines.protocol import WorkerRef
from tests.engines.pg_kit import migrated, opened

QUEUES = [f"q{number:03}" for number in range(2 * QUEUES_AT_ONCE + 10)]


@pytest.fixture
def url(postgres_database: str) -> str:
    return migrated(postgres_database)


async def test_one_lease_call_reaches_the_last_queue_and_keeps_the_order(url: str) -> None:
    asked = [QUEUES[-1], QUEUES[0], QUEUES[QUEUES_AT_ONCE], QUEUES[0], QUEUES[-1]]
    async with opened(url) as engine:
        await engine.enqueue([NewJob("noop", queue=queue) for queue in asked])
        few = await engine.lease(QUEUES, 2, WorkerRef("w", uuid4()))
        assert [leased.job.queue for leased in few.leases] == [QUEUES[0], QUEUES[0]]
        rest = await engine.lease(QUEUES, 10, WorkerRef("w", uuid4()))
        assert [leased.job.queue for leased in rest.leases] == [QUEUES[QUEUES_AT_ONCE], QUEUES[-1], QUEUES[-1]]
        assert (await engine.lease(QUEUES, 10, WorkerRef("w", uuid4()))).leases == []


async def test_queues_just_found_empty_are_looked_at_last_and_never_left_out(url: str) -> None:
    async with opened(url) as engine:
        engine.empty = EmptyQueues(monotonic=lambda: 1.0)
        await engine.enqueue([NewJob("noop", queue=QUEUES[-1]) for _ in range(3)])
        worker = WorkerRef("w", uuid4())
        # Everything before the last group is found empty here.
        assert len((await engine.lease(QUEUES, 1, worker)).leases) == 1
        await engine.enqueue([NewJob("noop", queue=QUEUES[0])])
        batch = await engine.lease(QUEUES, 10, worker)
        assert [leased.job.queue for leased in batch.leases] == [QUEUES[-1], QUEUES[-1], QUEUES[0]]
