"""Many jobs at once, picked or found by a filter: counted first, then cancelled or run again, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.query import MAX_PAGE, Count, JobFilter
from ropeway.core.states import LIVE_STATES, State
from ropeway.engines.protocol import Changed, Engine
from ropeway.service.steps import Stepped, ended_by, in_steps, made_by, redrive_in_steps

#: Jobs that one call changes, at most; `more` says that it must be repeated.
MOST_AT_ONCE = 10_000

#: Jobs that are counted before somebody is asked whether they mean it.
MOST_COUNTED = 100_000

REDRIVABLE = frozenset({State.DEAD, State.CANCELLED})

_NOTHING = Stepped(more=False)


class Bulk:
    """Changes many jobs of one tenant."""

    def __init__(self, engine: Engine, *, tenant: str = DEFAULT_TENANT) -> None:
        self._engine = engine
        self._tenant = tenant

    # ── Before somebody is asked ──

    async def now(self) -> datetime:
        """The engine's time, to be taken before jobs are counted: whoever then says yes means none that came
        later."""
        return await self._engine.now()

    async def count_cancellable(self, where: JobFilter) -> Count:
        return await self._count(narrowed(where, LIVE_STATES))

    async def count_retriable(self, where: JobFilter) -> Count:
        return await self._count(narrowed(where, REDRIVABLE))

    async def _count(self, where: JobFilter | None) -> Count:
        if where is None:
            return Count(0)
        return await self._engine.count(where, cap=MOST_COUNTED, tenant=self._tenant)

    async def cancellable(self, ids: Sequence[UUID]) -> list[UUID]:
        """Those of the jobs that have not ended."""
        return await self._among(ids, LIVE_STATES)

    async def retriable(self, ids: Sequence[UUID]) -> list[UUID]:
        """Those of the jobs that died or were cancelled."""
        return await self._among(ids, REDRIVABLE)

    async def _among(self, ids: Sequence[UUID], states: frozenset[State]) -> list[UUID]:
        jobs = await self._engine.get(ids, tenant=self._tenant)
        return [job.id for job in jobs if job is not None and job.state in states]

    # ── After the yes ──

    async def cancel(
        self, where: JobFilter, *, limit: int = MOST_AT_ONCE, asked_at: datetime | None = None
    ) -> Stepped:
        """Cancel the jobs that a filter finds and that have not ended, the oldest first; none that was made after
        `asked_at`."""
        live = narrowed(where, LIVE_STATES)
        if live is None:
            return _NOTHING
        found = live if asked_at is None else made_by(live, asked_at)
        after: str | None = None

        async def step(most: int) -> Stepped:
            nonlocal after
            page = await self._engine.find(found, order="oldest", limit=most, after=after, tenant=self._tenant)
            ids = [job.id for job in page.jobs]
            answers = await self._engine.cancel(ids, tenant=self._tenant) if ids else []
            after = page.next
            done = sum(isinstance(answer, Changed) for answer in answers)
            return Stepped(done, len(answers) - done, after is not None)

        return await in_steps(step, limit=limit, size=MAX_PAGE)

    async def retry(
        self,
        where: JobFilter,
        *,
        by: str | None = None,
        limit: int = MOST_AT_ONCE,
        asked_at: datetime | None = None,
    ) -> Stepped:
        """Run the dead and cancelled jobs again that a filter finds; none that ended after `asked_at`.

        Only those that had ended when it began: one that runs and dies again meanwhile stays dead.
        """
        ended = narrowed(where, REDRIVABLE)
        if ended is None:
            return _NOTHING
        began = await self._engine.now()
        ended = ended_by(ended, began if asked_at is None else min(asked_at, began))
        return await redrive_in_steps(self._engine, ended, limit=limit, by=by, tenant=self._tenant)


def narrowed(where: JobFilter, states: frozenset[State]) -> JobFilter | None:
    """The filter within some states; None when nothing can be left."""
    left = states if where.states is None else where.states & states
    return msgspec.structs.replace(where, states=left) if left else None
