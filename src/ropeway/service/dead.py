"""Dead jobs: listed by time of death, and run again after the fix."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from ropeway.core.errors import FieldError
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.query import Count, JobFilter
from ropeway.core.states import State
from ropeway.engines.protocol import Engine

#: Jobs that one step of a retry by filter takes: each step is one transaction or a few.
STEP = 1_000

#: Dead jobs that a dry run counts, at most.
MOST_COUNTED = 100_000

DEAD = frozenset({State.DEAD})


class Retried(msgspec.Struct, frozen=True):
    """What a retry by filter did, or would do (`dry_run`). `more`: others match, beyond the limit."""

    matched: int
    retried: int
    more: bool = False
    dry_run: bool = False


class DeadJobs:
    """The dead jobs of one tenant."""

    def __init__(self, engine: Engine, *, tenant: str = DEFAULT_TENANT) -> None:
        self._engine = engine
        self._tenant = tenant

    async def count(self, where: JobFilter, *, cap: int = MOST_COUNTED) -> Count:
        """How many a filter finds."""
        return await self._engine.count(_dead(where), cap=cap, tenant=self._tenant)

    async def retry_where(
        self, where: JobFilter, *, limit: int | None = None, dry_run: bool = False, by: str | None = None
    ) -> Retried:
        """Run the dead jobs again that a filter finds, at most `limit`, in no promised order.

        Only those that were dead when it began: one that runs and dies again meanwhile stays dead.
        """
        if limit is not None and limit < 1:
            raise FieldError("limit must be at least 1", pointer="/limit")
        # A death at this very instant counts as before.
        began = await self._engine.now() + timedelta(microseconds=1)
        if where.finished_before is None or where.finished_before > began:
            where = msgspec.structs.replace(where, finished_before=began)
        where = _dead(where)
        if dry_run:
            count = await self.count(where)
            matched = count.number if limit is None else min(count.number, limit)
            return Retried(matched, 0, more=count.capped or matched < count.number, dry_run=True)
        done, more = 0, True
        while more and (limit is None or done < limit):
            size = STEP if limit is None else min(STEP, limit - done)
            report = await self._engine.redrive_where(where, limit=size, by=by, tenant=self._tenant)
            done += len(report.retried)
            # A step that moved nothing would go on for ever.
            more = report.more and bool(report.retried)
        return Retried(done, done, more=more)


def _dead(where: JobFilter) -> JobFilter:
    return msgspec.structs.replace(where, states=DEAD)
