"""Many jobs, changed step by step: each step is a transaction or a few, and what it did stays done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from ropeway.core.errors import EngineError
from ropeway.core.query import JobFilter
from ropeway.engines.protocol import Engine

#: Jobs that one step takes, unless it is told otherwise.
STEP = 1_000


class Stepped(msgspec.Struct, frozen=True):
    """What one step did, or all of them: jobs changed, jobs that were not as they should be, whether there are
    more."""

    done: int = 0
    skipped: int = 0
    more: bool = True


async def in_steps(step: Callable[[int], Awaitable[Stepped]], *, limit: int | None, size: int = STEP) -> Stepped:
    """Call `step` with the number of jobs that it may change until it has no more, or `limit` are changed.

    Raises what the store says as long as nothing was done. What was done before it went away is told instead, with
    `more`: whoever repeats the call goes on from there.
    """
    done, skipped, more = 0, 0, True
    while more and (limit is None or done < limit):
        try:
            one = await step(size if limit is None else min(size, limit - done))
        except EngineError:
            if not done:
                raise
            break
        done += one.done
        skipped += one.skipped
        more = one.more
    return Stepped(done, skipped, more)


async def redrive_in_steps(
    engine: Engine, where: JobFilter, *, limit: int | None, by: str | None, tenant: str, size: int = STEP
) -> Stepped:
    """Run again what a filter finds among the dead and cancelled."""

    async def step(most: int) -> Stepped:
        report = await engine.redrive_where(where, limit=most, by=by, tenant=tenant)
        # A step that moved nothing would go on for ever.
        return Stepped(len(report.retried), more=report.more and bool(report.retried))

    return await in_steps(step, limit=limit, size=size)
