"""Counts that are made every second (quotas, depth limits, held leases) walk what they count, not the backlog."""

from __future__ import annotations

import pytest

from ropeway.core.query import Count, JobFilter
from ropeway.core.states import LIVE_STATES, State
from ropeway.engines.postgres import inspecting
from ropeway.testing.conformance.kit import ack, enqueue_many, lease_one, lease_some, nack, new_job
from tests.engines.pg_kit import connected, opened
from tests.engines.test_postgres_plans import JOBS, Meter, fill

LIVE = JobFilter(states=LIVE_STATES)


async def test_a_count_reads_what_it_counts(fresh_database: str) -> None:
    async with opened(fresh_database) as engine, connected(fresh_database) as connection:
        await fill(engine, JOBS)
        await fill(engine, 50, ["mail"])
        await lease_some(engine, 20)
        await lease_some(engine, 5, "mail")
        await connection.execute("VACUUM ANALYZE ropeway.jobs")
        meter = Meter(connection, engine)
        running = frozenset({State.RUNNING})
        for where, cap, found in (
            (JobFilter(queue="mail", states=LIVE_STATES), 1_000, Count(50)),
            (JobFilter(states=running), 1_000, Count(25)),
            (JobFilter(queue="mail", states=running), 1_000, Count(5)),
            (LIVE, 100, Count(100, capped=True)),
        ):
            answer, reads = await meter.of(engine.count(where, cap=cap))
            assert answer == found
            assert reads.scanned + reads.entries <= 1_000, (where, reads)
        answer, _ = await meter.of(engine.count(LIVE, cap=100, tenant="other"))
        assert answer == Count(0)


async def test_the_figures_of_a_long_queue_are_bounded(fresh_database: str) -> None:
    """What is due, what is not and what runs are each looked at for themselves, and no further than they may."""
    async with opened(fresh_database) as engine, connected(fresh_database) as connection:
        await fill(engine, JOBS)
        await lease_some(engine, 20)
        await engine.enqueue([new_job(delay=3_600.0) for _ in range(30)])
        await connection.execute("VACUUM ANALYZE ropeway.jobs")
        meter = Meter(connection, engine)
        (stats,), reads = await meter.of(engine.queue_stats(cap=1_000))
        assert stats.counts == {State.QUEUED: 1_000, State.RUNNING: 20, State.SCHEDULED: 30}
        assert stats.capped == {State.QUEUED}
        assert reads.scanned + reads.entries <= 5_000, reads
        (again,), reads = await meter.of(engine.queue_stats(cap=1_000))
        assert (again.counts, again.capped) == (stats.counts, stats.capped)
        assert reads.scanned + reads.entries <= 2_500, "that it is long is remembered"
        (whole,) = await engine.queue_stats(cap=2 * JOBS)
        assert whole.counts == {State.QUEUED: JOBS - 20, State.RUNNING: 20, State.SCHEDULED: 30}
        assert whole.capped == frozenset()


async def test_a_queue_that_was_long_is_counted_in_full_again(fresh_database: str) -> None:
    async with opened(fresh_database) as engine:
        await enqueue_many(engine, 25)
        leased = await lease_some(engine, 20)
        (stats,) = await engine.queue_stats(cap=4)
        assert stats.counts == {State.QUEUED: 4, State.RUNNING: 4}
        for each in leased[1:]:
            await ack(engine, each)
        (stats,) = await engine.queue_stats(cap=5)
        assert stats.counts == {State.QUEUED: 5, State.RUNNING: 1, State.SUCCEEDED: 5}
        assert stats.capped == {State.SUCCEEDED}


async def test_ended_jobs_that_were_not_all_seen(fresh_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many that succeeded make the counts of these inexact, in all queues, and no others."""
    monkeypatch.setattr(inspecting, "ENDED_SCAN", 3)
    async with opened(fresh_database) as engine:
        await enqueue_many(engine, 5, queue="mail")
        for leased in await lease_some(engine, 5, "mail"):
            await ack(engine, leased)
        await enqueue_many(engine, 1, queue="fatal")
        await nack(engine, await lease_one(engine, "fatal"), retry=False)
        fatal, mail = await engine.queue_stats()
        assert fatal.counts == {State.DEAD: 1}
        assert mail.counts == {State.SUCCEEDED: 3}
        assert fatal.capped == mail.capped == {State.SUCCEEDED}
