"""Upkeeping: taking jobs back from owners that are gone, and removing what had its time, a little at a time."""

from __future__ import annotations

import sqlite3
import time
from typing import Any
from uuid import UUID

from ropeway.core.outcome import Lost
from ropeway.core.states import CancelReason, State
from ropeway.engines.protocol import Pruned, Rescued
from ropeway.engines.purging import first_day_kept, log_purged
from ropeway.engines.sqlfile import statements
from ropeway.engines.sqlite.attending import SqliteAttending
from ropeway.engines.sqlite.auditing import SqliteAuditing
from ropeway.engines.sqlite.finding import Question
from ropeway.engines.sqlite.limiting import SqliteLimiting
from ropeway.engines.sqlite.operating import Target, cancel_job, delete_places
from ropeway.engines.sqlite.remembering import SqliteRemembering
from ropeway.engines.sqlite.rows import micros, stored_jobs, text
from ropeway.engines.sqlite.transitions import take_back
from ropeway.engines.sqlite.writer import FLUSH_WEIGHT, Transaction, one_by_one

SQL = statements("ropeway.engines.sqlite", "sql/upkeeping.sql")

#: A look for expired leases that had to wait longer than this for its turn, in seconds, is not made.
LONG_WAIT = 1.0

#: Rows removed in one transaction, so that other writers soon get their turn.
BATCH = 500


class SqliteUpkeeping(SqliteAttending, SqliteLimiting, SqliteAuditing, SqliteRemembering):
    async def rescue(self, *, limit: int = 1_000) -> list[Rescued]:
        asked = time.monotonic()

        def rescue(tx: Transaction, _: None) -> list[Rescued]:
            rescued: list[Rescued] = []
            if time.monotonic() - asked > LONG_WAIT:
                # Whoever kept the file so long kept heartbeats out as well: they go first, the next look counts.
                return rescued
            for (token,) in tx.db.execute(SQL["expired_grants"], {"now": tx.now}).fetchall():
                if len(rescued) >= limit:
                    break
                rescued += take_back(tx, token, None, Lost("expired"), self.rules.decisions)
            return rescued

        # The turn is asked for although there is hardly ever anything to do: whoever looks every second then waits
        # already when a process that stands still keeps the file for longer than a lease.
        return await self.write(one_by_one(rescue), None, limit)

    async def audit(self, *, limit: int = 1_000) -> list[Rescued]:
        def audit(tx: Transaction, _: None) -> list[Rescued]:
            rescued: list[Rescued] = []
            for (token,) in tx.db.execute(SQL["orphaned_tokens"], {"limit": limit}).fetchall():
                if len(rescued) >= limit:
                    break
                rescued += take_back(tx, token, None, Lost("expired"), self.rules.decisions)
            return rescued

        if await self._nothing("orphaned_tokens", {"limit": 1}):
            return []
        return await self.write(one_by_one(audit), None, limit)

    async def expire(self, *, limit: int = 1_000) -> list[UUID]:
        def expire(tx: Transaction, _: None) -> list[UUID]:
            overdue = [Target(*row) for row in tx.db.execute(SQL["overdue"], {"now": tx.now, "limit": limit})]
            for job in overdue:
                cancel_job(tx, job, CancelReason.EXPIRED)
            return [job.id for job in overdue]

        if await self._nothing("overdue", {"now": micros(self.clock.now()), "limit": 1}):
            return []
        return await self.write(one_by_one(expire), None, limit)

    async def _nothing(self, statement: str, parameters: dict[str, Any]) -> bool:
        return await self.read(lambda db: db.execute(SQL[statement], parameters).fetchone() is None)

    async def prune(self) -> Pruned:
        await self.forget_absent()
        await self.forget_buckets()
        await self.prune_actions()
        await self.forget_samples()
        jobs = 0
        last = {"tenant": "", "stage": "", "queue": ""}
        while (ended := await self._next_ended(last)) is not None:
            jobs += await self._prune_ended(ended)
            last = ended
        return Pruned(jobs=jobs, events=await self._prune_events(), keys=await self._prune_keys())

    async def _next_ended(self, last: dict[str, str]) -> dict[str, str] | None:
        def ask(db: sqlite3.Connection) -> dict[str, str] | None:
            row = db.execute(SQL["next_ended"], last).fetchone()
            return None if row is None else dict(zip(last, row, strict=True))

        return await self.read(ask)

    async def _prune_ended(self, ended: dict[str, str]) -> int:
        """Remove jobs of one tenant, end and queue whose day is over; the dead are logged before."""
        state = State(ended["stage"])
        before = micros(first_day_kept(self.clock.now(), self.rules.keep(state)))
        old = {**ended, "before": before, "limit": BATCH}

        def prune(tx: Transaction, _: None) -> int:
            places = [place for (place,) in tx.db.execute(SQL["old_places"], old)]
            if places and state is State.DEAD:
                _log(tx, ended["tenant"], places)
            delete_places(tx, places)
            return len(places)

        removed = 0
        if await self._nothing("old_places", old):
            return 0
        while batch := await self.write(one_by_one(prune), None, FLUSH_WEIGHT):
            removed += batch
        return removed

    async def _prune_events(self) -> int:
        """Remove the head of the log, up to the first event of a day that is kept."""
        before = micros(first_day_kept(self.clock.now(), self.rules.keep_log))

        def prune(tx: Transaction, _: None) -> int:
            oldest = tx.db.execute(SQL["old_events"], {"limit": 2 * BATCH}).fetchall()
            old = next((i for i, (_position, at) in enumerate(oldest) if at >= before), len(oldest))
            if old:
                tx.db.execute(SQL["delete_events"], {"position": oldest[old - 1][0]})
            return old

        def over(db: sqlite3.Connection) -> bool:
            oldest = db.execute(SQL["old_events"], {"limit": 1}).fetchone()
            return oldest is not None and oldest[1] < before

        removed = 0
        while await self.read(over):
            removed += await self.write(one_by_one(prune), None, FLUSH_WEIGHT)
        return removed

    async def _prune_keys(self) -> int:
        """Remove keys in their own order; each batch is looked for without keeping writers waiting."""
        now = micros(self.clock.now())
        last = {"tenant": "", "kind": "", "key": ""}
        removed = 0
        while True:
            asked: dict[str, Any] = {**last, "now": now, "limit": BATCH}
            found = await self.read(lambda db, asked=asked: db.execute(SQL["old_keys"], asked).fetchall())  # type: ignore[misc]
            if not found:
                return removed
            keys = [{"tenant": tenant, "kind": kind, "key": key, "now": now} for tenant, kind, key in found]
            removed += await self.write(_delete_keys, keys, FLUSH_WEIGHT)
            last = {name: keys[-1][name] for name in last}


def _remove_keys(tx: Transaction, keys: list[dict[str, Any]]) -> int:
    return tx.db.executemany(SQL["delete_key"], keys).rowcount


_delete_keys = one_by_one(_remove_keys)


def _log(tx: Transaction, tenant: str, places: list[int]) -> None:
    """The last word on dead jobs, in the transaction that removes them."""
    question = Question("jobs", tenant, tx.now)
    question.narrow("where_places", places=text(places))
    log_purged(stored_jobs(tx.db, question.statement(), question.parameters, tx.now))
