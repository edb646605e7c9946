"""Daily partitions: made ahead, made again when missing, dropped without anyone waiting."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from ropeway.core.errors import Unavailable
from ropeway.core.events import EventPage
from ropeway.core.states import State
from ropeway.engines.postgres import PostgresEngine, store
from ropeway.engines.protocol import Pruned
from ropeway.testing.conformance.kit import (
    ack,
    check_log,
    enqueue_many,
    enqueue_one,
    lease_one,
    lease_some,
    nack,
    new_job,
    state_of,
)
from tests.engines.pg_kit import connected, eventually, opened

PARENTS = ("archive_succeeded", "archive_dead", "archive_cancelled", "events", "event_packs")
LONG_AGO = (date(2020, 1, 1), date(2020, 1, 2))


async def days(connection: asyncpg.Connection, parent: str) -> set[date]:
    """The days that have a partition."""
    rows = await connection.fetch(
        """SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
           WHERE i.inhparent = ('ropeway.' || $1)::regclass""",
        parent,
    )
    return {datetime.strptime(row[0][-8:], "%Y%m%d").replace(tzinfo=UTC).date() for row in rows}


async def tables_of(connection: asyncpg.Connection, day: date) -> list[str]:
    """Every table of a day, attached or not."""
    rows = await connection.fetch(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ $1 ORDER BY 1", f"_{day:%Y%m%d}$"
    )
    return [row[0] for row in rows]


async def take_away_all(connection: asyncpg.Connection, how: str) -> None:
    for parent in PARENTS:
        for day in await days(connection, parent):
            child = f"ropeway.{parent}_{day:%Y%m%d}"
            if how != "dropped":
                await connection.execute(f"ALTER TABLE ropeway.{parent} DETACH PARTITION {child}")
            if how != "detached":
                await connection.execute(f"DROP TABLE {child}")


class TestMakingPartitions:
    async def test_they_reach_14_days_ahead(self, fresh_database: str) -> None:
        async with PostgresEngine(fresh_database) as engine, connected(fresh_database) as connection:
            today = (await engine.now()).date()
            wanted = {today + timedelta(days=ahead) for ahead in range(15)}
            for parent in PARENTS:
                assert wanted <= await days(connection, parent), parent
            assert await engine.ensure_partitions() == 0

    async def test_no_index_of_the_log_is_left_half_empty(self, fresh_database: str) -> None:
        """Stores that were migrated by 0016 had room in it that nothing takes any more."""
        async with opened(fresh_database), connected(fresh_database) as connection:
            told = await connection.fetchval(
                """SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                   WHERE n.nspname = 'ropeway' AND c.relname LIKE 'events%'
                     AND c.reloptions::text LIKE '%fillfactor%'"""
            )
            assert told == 0

    @pytest.mark.parametrize("how", ["dropped", "detached"])
    @pytest.mark.parametrize(
        "verb", ["enqueue", "enqueue key", "lease", "ack", "ack alone", "nack", "cancel", "rescue"]
    )
    async def test_a_call_that_misses_one_makes_it_and_goes_on(
        self, fresh_database: str, verb: str, how: str
    ) -> None:
        async with opened(fresh_database) as engine, connected(fresh_database) as connection:
            id = await enqueue_one(engine)
            leased = await lease_one(engine) if verb not in ("lease", "cancel") else None
            await take_away_all(connection, how)
            match verb:
                case "enqueue":
                    await enqueue_one(engine)
                case "enqueue key":
                    await enqueue_one(engine, idempotency_key="k")
                case "lease":
                    await lease_one(engine)
                case "ack":
                    await ack(engine, leased)
                case "ack alone":
                    await _complete_alone(engine, leased)
                case "nack":
                    assert (await nack(engine, leased, retry=False)).state is State.DEAD
                case "cancel":
                    await engine.cancel([id])
                    assert await state_of(engine, id) is State.CANCELLED
                case "rescue":
                    await connection.execute("UPDATE ropeway.grants SET expires_at = '-infinity'")
                    assert [job.id for job in await engine.rescue()] == [id]
            today = (await engine.now()).date()
            for parent in PARENTS:
                assert {today, today + timedelta(days=1)} <= await days(connection, parent)

    async def test_a_handlers_own_transaction_that_misses_one_is_told_and_finds_it_next_time(
        self, fresh_database: str
    ) -> None:
        async with opened(fresh_database) as engine, connected(fresh_database) as connection:
            id = await enqueue_one(engine)
            leased = await lease_one(engine)
            await take_away_all(connection, "dropped")
            with pytest.raises(Unavailable, match="partition"):
                async with engine.transaction(leased.lease, lambda: None):
                    pass
            async with engine.transaction(leased.lease, lambda: None):
                pass
            assert await state_of(engine, id) is State.SUCCEEDED

    async def test_someone_elses_transaction_finds_them_however_long_an_engine_is_open(
        self, fresh_database: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with opened(fresh_database) as engine, connected(fresh_database) as connection:
            id = await enqueue_one(engine)
            leased = await lease_one(engine)
            await take_away_all(connection, "dropped")
            monkeypatch.setattr(store, "PARTITIONS_KNOWN", -1.0)  # as if it had been open for days
            async with connection.transaction():
                (other,) = await engine.enqueue_in(connection, [new_job()])
            await take_away_all(connection, "dropped")
            async with connection.transaction():
                await engine.settle_in(connection, leased.lease)
            assert await state_of(engine, id) is State.SUCCEEDED
            assert await state_of(engine, other) is State.QUEUED

    async def test_many_processes_make_them_at_once(self, fresh_database: str) -> None:
        engines = [PostgresEngine(fresh_database, days_ahead=3) for _ in range(6)]
        try:
            async with connected(fresh_database) as connection:
                await take_away_all(connection, "dropped")
                made = await asyncio.gather(*(engine.ensure_partitions() for engine in engines))
                assert sum(made) == len(PARENTS) * 5
                assert len(await days(connection, "events")) == 5
        finally:
            for engine in engines:
                await engine.close()

    async def test_an_open_report_does_not_keep_one_from_being_made(self, fresh_database: str) -> None:
        async with opened(fresh_database) as engine, connected(fresh_database, times=2) as (report, connection):
            async with report.transaction():
                await report.fetch("SELECT * FROM ropeway.archive")
                await report.fetch("SELECT * FROM ropeway.events")
                await connection.execute("SELECT ropeway.ensure_partitions($1, $1)", LONG_AGO[0])
            assert len(await tables_of(connection, LONG_AGO[0])) == len(PARENTS)
            assert (await engine.prune()).jobs == 0


async def _complete_alone(engine: PostgresEngine, leased: Any) -> None:
    """The ack of a single job by itself, as after a batch that did not find its row."""
    from ropeway.core.payload import clean_result
    from ropeway.engines.settling import Completion

    assert await engine._complete_one("default", Completion(leased.lease, clean_result(None, max_bytes=100)))


async def make_old_jobs(connection: asyncpg.Connection) -> None:
    """Ended jobs and events of two days long ago."""
    await connection.execute("SELECT ropeway.ensure_partitions($1, $2)", *LONG_AGO)
    for day in LONG_AGO:
        at = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
        for state, reason in (("succeeded", None), ("dead", "rejected"), ("cancelled", "requested")):
            await connection.execute(
                """INSERT INTO ropeway.archive
                       (tenant, id, finished_at, run_at, created_at, attempt, event_seq, priority, attempts,
                        max_attempts, failures, lost, state, queue, type, reason, payload)
                   VALUES ('default', gen_random_uuid(), $1, $1, $1, 1, 3, 5, 1, 5, 0, 0, $2, 'q', 't', $3, '')""",
                at, state, reason,
            )  # fmt: skip
        await connection.execute(
            """INSERT INTO ropeway.events (xid, at, job_id, seq, attempt, event, tenant, queue, type)
               VALUES (1, $1, gen_random_uuid(), 1, 0, 'job.enqueued', 'default', 'q', 't')""",
            at,
        )


async def nothing_old_is_left(connection: asyncpg.Connection) -> bool:
    return not await tables_of(connection, LONG_AGO[0]) and not await tables_of(connection, LONG_AGO[1])


class TestDroppingPartitions:
    async def test_old_ones_go(self, fresh_database: str) -> None:
        async with opened(fresh_database) as engine, connected(fresh_database) as connection:
            await make_old_jobs(connection)
            id = await enqueue_one(engine)
            assert await engine.prune() == Pruned(jobs=6, events=2)
            assert await nothing_old_is_left(connection)
            assert await engine.prune() == Pruned()
            assert len(await check_log(engine, id)) == 1

    @pytest.mark.parametrize("report_on", ["the parents", "the partitions"])
    async def test_a_report_stops_neither_completions_nor_the_next_prune(
        self, fresh_database: str, report_on: str
    ) -> None:
        async with opened(fresh_database) as engine, connected(fresh_database, times=2) as (report, connection):
            await make_old_jobs(connection)
            await enqueue_many(engine, 20)
            leased = await lease_some(engine, 20)
            reading = report.transaction()
            await reading.start()
            for parent in PARENTS:
                tables = [parent] if report_on == "the parents" else [f"{parent}_{day:%Y%m%d}" for day in LONG_AGO]
                for table in tables:
                    await report.fetch(f"SELECT * FROM ropeway.{table}")
            pruning = asyncio.create_task(engine.prune())
            await eventually(lambda: _detaching(connection), what="a detach waits for the report")
            # Everything goes on while it waits: one job after the other is finished, read, listed.
            finished = 0
            for each in leased:
                if pruning.done():
                    break
                assert not await _parent_wanted(connection), "everyone would have to wait behind the detach"
                await ack(engine, each)
                assert await state_of(engine, each.job.id) is State.SUCCEEDED
                finished += 1
            assert finished >= 3, "the prune came to an end before three jobs did"
            assert await pruning == Pruned(), "nothing could be dropped"
            assert await engine.prune() == Pruned(), "nor can it now, and that is no error"
            await reading.rollback()
            after = await engine.prune()
            assert (after.jobs, after.events) == (6, 2)
            assert await nothing_old_is_left(connection)

    async def test_a_detach_that_was_left_pending_is_finished(self, fresh_database: str) -> None:
        """A pruner was killed in the middle of one."""
        async with (
            opened(fresh_database) as engine,
            connected(fresh_database, times=3) as (report, killed, connection),
        ):
            await make_old_jobs(connection)
            async with report.transaction():
                await report.fetch("SELECT * FROM ropeway.archive")
                await killed.execute("SET lock_timeout = '50ms'")
                with pytest.raises(asyncpg.LockNotAvailableError):
                    await killed.execute(
                        "ALTER TABLE ropeway.archive_dead "
                        "DETACH PARTITION ropeway.archive_dead_20200101 CONCURRENTLY"
                    )
            assert await connection.fetchval("SELECT count(*) FROM pg_inherits WHERE inhdetachpending") == 1
            # Calls go on meanwhile.
            await enqueue_one(engine)
            await nack(engine, await lease_one(engine), retry=False)
            assert (await engine.prune()).jobs == 6
            assert await nothing_old_is_left(connection)

    async def test_a_partition_that_was_detached_but_not_dropped_goes_too(self, fresh_database: str) -> None:
        """A pruner was killed between the two."""
        async with opened(fresh_database) as engine, connected(fresh_database) as connection:
            await make_old_jobs(connection)
            for parent in PARENTS:
                await connection.execute(
                    f"ALTER TABLE ropeway.{parent} DETACH PARTITION ropeway.{parent}_20200101 CONCURRENTLY"
                )
            await engine.prune()
            assert await nothing_old_is_left(connection)

    async def test_many_processes_prune_at_once(self, fresh_database: str) -> None:
        engines = [PostgresEngine(fresh_database, days_ahead=1) for _ in range(5)]
        try:
            async with connected(fresh_database) as connection:
                await make_old_jobs(connection)
                removed = await asyncio.gather(*(engine.prune() for engine in engines))

                async def all_gone() -> bool:
                    """They stand in one another's way and give up soon; whoever is alone gets through."""
                    removed.append(await engines[0].prune())
                    return await nothing_old_is_left(connection)

                await eventually(all_gone)
                assert sum(pruned.jobs for pruned in removed) == 6, "each was counted once"
        finally:
            for engine in engines:
                await engine.close()

    async def test_no_setting_stays_behind_on_a_pooled_connection(
        self, fresh_database: str, pgbouncer: Any
    ) -> None:
        """Behind a pooler the next client gets this backend."""
        from urllib.parse import urlsplit

        pooled = pgbouncer.url_for(urlsplit(fresh_database).path.lstrip("/"))
        async with opened(pooled + "?pooled=1") as engine, connected(fresh_database) as connection:
            await make_old_jobs(connection)
            assert (await engine.prune()).jobs == 6
            other = await asyncpg.connect(pooled, statement_cache_size=0)
            try:
                # As many at once as the pool has backends, so that each of them is asked.
                found = set()
                for _ in range(30):
                    found.add(await other.fetchval("SELECT current_setting('lock_timeout')"))
                assert found == {"0"}
            finally:
                await other.close()

    async def test_a_reader_of_the_log_is_told_that_its_place_is_gone(self, fresh_database: str) -> None:
        from ropeway.core.errors import PositionExpired

        async with opened(fresh_database) as engine, connected(fresh_database) as connection:
            before = await engine.tail_position()
            await make_old_jobs(connection)
            await engine.prune()
            with pytest.raises(PositionExpired):
                await engine.tail(before)
            assert (await engine.tail()).events == EventPage([], "").events


async def _detaching(connection: asyncpg.Connection) -> bool:
    return bool(
        await connection.fetchval(
            """SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'
               AND query LIKE '%DETACH%' AND wait_event_type = 'Lock'"""
        )
    )


async def _parent_wanted(connection: asyncpg.Connection) -> bool:
    """Whether someone wants, or has, a whole partitioned table for itself."""
    return bool(
        await connection.fetchval(
            """SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
               WHERE l.mode = 'AccessExclusiveLock' AND c.relkind = 'p'"""
        )
    )
