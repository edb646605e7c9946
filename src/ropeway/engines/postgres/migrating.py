"""Applies the numbered migrations of this engine, one at a time, under a lock that survives a pooler.

A session's advisory lock dies behind a transaction pooler, so the lock is a row with a lease: whoever holds it
renews it with each step, and a runner that died is waited for no longer than the lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

import asyncpg
import msgspec

from ropeway.core.errors import ConfigurationError, Unavailable
from ropeway.engines import migrate, sqlfile
from ropeway.engines.migrate import Migration
from ropeway.engines.postgres.store import PostgresStore
from ropeway.runtime import ids
from ropeway.runtime.faultpoints import fault

PACKAGE = "ropeway.engines.postgres.migrations"

#: Seconds that a runner may be silent before another may take over.
LOCK_SECONDS = 60

#: How long a step may wait for a table that is in use, try by try: whoever comes meanwhile waits behind it, so
#: running versions go first. The last tries outwait an autovacuum: it makes way for who has waited for a second.
STEP_LOCK_TIMEOUTS = ("150ms",) * 20 + ("2s",) * 5

#: Seconds that one step may take: building an index on a large table takes its time.
STEP_TIMEOUT = 4 * 3600.0


class Status(msgspec.Struct, frozen=True):
    """What is applied and what is missing."""

    applied: list[str]
    pending: list[str]


class PostgresMigrations:
    """The schema's versions."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._holes = store.holes

    async def status(self) -> Status:
        """Which migrations are applied; a schema that is not there has none."""
        applied = await self._applied()
        missing = migrate.pending(migrate.shipped(PACKAGE), applied)
        names = [_name(m) for m in migrate.shipped(PACKAGE)]
        pending = [_name(m) for m in missing]
        return Status([name for name in names if name not in pending], pending)

    def text(self) -> str:
        """Everything that `up` would run on an empty database, for those who apply it by hand."""
        steps = [self._fill(_BOOKS)]
        for migration in migrate.shipped(PACKAGE):
            steps.append(f"-- {_name(migration)}\n{self._fill(migration.text)}")
            values = f"({migration.number}, '{migration.name}', '{migration.checksum}')"
            steps.append(
                self._fill("INSERT INTO {schema}.migrations (number, name, checksum) VALUES ") + values + ";"
            )
        return "\n\n".join(steps) + "\n"

    async def up(self, tell: Callable[[str], None] = lambda _: None) -> list[str]:
        """Apply what is missing and make partitions ahead; answers the names of what was applied."""
        await self._create_books()
        holder = ids.token()
        await self._lock(holder)
        done = []
        try:
            for migration in migrate.pending(migrate.shipped(PACKAGE), await self._applied()):
                tell(_name(migration))
                await self._apply(migration)
                fault("migrate.between")
                await self._renew(holder)
                done.append(_name(migration))
        finally:
            await self._store.chores.fetch(self._fill(_UNLOCK), holder)
        await self._store.ensure_partitions()
        return done

    async def logs_routine(self) -> bool:
        """Whether the steps of jobs that go well are in the event log."""
        answer: bool = await self._store.chores.value(self._fill(_LOGS_ROUTINE), writes=False)
        return answer

    async def log_routine(self, on: bool) -> None:
        """Log the steps of jobs that go well (enqueued, started, completed) from now on, or no more.

        All processes on the store follow at once. What goes wrong is logged always.
        """
        async with self._store.chores.bare() as connection:
            await connection.execute(self._fill(_LOG_ROUTINE).replace("?", "true" if on else "false"))

    async def _applied(self) -> dict[int, str]:
        known = await self._store.chores.value(
            "SELECT to_regclass($1) IS NOT NULL", f"{self._store.schema}.migrations", writes=False
        )
        if not known:
            return {}
        rows = await self._store.chores.fetch(self._fill(_APPLIED), writes=False)
        return {row["number"]: row["checksum"] for row in rows}

    async def _create_books(self) -> None:
        """The schema and the two tables of the runner itself. Two first runners may meet: both try again."""
        for _ in range(5):
            try:
                async with self._store.chores.bare() as connection:
                    await connection.execute(self._fill(_BOOKS))
            except (asyncpg.UniqueViolationError, asyncpg.DuplicateTableError, asyncpg.DuplicateSchemaError):
                continue
            except asyncpg.InsufficientPrivilegeError as error:
                raise ConfigurationError(
                    f"this user may not create the schema {self._store.schema!r}: {error}",
                    hint="let its owner run the text of: ropeway migrate sql",
                ) from None
            return

    async def _lock(self, holder: UUID) -> None:
        """Wait for the runner's lock, a little longer than a runner that died may hold it."""
        for _ in range(LOCK_SECONDS * 10):
            if await self._store.chores.fetch(self._fill(_LOCK), holder, LOCK_SECONDS):
                return
            await asyncio.sleep(0.2)
        raise Unavailable("another process has been migrating this schema for a while", hint="try again later")

    async def _renew(self, holder: UUID) -> None:
        if not await self._store.chores.fetch(self._fill(_LOCK), holder, LOCK_SECONDS):
            raise Unavailable("another process took over the migration", hint="run it again")

    async def _apply(self, migration: Migration) -> None:
        """One migration and its record. A step that cannot get its locks soon lets the others go first."""
        for attempt, lock_timeout in enumerate(STEP_LOCK_TIMEOUTS, start=1):
            try:
                if migration.in_transaction:
                    async with self._store.chores.transaction() as connection:
                        await connection.execute(f"SET LOCAL lock_timeout = '{lock_timeout}'")
                        await connection.execute(self._fill(migration.text), timeout=STEP_TIMEOUT)
                        await self._record(connection, migration)
                else:
                    async with self._store.chores.bare() as connection:
                        for statement in self._fill(migration.text).split(";\n"):
                            if statement.strip():
                                await connection.execute(statement, timeout=STEP_TIMEOUT)
                        await self._record(connection, migration)
            except Unavailable:
                if attempt == len(STEP_LOCK_TIMEOUTS):
                    raise
                await asyncio.sleep(min(0.1 * attempt, 1.0))
            else:
                return

    async def _record(self, connection: asyncpg.Connection[asyncpg.Record], migration: Migration) -> None:
        await connection.execute(self._fill(_RECORD), migration.number, migration.name, migration.checksum)

    def _fill(self, text: str) -> str:
        return sqlfile.fill(text, self._holes)


def _name(migration: Migration) -> str:
    return f"{migration.number:04}_{migration.name}"


_LOGS_ROUTINE = "SELECT {schema}.logs_routine()"

_LOG_ROUTINE = """
CREATE OR REPLACE FUNCTION {schema}.logs_routine() RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT ?'
"""

_BOOKS = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.migrations (
    number integer PRIMARY KEY, name text NOT NULL, checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE IF NOT EXISTS {schema}.migration_lock (
    one boolean PRIMARY KEY DEFAULT true CHECK (one), holder uuid, expires_at timestamptz NOT NULL
);
INSERT INTO {schema}.migration_lock (holder, expires_at) VALUES (NULL, '-infinity') ON CONFLICT DO NOTHING;
"""
_APPLIED = "SELECT number, checksum FROM {schema}.migrations ORDER BY number"
_RECORD = "INSERT INTO {schema}.migrations (number, name, checksum) VALUES ($1, $2, $3)"
_LOCK = """
UPDATE {schema}.migration_lock SET holder = $1, expires_at = clock_timestamp() + $2 * interval '1 second'
WHERE holder = $1 OR holder IS NULL OR expires_at < clock_timestamp() RETURNING 1
"""
_UNLOCK = "UPDATE {schema}.migration_lock SET holder = NULL, expires_at = '-infinity' WHERE holder = $1"
