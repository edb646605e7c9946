"""Auditing: what operators did, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ropeway.core import query
from ropeway.core.auditlog import Action, ActionFilter, NewAction
from ropeway.core.job import DEFAULT_TENANT
from ropeway.engines.postgres.filters import Conditions
from ropeway.engines.postgres.store import PostgresStore
from ropeway.engines.purging import first_day_kept

#: Actions removed per statement.
PRUNE_STEP = 10_000


class PostgresAuditing(PostgresStore):
    async def note_actions(self, actions: Sequence[NewAction], *, tenant: str = DEFAULT_TENANT) -> None:
        if not actions:
            return
        await self.notes.fetch(
            self.sql("auditing", "note_actions"),
            tenant,
            [action.actor for action in actions],
            [action.action for action in actions],
            [action.target for action in actions],
            [action.count for action in actions],
            [action.request_id for action in actions],
        )

    async def actions(
        self,
        where: ActionFilter = ActionFilter(),
        *,
        limit: int = query.DEFAULT_PAGE,
        before_n: int | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Action]:
        query.check_page(limit)
        conditions = Conditions()
        conditions.add("j.tenant = ?", tenant)
        for condition, value in (
            ("j.n < ?", before_n),
            ("j.actor = ?", where.actor),
            ("j.action = ?", where.action),
            ("j.at >= ?", where.after),
            ("j.at < ?", where.before),
        ):
            if value is not None:
                conditions.add(condition, value)
        tail = f" ORDER BY j.n DESC LIMIT {conditions.mark(limit)}"
        statement = self.sql("auditing", "actions") + conditions.where() + tail
        rows = await self.reads.fetch(statement, *conditions.parameters, writes=False)
        return [Action(**dict(row)) for row in rows]

    async def prune_actions(self, now: datetime) -> None:
        edge = first_day_kept(now, self.rules.keep_actions)
        statement = self.sql("auditing", "prune_actions")
        while len(await self.chores.fetch(statement, edge, PRUNE_STEP)) == PRUNE_STEP:
            pass
