"""Counts that are made every second (quotas, depth limits, held leases) walk what they count, not the backlog."""

from __future__ import annotations

from ropeway.core.query import Count, JobFilter
from ropeway.core.states import LIVE_STATES, State
from ropeway.testing.conformance.kit import lease_some
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
