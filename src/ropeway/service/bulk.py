"""Many jobs at once, found by a filter: counted first, then cancelled, step by step."""

from __future__ import annotations

from uuid import UUID

import msgspec

from ropeway.core.errors import EngineError, RopewayError
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.query import MAX_PAGE, Count, JobFilter
from ropeway.core.states import LIVE_STATES, State
from ropeway.engines.protocol import Changed, Engine

#: Jobs that one call changes, at most; `more` says that it must be repeated.
MOST_AT_ONCE = 10_000

#: Jobs that are counted before somebody is asked whether they mean it.
MOST_COUNTED = 100_000

REDRIVABLE = frozenset({State.DEAD, State.CANCELLED})


class BulkReport(msgspec.Struct, frozen=True):
    """What was done: to which jobs, how many were not as they should be, and whether there are more."""

    done: list[UUID]
    skipped: int = 0
    more: bool = False


class Bulk:
    """Changes many jobs of one tenant."""

    def __init__(self, engine: Engine, *, tenant: str = DEFAULT_TENANT) -> None:
        self._engine = engine
        self._tenant = tenant

    async def count_cancellable(self, where: JobFilter) -> Count:
        return await self._count(narrowed(where, LIVE_STATES))

    async def count_retriable(self, where: JobFilter) -> Count:
        return await self._count(narrowed(where, REDRIVABLE))

    async def _count(self, where: JobFilter | None) -> Count:
        if where is None:
            return Count(0)
        return await self._engine.count(where, cap=MOST_COUNTED, tenant=self._tenant)

    async def cancel(self, where: JobFilter, *, limit: int = MOST_AT_ONCE) -> BulkReport:
        """Cancel the jobs that a filter finds and that have not ended, the oldest first."""
        live = narrowed(where, LIVE_STATES)
        done: list[UUID] = []
        skipped, after, more = 0, None, live is not None
        while live is not None and more and len(done) < limit:
            size = min(MAX_PAGE, limit - len(done))
            try:
                page = await self._engine.find(live, order="oldest", limit=size, after=after, tenant=self._tenant)
                answers: list[Changed | RopewayError] = []
                if page.jobs:
                    answers = await self._engine.cancel([job.id for job in page.jobs], tenant=self._tenant)
            except EngineError:
                if not done:
                    raise
                # What the steps before it did is done, and told.
                break
            done += [answer.id for answer in answers if isinstance(answer, Changed)]
            skipped += sum(isinstance(answer, RopewayError) for answer in answers)
            after = page.next
            more = after is not None
        return BulkReport(done, skipped, more)

    async def retry(self, where: JobFilter, *, by: str | None = None, limit: int = MOST_AT_ONCE) -> BulkReport:
        """Run the dead and cancelled jobs again that a filter finds."""
        ended = narrowed(where, REDRIVABLE)
        done: list[UUID] = []
        more = ended is not None
        while ended is not None and more and len(done) < limit:
            size = min(1_000, limit - len(done))
            try:
                report = await self._engine.redrive_where(ended, limit=size, by=by, tenant=self._tenant)
            except EngineError:
                if not done:
                    raise
                break
            done += report.retried
            # A step that moved nothing would go on for ever.
            more = report.more and bool(report.retried)
        return BulkReport(done, more=more)


def narrowed(where: JobFilter, states: frozenset[State]) -> JobFilter | None:
    """The filter within some states; None when nothing can be left."""
    left = states if where.states is None else where.states & states
    return msgspec.structs.replace(where, states=left) if left else None
