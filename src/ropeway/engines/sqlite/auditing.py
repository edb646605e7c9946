"""Auditing: what operators did, newest first."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict

from ropeway.core import query
from ropeway.core.auditlog import Action, ActionFilter, NewAction
from ropeway.core.job import DEFAULT_TENANT
from ropeway.engines.purging import first_day_kept
from ropeway.engines.sqlfile import statements
from ropeway.engines.sqlite.rows import micros, moment, optional_micros
from ropeway.engines.sqlite.store import SqliteStore
from ropeway.engines.sqlite.writer import FLUSH_WEIGHT, Transaction, one_by_one

SQL = statements("ropeway.engines.sqlite", "sql/auditing.sql")

#: Actions removed in one transaction, so that other writers soon get their turn.
BATCH = 1_000

#: No action has a number as high.
NEWEST = 2**63 - 1


class SqliteAuditing(SqliteStore):
    async def note_actions(self, actions: Sequence[NewAction], *, tenant: str = DEFAULT_TENANT) -> None:
        if actions:
            rows = [{**asdict(action), "tenant": tenant} for action in actions]
            await self.write(_note_all, rows, len(rows))

    async def actions(
        self,
        where: ActionFilter = ActionFilter(),
        *,
        limit: int = query.DEFAULT_PAGE,
        before_n: int | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Action]:
        asked = {
            "tenant": tenant,
            "before_n": NEWEST if before_n is None else before_n,
            "actor": where.actor,
            "action": where.action,
            "after": optional_micros(where.after),
            "before": optional_micros(where.before),
            "limit": query.check_page(limit),
        }
        return await self.read(lambda db: [_stored_action(row) for row in db.execute(SQL["actions"], asked)])

    async def prune_actions(self) -> None:
        """Remove actions of days that are over, from the oldest up to the first that is kept."""
        before = micros(first_day_kept(self.clock.now(), self.rules.keep_actions))

        def prune(tx: Transaction, _: None) -> None:
            oldest = tx.db.execute(SQL["old_actions"], {"limit": BATCH}).fetchall()
            old = next((i for i, (_n, at) in enumerate(oldest) if at >= before), len(oldest))
            if old:
                tx.db.execute(SQL["delete_actions"], {"n": oldest[old - 1][0]})

        def over(db: sqlite3.Connection) -> bool:
            oldest = db.execute(SQL["old_actions"], {"limit": 1}).fetchone()
            return oldest is not None and oldest[1] < before

        while await self.read(over):
            await self.write(one_by_one(prune), None, FLUSH_WEIGHT)


def _note(tx: Transaction, rows: list[dict[str, Any]]) -> None:
    tx.db.executemany(SQL["note_action"], [{**row, "now": tx.now} for row in rows])


_note_all = one_by_one(_note)


def _stored_action(row: tuple[Any, ...]) -> Action:
    n, at, *rest = row
    return Action(n, moment(at), *rest)
