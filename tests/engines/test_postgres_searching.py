"""A search by what no index answers: it stops after a while, says where, and misses and repeats nothing."""

from __future__ import annotations

from uuid import UUID

import pytest

from ropeway.core.job import NewJob
from ropeway.core.query import JobFilter, Order
from ropeway.core.states import State
from ropeway.engines.postgres import PostgresEngine, inspecting
from ropeway.service.jobs import Jobs
from ropeway.testing.conformance.kit import ack, enqueue_many, lease_some
from tests.engines.pg_kit import connected, opened
from tests.engines.test_postgres_plans import JOBS, Meter, fill

RARE = JobFilter(type="rare")


@pytest.fixture(autouse=True)
def looks_at_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspecting, "SEARCH", 10)


async def rare_among_many(engine: PostgresEngine) -> list[UUID]:
    """One rare job, 15 others, and so on; half of all have ended."""
    rare = []
    for _ in range(4):
        (answer,) = await engine.enqueue([NewJob("rare", queue="q")])
        rare.append(answer.id)
        await enqueue_many(engine, 15, queue="q")
    for leased in await lease_some(engine, 32, "q"):
        await ack(engine, leased)
    return rare


@pytest.mark.parametrize("order", ["newest", "oldest"])
@pytest.mark.parametrize("limit", [1, 3, 50])
async def test_every_job_is_found_once(fresh_database: str, order: Order, limit: int) -> None:
    async with opened(fresh_database) as engine:
        rare = await rare_among_many(engine)
        found, after, calls = [], None, 0
        while calls == 0 or after is not None:
            page = await engine.find(RARE, order=order, limit=limit, after=after)
            found += [job.id for job in page.jobs]
            after, calls = page.next, calls + 1
        assert found == (rare if order == "oldest" else rare[::-1])
        assert calls > 3, "one call looked at everything"


@pytest.mark.parametrize("others", range(8, 13))
async def test_a_job_at_the_very_end_of_a_step_is_found(fresh_database: str, others: int) -> None:
    async with opened(fresh_database) as engine:
        (rare,) = await engine.enqueue([NewJob("rare", queue="q")])
        await enqueue_many(engine, others, queue="q")
        found = await Jobs(engine).search(RARE, seconds=60.0)
        assert [job.id for job in found.jobs] == [rare.id]


async def test_a_service_goes_on_while_there_is_time(fresh_database: str) -> None:
    async with opened(fresh_database) as engine:
        rare = await rare_among_many(engine)
        jobs = Jobs(engine)
        at_once = await jobs.search(RARE, limit=50)
        assert len(at_once.jobs) < len(rare)
        assert at_once.next is not None
        with_time = await jobs.search(RARE, limit=50, seconds=60.0)
        assert [job.id for job in with_time.jobs] == rare[::-1]
        assert with_time.next is None
        two = await jobs.search(RARE, limit=2, seconds=60.0)
        assert [job.id for job in two.jobs] == rare[:1:-1]
        assert two.next is not None


async def test_a_state_that_lies_apart_is_not_searched_for(fresh_database: str) -> None:
    """The oldest of many jobs was cancelled, another one is running: one call finds each."""
    async with opened(fresh_database) as engine:
        first = (await enqueue_many(engine, 1, queue="q"))[0]
        await engine.cancel([first])
        (leased,) = (await enqueue_many(engine, 1, queue="r"))[:1]
        await lease_some(engine, 1, "r")
        await enqueue_many(engine, 30, queue="q")
        for state, id in ((State.CANCELLED, first), (State.RUNNING, leased)):
            page = await engine.find(JobFilter(states=frozenset({state})))
            assert [job.id for job in page.jobs] == [id]
            assert page.next is None


async def test_a_search_reads_no_more_than_it_may(fresh_database: str) -> None:
    async with opened(fresh_database) as engine, connected(fresh_database) as connection:
        await fill(engine, JOBS)
        await connection.execute("VACUUM ANALYZE ropeway.jobs")
        meter = Meter(connection, engine)
        page, reads = await meter.of(engine.find(JobFilter(type="nowhere")))
        assert page.jobs == []
        assert page.next is not None
        assert reads.scanned + reads.entries <= 1_000, reads
