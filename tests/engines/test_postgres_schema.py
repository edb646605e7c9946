"""The schema agrees with core, whatever it is called."""

from __future__ import annotations

import re

import asyncpg
import pytest

from ropeway.core import fields
from ropeway.core.job import DEFAULT_TIMEOUT
from ropeway.core.states import TERMINAL_STATES, CancelReason, DeadReason, EventName, State
from ropeway.core.unique import KeyKind
from ropeway.engines.postgres import PostgresEngine
from ropeway.testing.conformance.kit import ack, check_log, enqueue_many, enqueue_one, lease_one, leased_ids, nack
from tests.engines.pg_kit import connected, opened


class TestConstraints:
    async def test_the_events_are_those_of_core(self, database: str) -> None:
        async with connected(database) as connection:
            rows = await connection.fetch("SELECT unnest(enum_range(NULL::ropeway.event))::text")
        assert {row[0] for row in rows} == set(EventName)

    async def test_the_archive_has_a_part_for_each_end(self, database: str) -> None:
        async with connected(database) as connection:
            rows = await connection.fetch(
                """SELECT c.relname, pg_get_expr(c.relpartbound, c.oid) AS bound
                   FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                   WHERE i.inhparent = 'ropeway.archive'::regclass"""
            )
        assert {row["relname"] for row in rows} == {f"archive_{state}" for state in TERMINAL_STATES}
        assert {row["bound"] for row in rows} == {f"FOR VALUES IN ('{state}')" for state in TERMINAL_STATES}

    @pytest.mark.parametrize(
        ("table", "column", "values"),
        [
            ("archive_dead", "reason", DeadReason),
            ("archive_cancelled", "reason", CancelReason),
            ("keys", "kind", KeyKind),
        ],
    )
    async def test_the_words_are_those_of_core(self, database: str, table: str, column: str, values: type) -> None:
        check = await check_of(database, table, column)
        assert set(re.findall(r"'(\w+)'", check)) == set(values)

    @pytest.mark.parametrize(
        ("column", "lowest", "highest"),
        [("priority", 1, 9), ("max_attempts", 1, fields.MAX_ATTEMPTS_LIMIT)],
    )
    async def test_the_bounds_are_those_of_core(
        self, database: str, column: str, lowest: int, highest: int
    ) -> None:
        check = await check_of(database, "jobs", column)
        assert [int(number) for number in re.findall(r"[<>]= (\d+)", check)] == [lowest, highest]

    async def test_a_heartbeat_knows_the_default_timeout(self, database: str) -> None:
        async with connected(database) as connection:
            source = await connection.fetchval(
                "SELECT prosrc FROM pg_proc WHERE oid = 'ropeway.heartbeat'::regproc"
            )
        assert f"coalesce(j.timeout, {DEFAULT_TIMEOUT:.0f})" in source

    @pytest.mark.parametrize(
        "change",
        [
            "UPDATE ropeway.jobs SET priority = 0",
            "UPDATE ropeway.jobs SET priority = 10",
            "UPDATE ropeway.jobs SET max_attempts = 26",
            "UPDATE ropeway.jobs SET attempts = -1",
            "UPDATE ropeway.jobs SET attempt = -1",
            "UPDATE ropeway.jobs SET event_seq = 0",
            "UPDATE ropeway.jobs SET queue = ''",
            "UPDATE ropeway.jobs SET type = ''",
            "UPDATE ropeway.jobs SET payload = NULL",
            "UPDATE ropeway.archive SET reason = 'bored' WHERE state = 'dead'",
            "UPDATE ropeway.archive SET reason = NULL WHERE state = 'dead'",
            "UPDATE ropeway.archive SET state = 'queued'",
        ],
    )
    async def test_what_core_would_not_write_is_refused(self, database: str, change: str) -> None:
        async with opened(database) as engine, connected(database) as connection:
            await enqueue_many(engine, 2)
            await nack(engine, await lease_one(engine), retry=False)
            with pytest.raises((asyncpg.IntegrityConstraintViolationError, asyncpg.RaiseError)):
                await connection.execute(change)

    async def test_no_column_that_a_lease_changes_is_in_an_index(self, database: str) -> None:
        """Or leases would not be HOT updates, and cost a third more."""
        changed = {
            "attempt",
            "attempts",
            "event_seq",
            "lease_token",
            "worker",
            "started_at",
            "updated_at",
            "progress",
        }
        async with connected(database) as connection:
            indexes = await connection.fetch(
                "SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = 'ropeway.jobs'::regclass"
            )
        for (definition,) in indexes:
            assert not changed & set(re.findall(r"\w+", definition)), definition


async def check_of(url: str, table: str, column: str) -> str:
    """The check on one column."""
    async with connected(url) as connection:
        rows = await connection.fetch(
            """SELECT pg_get_constraintdef(c.oid) FROM pg_constraint c
               JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = c.conkey[1]
               WHERE c.conrelid = ('ropeway.' || $1)::regclass AND c.contype = 'c' AND a.attname = $2""",
            table,
            column,
        )
    assert len(rows) == 1, rows
    return str(rows[0][0])


class TestSchemaNames:
    async def test_two_schemas_in_one_database_are_strangers(self, fresh_database: str) -> None:
        engine = PostgresEngine(fresh_database, schema="my_jobs", days_ahead=1)
        await engine.migrations.up()
        async with engine as mine, opened(fresh_database) as theirs:
            subscription = await theirs.subscribe(["default"])
            while await subscription.wait(0.05):
                pass
            id = await enqueue_one(mine, idempotency_key="k")
            other = await enqueue_one(theirs, idempotency_key="k")
            assert other != id
            assert await theirs.get([id]) == [None]
            assert await leased_ids(theirs) == [other]
            leased = await lease_one(mine)
            assert leased.job.id == id
            await ack(mine, leased)
            assert (await check_log(mine, id))[-1].state is State.SUCCEEDED
            assert {event.job_id for event in (await mine.tail()).events} == {id}
            assert {event.job_id for event in (await theirs.tail()).events} == {other}
            await mine.prune()
            async with connected(fresh_database) as connection:
                sql = await connection.fetchval("SELECT my_jobs.enqueue('t', '1')")
                assert await leased_ids(mine) == [sql]
                assert await leased_ids(theirs) == []

    async def test_a_wake_up_stays_in_its_schema(self, fresh_database: str) -> None:
        engine = PostgresEngine(fresh_database, schema="my_jobs", days_ahead=1)
        await engine.migrations.up()
        async with (
            engine as mine,
            opened(fresh_database) as theirs,
            opened(fresh_database, schema="my_jobs") as waiting,
        ):
            heard, deaf = await waiting.subscribe(["default"]), await theirs.subscribe(["default"])
            for subscription in (heard, deaf):
                while await subscription.wait(0.05):
                    pass
            await enqueue_one(mine)
            assert await heard.wait(10)
            assert not await deaf.wait(0.05)
