"""Many jobs, changed step by step: each step is a transaction or a few, and what it did stays done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import msgspec

from ropeway.core.errors import EngineError
from ropeway.core.query import JobFilter
from ropeway.engines.protocol import Engine
from ropeway.runtime.faultpoints import fault

#: Jobs that one step takes, unless it is told otherwise.
STEP = 1_000

#: Times of filters are half-open: what happened at the very instant that is named counts as before it.
_INSTANT = timedelta(microseconds=1)


class Stepped(msgspec.Struct, frozen=True):
    """What one step did, or all of them: jobs changed, jobs that were not as they should be, whether there are
    more. `broken_off`: the store went away before the end."""

    done: int = 0
    skipped: int = 0
    more: bool = True
    broken_off: bool = False


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
            return Stepped(done, skipped, more, broken_off=True)
        done += one.done
        skipped += one.skipped
        more = one.more
    return Stepped(done, skipped, more)


async def redrive_in_steps(
    engine: Engine, where: JobFilter, *, limit: int | None, by: str | None, tenant: str, size: int = STEP
) -> Stepped:
    """Run again what a filter finds among the dead and cancelled.

    The filter must end before now (`ended_by`): what dies again meanwhile would be found again and again.
    """

    async def step(most: int) -> Stepped:
        report = await engine.redrive_where(where, limit=most, by=by, tenant=tenant)
        fault("redrive.between")
        # A step that moved nothing would go on for ever.
        return Stepped(len(report.retried), more=report.more and bool(report.retried))

    return await in_steps(step, limit=limit, size=size)


def made_by(where: JobFilter, at: datetime) -> JobFilter:
    """The filter within what had been made by then."""
    if where.created_before is not None and where.created_before <= at:
        return where
    return msgspec.structs.replace(where, created_before=at + _INSTANT)


def ended_by(where: JobFilter, at: datetime) -> JobFilter:
    """The filter within what had ended by then."""
    if where.finished_before is not None and where.finished_before <= at:
        return where
    return msgspec.structs.replace(where, finished_before=at + _INSTANT)
