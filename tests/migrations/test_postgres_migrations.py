"""PostgreSQL's migrations: applied once, by whoever comes first, however many come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import pytest

from ropeway.core.errors import ConfigurationError
from ropeway.engines import migrate
from ropeway.engines.migrate import Migration
from ropeway.engines.postgres import PostgresEngine
from ropeway.engines.postgres.migrating import PACKAGE, PostgresMigrations
from ropeway.runtime import ids
from ropeway.testing.conformance.kit import ack, enqueue_one, lease_one
from tests.engines.pg_kit import connected, eventually, waiting_for_lock

ALL = [f"{migration.number:04}_{migration.name}" for migration in migrate.shipped(PACKAGE)]

#: Everything about a schema that a migration can make, as text.
CATALOG = """
SELECT concat_ws(' ', 'table', c.relname, c.relkind, array_to_string(c.reloptions, ','), pg_get_partkeydef(c.oid),
                 pg_get_expr(c.relpartbound, c.oid))
FROM pg_class c WHERE c.relnamespace = $1::text::regnamespace AND c.relkind IN ('r', 'p', 'S')
UNION ALL
SELECT concat_ws(' ', 'column', c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
                 a.attidentity, a.attstorage, pg_get_expr(d.adbin, d.adrelid), n.collname)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
LEFT JOIN pg_collation n ON n.oid = a.attcollation
WHERE c.relnamespace = $1::text::regnamespace AND c.relkind IN ('r', 'p')
UNION ALL
SELECT concat_ws(' ', 'constraint', conrelid::regclass, pg_get_constraintdef(oid))
FROM pg_constraint WHERE connamespace = $1::text::regnamespace
UNION ALL
SELECT concat_ws(' ', 'index', indexdef) FROM pg_indexes WHERE schemaname = $1::text
UNION ALL
SELECT concat_ws(' ', 'function', pg_get_functiondef(oid)) FROM pg_proc
WHERE pronamespace = $1::text::regnamespace
UNION ALL
SELECT concat_ws(' ', 'enum', t.typname, e.enumlabel, e.enumsortorder)
FROM pg_type t JOIN pg_enum e ON e.enumtypid = t.oid WHERE t.typnamespace = $1::text::regnamespace
ORDER BY 1
"""


@asynccontextmanager
async def migrations_of(url: str, **options: Any) -> AsyncIterator[PostgresMigrations]:
    engine = PostgresEngine(url, **{"days_ahead": 1, **options})
    try:
        yield engine.migrations
    finally:
        await engine.close()


async def catalog(url: str, schema: str = "ropeway") -> list[str]:
    async with connected(url) as connection:
        found = [row[0] for row in await connection.fetch(CATALOG, schema)]
        assert len(found) > 200
        return found


async def recorded(url: str) -> list[tuple[int, str, str]]:
    async with connected(url) as connection:
        rows = await connection.fetch("SELECT number, name, checksum FROM ropeway.migrations ORDER BY number")
        return [tuple(row) for row in rows]


async def test_up_from_nothing(postgres_database: str) -> None:
    told: list[str] = []
    async with migrations_of(postgres_database) as migrations:
        before = await migrations.status()
        assert (before.applied, before.pending) == ([], ALL)
        assert await migrations.up(told.append) == ALL
        assert told == ALL
        after = await migrations.status()
        assert (after.applied, after.pending) == (ALL, [])
    async with PostgresEngine(postgres_database, days_ahead=1) as engine:
        await enqueue_one(engine)
        await ack(engine, await lease_one(engine))


async def test_up_twice_changes_nothing(postgres_database: str) -> None:
    async with migrations_of(postgres_database) as migrations:
        await migrations.up()
        before = (await catalog(postgres_database), await recorded(postgres_database))
        assert await migrations.up() == []
    assert (await catalog(postgres_database), await recorded(postgres_database)) == before


@pytest.mark.parametrize("schema", ["ropeway", "my_jobs"])
async def test_the_text_applied_by_hand_is_the_same(make_postgres_database: Any, schema: str) -> None:
    """`ropeway migrate sql`, for those who let nobody but themselves change a schema."""
    by_hand, by_runner = make_postgres_database(), make_postgres_database()
    async with migrations_of(by_runner, schema=schema) as migrations:
        await migrations.up()
        text = migrations.text()
    with psycopg.connect(by_hand) as connection:
        connection.execute(text.encode())
    async with migrations_of(by_hand, schema=schema) as migrations:
        assert (await migrations.status()).pending == []
        assert await migrations.up() == [], "only partitions were left to make"
    assert await catalog(by_hand, schema) == await catalog(by_runner, schema)
    if schema == "ropeway":
        assert await recorded(by_hand) == await recorded(by_runner)


async def test_five_runners_at_once_apply_each_once(postgres_database: str) -> None:
    engines = [PostgresEngine(postgres_database, days_ahead=1) for _ in range(5)]
    try:
        applied = await asyncio.gather(*(engine.migrations.up() for engine in engines))
    finally:
        for engine in engines:
            await engine.close()
    assert sorted(name for names in applied for name in names) == ALL
    assert len(await recorded(postgres_database)) == len(ALL)
    async with PostgresEngine(postgres_database, days_ahead=1) as engine:
        await enqueue_one(engine)


async def test_a_changed_text_is_refused(postgres_database: str) -> None:
    async with migrations_of(postgres_database) as migrations, connected(postgres_database) as connection:
        await migrations.up()
        await connection.execute("UPDATE ropeway.migrations SET checksum = 'other' WHERE number = 2")
        for call in (migrations.status, migrations.up):
            with pytest.raises(ConfigurationError, match="0002"):
                await call()
        assert await connection.fetchval("SELECT holder FROM ropeway.migration_lock") is None, (
            "the lock was given back"
        )
        engine = PostgresEngine(postgres_database)
        with pytest.raises(ConfigurationError, match="0002"):
            async with engine:
                pass


async def test_a_newer_schema_is_fine(postgres_database: str) -> None:
    """G13: the version before this one goes on while a newer one has migrated."""
    async with migrations_of(postgres_database) as migrations, connected(postgres_database) as connection:
        await migrations.up()
        await connection.execute("INSERT INTO ropeway.migrations VALUES (9999, 'from_the_future', 'x')")
        assert await migrations.up() == []
        assert (await migrations.status()).pending == []
        async with PostgresEngine(postgres_database, days_ahead=1) as engine:
            await enqueue_one(engine)


async def test_what_a_runner_left_half_done_is_finished(postgres_database: str) -> None:
    """It died between two migrations: each one is applied with its record or not at all."""
    async with migrations_of(postgres_database) as migrations, connected(postgres_database) as connection:
        await migrations._create_books()
        await migrations._apply(migrate.shipped(PACKAGE)[0])
        assert await migrations.up() == ALL[1:]
        assert len(await connection.fetch("SELECT FROM ropeway.migrations")) == len(ALL)


async def test_a_migration_that_fails_leaves_nothing(postgres_database: str) -> None:
    async with migrations_of(postgres_database) as migrations, connected(postgres_database) as connection:
        await migrations.up()
        before = await catalog(postgres_database)
        bad = Migration(len(ALL) + 1, "bad", "CREATE TABLE {schema}.half (n int); SELECT 1 / 0;", "x")
        with pytest.raises(asyncpg.DivisionByZeroError):
            await migrations._apply(bad)
        assert await catalog(postgres_database) == before
        assert len(await connection.fetch("SELECT FROM ropeway.migrations")) == len(ALL)


class TestTheLock:
    async def test_a_runner_that_died_is_taken_over(self, postgres_database: str) -> None:
        """Its lease is waited for, not its return."""
        async with migrations_of(postgres_database) as migrations, connected(postgres_database) as connection:
            await migrations._create_books()
            await connection.execute(
                "UPDATE ropeway.migration_lock SET holder = $1, expires_at = clock_timestamp() + interval '1 s'",
                ids.token(),
            )
            assert await asyncio.wait_for(migrations.up(), 20) == ALL

    async def test_a_runner_that_lives_is_waited_for(self, postgres_database: str) -> None:
        async with migrations_of(postgres_database) as migrations, connected(postgres_database) as connection:
            await migrations._create_books()
            other = ids.token()
            await migrations._lock(other)
            waiting = asyncio.create_task(migrations.up())

            async def asked() -> bool:
                return bool(
                    await connection.fetchval(
                        """SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                           AND pid <> pg_backend_pid() AND query LIKE '%migration_lock%'"""
                    )
                )

            await eventually(asked)
            assert not waiting.done()
            assert await connection.fetch("SELECT FROM ropeway.migrations") == []
            await connection.execute("UPDATE ropeway.migration_lock SET holder = NULL")
            assert await waiting == ALL

    async def test_a_runner_that_was_taken_over_stops(self, postgres_database: str) -> None:
        from ropeway.core.errors import Unavailable

        async with migrations_of(postgres_database) as migrations, connected(postgres_database) as connection:
            await migrations._create_books()
            holder = ids.token()
            await migrations._lock(holder)
            await connection.execute("UPDATE ropeway.migration_lock SET holder = $1", ids.token())
            with pytest.raises(Unavailable, match="took over"):
                await migrations._renew(holder)


class TestTablesInUse:
    """A migration that needs a table for itself lets the running versions go first, and tries again."""

    STEP = Migration(len(ALL) + 1, "add_a_column", "ALTER TABLE {schema}.jobs ADD COLUMN novelty text;", "x")

    async def test_it_waits_for_an_open_transaction(self, postgres_database: str) -> None:
        async with migrations_of(postgres_database) as migrations, connected(postgres_database) as reader:
            await migrations.up()
            reading = reader.transaction()
            await reading.start()
            await reader.fetch("SELECT * FROM ropeway.jobs")
            step = asyncio.create_task(migrations._apply(self.STEP))
            await waiting_for_lock(reader, "ADD COLUMN novelty")
            await reading.commit()
            await step
            assert (await recorded(postgres_database))[-1][1] == "add_a_column"

    async def test_it_gives_up_the_queue_and_comes_back(self, postgres_database: str) -> None:
        """While it waits for its lock everyone else waits behind it, so it may not wait long."""
        async with (
            migrations_of(postgres_database) as migrations,
            connected(postgres_database, times=2) as (reader, watcher),
        ):
            await migrations.up()
            async with PostgresEngine(postgres_database, days_ahead=1) as engine:
                reading = reader.transaction()
                await reading.start()
                await reader.fetch("SELECT * FROM ropeway.jobs")
                step = asyncio.create_task(migrations._apply(self.STEP))
                await waiting_for_lock(watcher, "ADD COLUMN novelty")
                # Stuck behind the migration, which is stuck behind the reader: until it lets go.
                await asyncio.wait_for(enqueue_one(engine), 10)
                assert not step.done()
                await waiting_for_lock(watcher, "ADD COLUMN novelty")
                await reading.commit()
                await step
                await enqueue_one(engine)

    async def test_statements_that_refuse_transactions_run_outside_of_one(self, postgres_database: str) -> None:
        step = Migration(
            len(ALL) + 1,
            "an_index",
            f"{migrate.OUTSIDE_TRANSACTION}\nCREATE INDEX CONCURRENTLY one ON {{schema}}.keys (job_id);\n"
            "CREATE INDEX CONCURRENTLY two ON {schema}.keys (enqueued_at);\n",
            "x",
        )
        async with migrations_of(postgres_database) as migrations:
            await migrations.up()
            await migrations._apply(step)
        assert (
            len([line for line in await catalog(postgres_database) if " one ON" in line or " two ON" in line]) == 2
        )


async def test_a_user_without_rights_is_told_whom_to_ask(postgres_database: str, postgres_server: Any) -> None:
    import os

    role = f"plain_migrator_{os.getpid()}"
    postgres_server._execute(f"CREATE ROLE {role} LOGIN")
    try:
        async with migrations_of(postgres_database.replace("ropeway@", f"{role}@", 1)) as migrations:
            with pytest.raises(ConfigurationError, match="migrate sql"):
                await migrations.up()
    finally:
        postgres_server._execute(f"DROP ROLE {role}")
