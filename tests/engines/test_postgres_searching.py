"""A search by what no index answers: it stops after a while, says where, and misses and repeats nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from ropeway.core.job import NewJob
from ropeway.core.query import Count, JobFilter, Order
from ropeway.core.states import State
from ropeway.engines.postgres import PostgresEngine, inspecting
from ropeway.service.jobs import Jobs
from ropeway.testing.conformance.kit import ack, enqueue_many, lease_some
from tests.engines.pg_kit import Connection, connected, opened
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


# ── By a key and by time: where to begin and to stop is known ──


async def whole(engine: PostgresEngine, where: JobFilter, order: Order = "newest") -> list[UUID]:
    """The ids of all jobs that a filter finds, in order, however many calls it takes."""
    found, after = [], None
    while True:
        page = await engine.find(where, order=order, limit=2, after=after)
        found += [job.id for job in page.jobs]
        after = page.next
        if after is None:
            assert await engine.count(where) == Count(len(found)), "find and count disagree"
            return found


async def test_the_job_that_has_a_key_is_found_at_once(fresh_database: str) -> None:
    async with opened(fresh_database) as engine:
        await enqueue_many(engine, 30, queue="q")
        (keyed,) = await engine.enqueue([NewJob("t", queue="first", idempotency_key="k")])
        await enqueue_many(engine, 30, queue="q")
        for state in (State.QUEUED, State.SUCCEEDED):
            page = await engine.find(JobFilter(idempotency_key="k"))
            assert [(job.id, job.state) for job in page.jobs] == [(keyed.id, state)]
            for leased in await lease_some(engine, 1, "first"):
                await ack(engine, leased)
        other = await engine.find(JobFilter(idempotency_key="k"), tenant="other")
        assert (other.jobs, other.next) == ([], None)
        assert await whole(engine, JobFilter(idempotency_key="k", states=frozenset({State.DEAD}))) == []


async def test_all_jobs_that_ever_had_a_key_are_found(fresh_database: str) -> None:
    """Its window was over twice; then nobody has it any more."""
    where = JobFilter(idempotency_key="k")
    async with opened(fresh_database) as engine, connected(fresh_database) as connection:
        made: list[UUID] = []
        for _ in range(3):
            (answer,) = await engine.enqueue([NewJob("t", queue="keyed", idempotency_key="k")])
            assert not answer.deduplicated
            made.append(answer.id)
            (leased,) = await lease_some(engine, 1, "keyed")
            await ack(engine, leased)
            await connection.execute("UPDATE ropeway.keys SET until = now() - interval '1 second'")
            await enqueue_many(engine, 25, queue="q")
        for _ in range(2):
            assert await whole(engine, where) == made[::-1]
            assert await whole(engine, where, "oldest") == made
            await connection.execute("DELETE FROM ropeway.keys")


async def moved(connection: Connection, id: UUID, *, created: timedelta, made: timedelta | None = None) -> UUID:
    """A job as if it had been created at another time, under an id of then (or of `made`)."""
    shift = created if made is None else made
    new = UUID(int=id.int + (shift // timedelta(milliseconds=1) << 80))
    await connection.execute(
        "UPDATE ropeway.jobs SET id = $2, created_at = created_at + $3::interval WHERE id = $1", id, new, created
    )
    return new


DAY = timedelta(days=1)


@pytest.mark.parametrize("order", ["newest", "oldest"])
async def test_a_time_of_creation_is_where_a_search_begins_and_stops(fresh_database: str, order: Order) -> None:
    """Three times eight jobs, a week apart: those of each week are found in one call."""
    async with opened(fresh_database) as engine, connected(fresh_database) as connection:
        now = await engine.now()
        weeks: list[list[UUID]] = []
        for days in (14, 7, 0):
            jobs = await enqueue_many(engine, 8, queue="q")
            weeks.append([await moved(connection, id, created=-days * DAY) for id in jobs])
        for number, (after, before) in enumerate(((None, 10), (10, 3), (3, None))):
            where = JobFilter(
                created_after=None if after is None else now - after * DAY,
                created_before=None if before is None else now - before * DAY,
            )
            page = await engine.find(where, order=order)
            expected = weeks[number] if order == "oldest" else weeks[number][::-1]
            assert ([job.id for job in page.jobs], page.next) == (expected, None)
            assert await whole(engine, where, order) == expected
        assert await whole(engine, JobFilter(created_after=now + DAY)) == []
        first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
        for edge in (first, last):
            for field in ("created_after", "created_before"):
                everything = (field == "created_after") == (edge == first)
                found = await whole(engine, JobFilter(**{field: edge}), order)
                assert len(found) == (24 if everything else 0)


@pytest.mark.parametrize("minutes", [-59, 59])
async def test_the_clock_of_a_producer_may_be_wrong(fresh_database: str, minutes: int) -> None:
    async with opened(fresh_database) as engine, connected(fresh_database) as connection:
        (id,) = await enqueue_many(engine, 1, queue="q")
        id = await moved(connection, id, created=timedelta(), made=timedelta(minutes=minutes))
        (job,) = (await engine.find()).jobs
        second = timedelta(seconds=1)
        where = JobFilter(created_after=job.created_at - second, created_before=job.created_at + second)
        assert await whole(engine, where) == [id]


async def test_a_search_for_a_time_reads_no_more_than_it_may(fresh_database: str) -> None:
    async with opened(fresh_database) as engine, connected(fresh_database) as connection:
        old = await enqueue_many(engine, 3, queue="q")
        old = [await moved(connection, id, created=-7 * DAY) for id in old]
        await fill(engine, JOBS)
        await connection.execute("VACUUM ANALYZE ropeway.jobs")
        meter = Meter(connection, engine)
        last_week = JobFilter(created_before=await engine.now() - DAY)
        page, reads = await meter.of(engine.find(last_week))
        assert [job.id for job in page.jobs] == old[::-1]
        assert reads.scanned + reads.entries <= 1_000, reads
