"""Plans that cannot flip, told by what a call reads and not by how long it takes (hot-path.md B2, B5).

The planner meets this table empty sooner or later. With `reltuples = 0` it once took full scans for lookups: 3 ms
became 400, in three different ways. So each state of the statistics is brought about, plans are made and kept in
that state, the table is filled behind their back, and the server's own counters say what one call then reads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import asyncpg
import pytest

from ropeway.core.decide import JobFacts, decide
from ropeway.core.job import Progress
from ropeway.core.joblog import LogLine
from ropeway.core.lease import Lease
from ropeway.core.outcome import Done, Failed, Lost, Outcome, Released, Snoozed
from ropeway.core.payload import clean_result
from ropeway.engines.choosing import PriorityOrders
from ropeway.engines.postgres import PostgresEngine
from ropeway.engines.protocol import Beat, Leased, Settled, Settlement
from ropeway.engines.settling import Change, Completion
from ropeway.runtime import ids
from ropeway.testing.conformance.kit import BOOM, lease_some, new_job, worker
from tests.engines.pg_kit import connected, eventually, opened

JOBS = 20_000
BATCH = 100

#: More executions than a prepared statement needs to settle for a generic plan.
SETTLE_DOWN = 7


class Reads(NamedTuple):
    """What was read of `jobs` since the counters were looked at before."""

    scans: int
    scanned: int
    by_index: dict[str, int]

    @property
    def entries(self) -> int:
        return sum(self.by_index.values())


class Meter:
    """The server's counters for `jobs`. A session hands its own in once a second, or when it is asked to."""

    def __init__(self, connection: asyncpg.Connection, engine: PostgresEngine) -> None:
        self._connection = connection
        self._engine = engine

    async def look(self) -> Reads:
        engine = self._engine
        for channel in (
            engine.claims,
            engine.outcomes,
            engine.inserts,
            engine.keyed,
            engine.beats,
            engine.notes,
            engine.chores,
            engine.reads,
        ):
            await channel.value("SELECT pg_stat_force_next_flush()", writes=False)
        await self._connection.execute("SELECT pg_stat_force_next_flush()")
        table = await self._connection.fetchrow(
            "SELECT seq_scan, seq_tup_read FROM pg_stat_user_tables WHERE relid = 'ropeway.jobs'::regclass"
        )
        indexes = await self._connection.fetch(
            "SELECT indexrelname, idx_tup_read FROM pg_stat_user_indexes WHERE relid = 'ropeway.jobs'::regclass"
        )
        return Reads(table["seq_scan"], table["seq_tup_read"], {row[0]: row[1] for row in indexes})

    async def of(self, call: Awaitable[Any]) -> tuple[Any, Reads]:
        before = await self.look()
        answer = await call
        after = await self.look()
        return answer, Reads(
            after.scans - before.scans,
            after.scanned - before.scanned,
            {name: number - before.by_index[name] for name, number in after.by_index.items()},
        )


async def fill(engine: PostgresEngine, number: int = JOBS, queues: Sequence[str] = ("default",)) -> None:
    payload = b'"' + b"x" * 98 + b'"'
    jobs = [
        new_job(payload=payload, queue=queues[n % len(queues)], priority=5 if len(queues) == 1 else 1 + n % 4)
        for n in range(number)
    ]
    for start in range(0, number, 10_000):
        await engine.enqueue(jobs[start : start + 10_000])


async def make_plans(engine: PostgresEngine) -> None:
    """Every statement of the hot path, often enough, while there is nothing to find."""
    lease = Lease(ids.token(), 1, ids.token())
    usual, engine.orders = engine.orders, PriorityOrders(60.0, 0.0)  # looks up the waits at each call
    for _ in range(SETTLE_DOWN):
        engine.cursors.disturb("default", "default")
        await engine.lease(["default"], BATCH, worker())
        for outcome in _OUTCOMES:
            await engine.settle([Settlement(lease, outcome)])
        for outcome in _OUTCOMES[1:]:
            move = decide(JobFacts(1, 5, 0, 0, None), outcome, 0.0, engine.rules.decisions)
            assert await engine.apply("default", [Change(lease, move)]) == [None]
        await engine.heartbeat([lease])
        await engine.heartbeat_owner(ids.token())
        await engine.progress([(lease, Progress(1))])
        await engine.log([(lease, LogLine("hello"))])
        await engine.cancel([lease.job_id])
        await engine.end_grants(ids.token())
        await engine.rescue()
        await engine.expire()
        await engine.place(lease.job_id)
    engine.orders = usual


_OUTCOMES: list[Outcome] = [Done(), Failed(BOOM), Snoozed(delay=60.0), Released(), Lost()]


@asynccontextmanager
async def pinned(url: str) -> AsyncIterator[None]:
    """A report that stays open: no dead row and no dead index entry can be removed."""
    async with connected(url) as report, report.transaction(isolation="repeatable_read"):
        await report.fetch("SELECT count(*) FROM ropeway.meta")
        yield


@asynccontextmanager
async def emptied(url: str, how: str) -> AsyncIterator[tuple[PostgresEngine, Meter]]:
    """An engine whose plans were made for an empty table, which then is anything but empty."""
    async with connected(url) as admin, opened(url) as engine:
        await admin.execute("ALTER TABLE ropeway.jobs SET (autovacuum_enabled = off)")
        await fill(engine)
        if how == "truncated":
            await admin.execute("DELETE FROM ropeway.jobs")
            await eventually(lambda: _vacuumed_away(admin))
        async with pinned(url):
            if how == "analysed":
                await admin.execute("DELETE FROM ropeway.jobs")
                await admin.execute("ANALYZE ropeway.jobs")
            pages, tuples = await admin.fetchrow(
                "SELECT relpages, reltuples FROM pg_class WHERE oid = 'ropeway.jobs'::regclass"
            )
            assert tuples == 0
            assert (pages == 0) == (how == "truncated"), "the statistics are not what this test is about"
            await make_plans(engine)
            # Dead entries before the live ones, in every index, and not within the set-back of the cursor.
            await fill(engine)
            await admin.execute("DELETE FROM ropeway.jobs")
            cleared = await engine.now()

            async def later() -> bool:
                return await engine.now() > cleared + timedelta(milliseconds=250)

            await eventually(later)
            await fill(engine)
            yield engine, Meter(admin, engine)


async def _vacuumed_away(admin: asyncpg.Connection) -> bool:
    """A vacuum leaves the last pages alone while anyone on this server looks at an older state of things."""
    await admin.execute("VACUUM ANALYZE ropeway.jobs")
    return bool(await admin.fetchval("SELECT pg_relation_size('ropeway.jobs') = 0"))


def check(reads: Reads, jobs: int, what: str) -> None:
    assert reads.scans == 0, f"{what}: a sequential scan of jobs, {reads.scanned} rows"
    assert reads.entries <= 6 * jobs + 50, f"{what}: {reads.by_index} for {jobs} jobs"


async def take(engine: PostgresEngine, meter: Meter, number: int = BATCH) -> list[Leased]:
    """A claim by a warm cursor. One of three may be a deep sweep: then the clock said so, not the plan."""
    least: Reads | None = None
    leased: list[Leased] = []
    for _ in range(3):
        leased, reads = await meter.of(lease_some(engine, number))
        assert len(leased) == number
        assert reads.scans == 0, f"claim: a sequential scan of jobs, {reads.scanned} rows"
        least = reads if least is None or reads.entries < least.entries else least
    # What it walks again are entries of jobs that were leased within the set-back of the cursor, not dead ones.
    assert least is not None
    assert least.entries <= JOBS / 8, f"claim: {least.by_index}"
    return leased


@pytest.mark.parametrize("how", ["analysed", "truncated"])
async def test_no_call_of_the_hot_path_walks_the_table(fresh_database: str, how: str) -> None:
    async with emptied(fresh_database, how) as (engine, meter):
        await lease_some(engine, 1)
        leased = await take(engine, meter)

        answers, reads = await meter.of(engine.settle([Settlement(each.lease, Done()) for each in leased]))
        assert all(isinstance(answer, Settled) for answer in answers)
        check(reads, 0, "complete, where the claim has left the rows")

        leased = await take(engine, meter)
        completions = [Completion(each.lease, clean_result(None, max_bytes=1)) for each in leased]
        written, reads = await meter.of(engine._complete_many("default", completions, []))
        assert all(written)
        check(reads, BATCH, "complete, by key")

        leased = await take(engine, meter)
        completion = Completion(leased[0].lease, clean_result(None, max_bytes=1))
        written, reads = await meter.of(engine._complete_one("default", completion))
        assert written
        check(reads, 1, "complete_one")

        leases = [each.lease for each in leased[1:]]
        known, reads = await meter.of(engine.facts("default", leases))
        assert None not in known
        check(reads, len(leases), "facts")

        _, reads = await meter.of(engine.last_tickets("default", [lease.job_id for lease in leases]))
        check(reads, len(leases), "last_tickets")

        beats, reads = await meter.of(engine.heartbeat(leases))
        assert all(isinstance(beat, Beat) for beat in beats)
        check(reads, len(leases), "heartbeat")

        _, reads = await meter.of(engine.progress([(lease, Progress(1)) for lease in leases]))
        check(reads, len(leases), "progress")

        _, reads = await meter.of(engine.log([(lease, LogLine("hello")) for lease in leases]))
        check(reads, len(leases), "log")

        for outcome in (Failed(BOOM), Snoozed(delay=60.0), Failed(BOOM, retry=False)):
            leased = await take(engine, meter)
            answers, reads = await meter.of(engine.settle([Settlement(each.lease, outcome) for each in leased]))
            assert all(isinstance(answer, Settled) for answer in answers)
            check(reads, 2 * BATCH, f"apply_transitions of {type(outcome).__name__}")

        leased = await take(engine, meter)
        changed, reads = await meter.of(engine.cancel([each.job.id for each in leased]))
        assert len(changed) == BATCH
        check(reads, 2 * BATCH, "cancel")

        owner = worker()
        batch = await engine.lease(["default"], BATCH, owner)
        _, reads = await meter.of(engine.heartbeat_owner(owner.owner))
        check(reads, 0, "heartbeat_owner")
        rescued, reads = await meter.of(engine.end_grants(owner.owner))
        assert len(rescued) == len(batch.leases)
        check(reads, 2 * BATCH, "end_grants")

        _, reads = await meter.of(engine.rescue())
        check(reads, 0, "rescue")
        _, reads = await meter.of(engine.expire())
        check(reads, 0, "expire")
        _, reads = await meter.of(engine._learn_waits("default", ["elsewhere"]))
        check(reads, 9, "waits")
        _, reads = await meter.of(engine._next_due_in("default", ["elsewhere"]))
        check(reads, 9, "next_due")

        # From the start of the lane, dead entries and all: it has no cursor. But by the lane's index.
        (last,) = await engine.enqueue([new_job()])
        _, reads = await meter.of(engine.place(last.id, cap=BATCH))
        assert reads.scans == 0, f"place: a sequential scan of jobs, {reads.scanned} rows"
        assert {name for name, number in reads.by_index.items() if number > 1} == {"jobs_ready"}


async def test_a_cursor_spares_a_claim_the_dead_entries(fresh_database: str) -> None:
    """20,000 jobs were leased and completed under an open report; the next ones are found at once."""
    async with opened(fresh_database) as engine, connected(fresh_database) as admin, pinned(fresh_database):
        await admin.execute("ALTER TABLE ropeway.jobs SET (autovacuum_enabled = off)")
        meter = Meter(admin, engine)
        await fill(engine)
        while leased := await lease_some(engine, 1_000):
            await engine.settle([Settlement(each.lease, Done()) for each in leased])
            last = leased[-1].job.run_at

        async def past() -> bool:
            return await engine.now() > last + timedelta(milliseconds=250)

        await eventually(past)
        await fill(engine, 1_000)
        await lease_some(engine, BATCH)
        await take(engine, meter)
        # Without it, or when it is swept, the lane is walked from its start: the test would see that.
        engine.cursors.disturb("default", "default")
        _, reads = await meter.of(lease_some(engine, BATCH))
        assert reads.entries > JOBS / 2


async def test_many_queues_and_priorities_are_not_sorted(fresh_database: str) -> None:
    """100 jobs out of 80 lanes: each lane is looked at in turn, none of them is read to its end."""
    queues = [f"q{number}" for number in range(20)]
    async with opened(fresh_database) as engine, connected(fresh_database) as admin:
        await fill(engine, JOBS, queues)
        await admin.execute("ANALYZE ropeway.jobs")
        meter = Meter(admin, engine)
        for order in (queues, queues[::-1]):
            leased, reads = await meter.of(lease_some(engine, BATCH, *order))
            assert {each.job.queue for each in leased} == {order[0]}
            assert reads.scans == 0
            assert reads.entries <= 1_500, reads.by_index


async def test_leases_are_hot_updates(fresh_database: str) -> None:
    async with opened(fresh_database) as engine, connected(fresh_database) as admin:
        await fill(engine)
        for _ in range(JOBS // 500):
            assert len(await lease_some(engine, 500)) == 500
        await Meter(admin, engine).look()
        row = await admin.fetchrow(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'ropeway.jobs'::regclass"
        )
        assert row["n_tup_upd"] == JOBS
        assert row["n_tup_hot_upd"] == JOBS
