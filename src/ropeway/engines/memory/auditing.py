"""Auditing: what operators did, newest first."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import asdict

from ropeway.core import query
from ropeway.core.auditlog import Action, ActionFilter, NewAction, matches
from ropeway.core.job import DEFAULT_TENANT
from ropeway.engines.memory.store import MemoryStore
from ropeway.engines.purging import first_day_kept


class MemoryAuditing(MemoryStore):
    async def note_actions(self, actions: Sequence[NewAction], *, tenant: str = DEFAULT_TENANT) -> None:
        now = self.clock.now()
        for action in actions:
            self.noted_actions.append((tenant, Action(n=next(self.action_numbers), at=now, **asdict(action))))

    async def actions(
        self,
        where: ActionFilter = ActionFilter(),
        *,
        limit: int = query.DEFAULT_PAGE,
        before_n: int | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Action]:
        query.check_page(limit)
        found = [
            action
            for owner, action in reversed(self.noted_actions)
            if owner == tenant and (before_n is None or action.n < before_n) and matches(action, where)
        ]
        return found[:limit]

    def prune_actions(self) -> None:
        edge = first_day_kept(self.clock.now(), self.rules.keep_actions)
        self.noted_actions = [(tenant, action) for tenant, action in self.noted_actions if action.at >= edge]
