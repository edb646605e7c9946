"""Upkeeping: taking jobs back, expiring the late ones, dropping the partitions whose time is over."""

from __future__ import annotations

from datetime import date
from uuid import UUID

import asyncpg

from ropeway.core.outcome import Lost
from ropeway.core.states import State
from ropeway.engines.postgres.attending import PostgresAttending
from ropeway.engines.postgres.auditing import PostgresAuditing
from ropeway.engines.postgres.connection import Channel
from ropeway.engines.postgres.limiting import PostgresLimiting
from ropeway.engines.postgres.remembering import PostgresRemembering
from ropeway.engines.postgres.rows import stored_job
from ropeway.engines.postgres.takeback import announce, change_for, take_back
from ropeway.engines.postgres.transitions import apply_transitions
from ropeway.engines.protocol import Pruned, Rescued
from ropeway.engines.purging import first_day_kept, log_purged

#: Rows that one audit looks at; the next one goes on from there.
AUDIT_STRETCH = 20_000

#: Dead jobs logged per read, keys deleted per statement.
PRUNE_STEP = 1_000

#: Jobs whose lines are removed per statement.
LINES_STEP = 5_000

#: Seconds that dropping a partition waits for those who read it; the next prune tries again.
DROP_PATIENCE = 0.2

_PATIENTLY = f"SET LOCAL lock_timeout = '{DROP_PATIENCE * 1000:.0f}ms'"

#: Seconds that one look through a whole partition may take.
SCAN_TIMEOUT = 600.0

#: Someone reads the partition, or another process is dropping it.
_NOT_NOW = (
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
    asyncpg.DeadlockDetectedError,
    asyncpg.ObjectNotInPrerequisiteStateError,
    asyncpg.UndefinedTableError,
    TimeoutError,
)

_FIRST = ("", UUID(int=0))
_PARENTS = {
    "archive_succeeded": State.SUCCEEDED,
    "archive_cancelled": State.CANCELLED,
    "archive_dead": State.DEAD,
}
#: The tables of the event log, and how many events a partition of each holds.
_LOG = {"events": "count(*)", "event_packs": "coalesce(sum(number), 0)"}


class PostgresUpkeeping(PostgresAttending, PostgresLimiting, PostgresAuditing, PostgresRemembering):
    _audited = _FIRST

    async def rescue(self, *, limit: int = 1_000) -> list[Rescued]:
        return await take_back(self, "expired_grants", (), None, Lost("expired"), limit)

    async def audit(self, *, limit: int = 1_000) -> list[Rescued]:
        del limit  # bounded by the stretch of rows it looks at
        start = self._audited

        async def run() -> list[tuple[asyncpg.Record, asyncpg.Record]]:
            async with self.chores.transaction() as connection:
                orphans = await connection.fetch(self._upkeep_sql("orphans"), *start, AUDIT_STRETCH)
                end = await connection.fetchrow(self._upkeep_sql("stretch_end"), *start, AUDIT_STRETCH)
                self._audited = _FIRST if end is None else (end["tenant"], end["id"])
                changes = [(row["tenant"], change_for(self, row, None, Lost("expired"))) for row in orphans]
                written = await apply_transitions(self, connection, changes) if changes else []
                return list(zip(orphans, written, strict=True))

        return announce(self, await self.with_retries(run))

    async def expire(self, *, limit: int = 1_000) -> list[UUID]:
        async def run() -> list[UUID]:
            rows = await self.chores.fetch(self._upkeep_sql("overdue"), limit, writes=False)
            if not rows:
                return []
            ids = [row["id"] for row in rows]
            done = await self.chores.fetch(
                self._upkeep_sql("cancel_overdue"), [row["tenant"] for row in rows], ids
            )
            return [id for id, row in zip(ids, done, strict=True) if row["before"] is not None]

        return await self.with_retries(run)

    async def prune(self) -> Pruned:
        await self.forget_absent()
        await self.forget_buckets()
        now = await self.now()
        await self.prune_actions(now)
        await self.forget_samples(now)
        await self.ensure_partitions()
        jobs = 0
        # Detaching needs a connection without a transaction, and must not hold up the chores of others.
        channel = Channel(self.address)
        try:
            for parent, state in _PARENTS.items():
                edge = first_day_kept(now, self.rules.keep(state)).date()
                for child in await self._over(parent, edge):
                    if state is State.DEAD:
                        await self._log_dead(channel, child)
                    jobs += await self._drop(channel, parent, child)
            events = 0
            for parent in _LOG:
                for child in await self._over(parent, first_day_kept(now, self.rules.keep_log).date()):
                    await self._note_pruned(channel, child)
                    events += await self._drop(channel, parent, child)
        finally:
            await channel.close()
        return Pruned(jobs=jobs, events=events, keys=await self._prune_keys())

    async def _over(self, parent: str, edge: date) -> list[str]:
        rows = await self.reads.fetch(self._upkeep_sql("partitions_before"), parent, edge, writes=False)
        return [row[0] for row in rows]

    async def _drop(self, channel: Channel, parent: str, child: str) -> int:
        """Detach and drop one partition; 0 when a lock was not to be had soon: the next prune tries again.

        A direct DROP locks the parent, and one open report then stalls every completion behind it. No setting of
        the session is changed: behind a pooler the next client would get it.
        """
        table = f"{self.schema}.{child}"
        async with channel.bare() as connection:
            try:
                await self._detach(connection, parent, table)
                if parent in _PARENTS:
                    await self._remove_lines(connection, table)
                async with connection.transaction():
                    await connection.execute(_PATIENTLY)
                    await connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
                    number: int = await connection.fetchval(
                        f"SELECT {_LOG.get(parent, 'count(*)')} FROM {table}", timeout=SCAN_TIMEOUT
                    )
                    await connection.execute(f"DROP TABLE {table}")
                    return number
            except _NOT_NOW:
                return 0

    async def _detach(self, connection: asyncpg.Connection[asyncpg.Record], parent: str, table: str) -> None:
        # NULL: detached by an earlier prune that could not drop it.
        pending: bool | None = await connection.fetchval(
            "SELECT inhdetachpending FROM pg_inherits WHERE inhrelid = to_regclass($1)", table
        )
        if pending:
            async with connection.transaction():
                await connection.execute(_PATIENTLY)
                await connection.execute(f"ALTER TABLE {self.schema}.{parent} DETACH PARTITION {table} FINALIZE")
        elif pending is not None:
            # Refuses to run in a transaction, where a timeout could be set.
            await connection.execute(
                f"ALTER TABLE {self.schema}.{parent} DETACH PARTITION {table} CONCURRENTLY", timeout=DROP_PATIENCE
            )

    async def _remove_lines(self, connection: asyncpg.Connection[asyncpg.Record], table: str) -> None:
        """Remove what the handlers of these jobs said. They cannot be redriven any more: nobody else sees them."""
        after = _FIRST
        while await connection.fetchval(self.sql("lines", "any_line")):
            jobs = await connection.fetch(
                f"SELECT tenant, id FROM {table} WHERE (tenant, id) > ($1, $2) ORDER BY tenant, id LIMIT $3",
                *after,
                LINES_STEP,
            )
            if not jobs:
                return
            after = (jobs[-1]["tenant"], jobs[-1]["id"])
            await connection.fetchval(self.sql("lines", "delete_lines"), *zip(*jobs, strict=True))

    async def _log_dead(self, channel: Channel, child: str) -> None:
        ended = self.sql("inspecting", "ended").replace(f"{self.schema}.archive j", f"{self.schema}.{child} j")
        after = ("", UUID(int=0))
        while True:
            async with channel.bare() as connection:
                try:
                    rows = await connection.fetch(
                        ended + " WHERE (j.tenant, j.id) > ($1, $2) ORDER BY j.tenant, j.id LIMIT $3",
                        *after,
                        PRUNE_STEP,
                    )
                except asyncpg.UndefinedTableError:
                    return  # another process was faster
            if not rows:
                return
            log_purged(stored_job(row) for row in rows)
            after = (rows[-1]["tenant"], rows[-1]["id"])

    async def _note_pruned(self, channel: Channel, child: str) -> None:
        async with channel.bare() as connection:
            try:
                highest: int | None = await connection.fetchval(
                    f"SELECT max(id) FROM {self.schema}.{child}", timeout=SCAN_TIMEOUT
                )
            except asyncpg.UndefinedTableError:
                return  # another process was faster
        if highest is not None:
            await self.chores.fetch(self._upkeep_sql("note_events_pruned"), highest)

    async def _prune_keys(self) -> int:
        removed = 0
        while True:
            async with self.chores.transaction() as connection:
                old = await connection.fetch(self._upkeep_sql("old_keys"), PRUNE_STEP)
                columns = [[row[column] for row in old] for column in ("tenant", "kind", "key")]
                removed += len(await connection.fetch(self._upkeep_sql("prune_keys"), *columns))
            if len(old) < PRUNE_STEP:
                return removed

    def _upkeep_sql(self, name: str) -> str:
        return self.sql("upkeeping", name)
