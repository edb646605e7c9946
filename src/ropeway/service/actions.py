"""The log of what operators did."""

from __future__ import annotations

from collections.abc import Iterable

from ropeway.core.auditlog import Action, ActionFilter, NewAction
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.query import DEFAULT_PAGE
from ropeway.engines.protocol import Engine

#: Every action that is noted, and what its target is.
ACTIONS = {
    "job.cancel": "the job's id, and the reason that was given",
    "job.retry": "the job's id",
    "job.reschedule": "the job's id",
    "job.delete": "the job's id",
    "queue.pause": "the queue",
    "queue.resume": "the queue",
    "queue.set": "the queue",
    "dlq.retry": "the job's id, or the filter that was asked for",
    "schedule.create": "the schedule",
    "schedule.change": "the schedule",
    "schedule.delete": "the schedule",
    "schedule.pause": "the schedule",
    "schedule.resume": "the schedule",
    "schedule.run": "the schedule",
    "key.create": "the key's id",
    "key.rotate": "the id of the key that was replaced",
    "key.revoke": "the key's id",
    "tenant.create": "the tenant's id",
    "tenant.change": "the tenant's id",
}

#: Longer targets are cut: the log tells what was done, it does not repeat it.
MAX_TARGET = 512


class Actions:
    """The actions of one tenant's operators."""

    def __init__(self, engine: Engine, *, tenant: str = DEFAULT_TENANT) -> None:
        self._engine = engine
        self._tenant = tenant

    async def note(
        self,
        actor: str,
        action: str,
        target: str,
        count: int | None = None,
        request_id: str | None = None,
    ) -> None:
        """Write down, durably, what somebody has done. To be called after it succeeded."""
        await self.note_each(actor, action, [target], count, request_id)

    async def note_each(
        self,
        actor: str,
        action: str,
        targets: Iterable[str],
        count: int | None = None,
        request_id: str | None = None,
    ) -> None:
        """The same for several things at once, an entry for each."""
        noted = notes_of(actor, action, targets, count, request_id)
        if noted:
            await self._engine.note_actions(noted, tenant=self._tenant)

    async def page(
        self, where: ActionFilter = ActionFilter(), limit: int = DEFAULT_PAGE, before_n: int | None = None
    ) -> list[Action]:
        """The newest first, those numbered below `before_n` if it is given."""
        return await self._engine.actions(where, limit=limit, before_n=before_n, tenant=self._tenant)


def notes_of(
    actor: str, action: str, targets: Iterable[str], count: int | None = None, request_id: str | None = None
) -> list[NewAction]:
    """An entry for each target, cut to what the log keeps."""
    return [NewAction(actor, action, target[:MAX_TARGET], count, request_id) for target in targets]
