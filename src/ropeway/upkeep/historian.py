"""Keeps samples of how it was: one for each queue and step of time, from which the dashboard draws."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from msgspec.structs import replace

from ropeway.core.history import (
    ALL_QUEUES,
    LONG_STEP,
    STEP,
    Depth,
    Sample,
    carried_on,
    last_step,
    merged,
    sample_of,
    step_of,
)
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.limits import TICKETS
from ropeway.engines.protocol import Engine

#: Seconds between two looks whether a step is over.
INTERVAL = 5.0

#: Tenants whose queues are counted for one step, beside the first one: so many of those in which something moved
#: (the most queues first), and so many of those that were busy within an hour and now are quiet, or stuck.
MOST_TENANTS = 50
BUSY_WITHIN = timedelta(hours=1)

#: Jobs of one queue that are counted, about; a longer line is reckoned from what comes and ends.
MOST_COUNTED = 10_000

#: How far back long steps are made up for that nobody merged: all processes were away, or something went wrong.
MERGED_WITHIN = timedelta(hours=1)

_STEP, _LONG_STEP = timedelta(seconds=STEP), timedelta(seconds=LONG_STEP)

#: By tenant and queue.
Samples = dict[tuple[str, str], Sample]


class Historian:
    name = "history"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: The last step that needs nothing more from this process, and the last that fell to it.
        self._done: datetime | None = None
        self._ours: datetime | None = None
        #: Until when long steps are merged, and until when they are over: this process saw to their last short one
        #: or to a later one.
        self._merged: datetime | None = None
        self._mergeable: datetime | None = None

    async def run_once(self) -> bool:
        at = last_step(await self._engine.now())
        if at != self._done:
            if await self._mine(at):
                await self._keep(at)
                self._mergeable = step_of(at + _STEP, LONG_STEP)
            self._done = at
        if self._mergeable is not None and self._mergeable != self._merged:
            await self._merge_until(self._mergeable)
        return False

    async def _mine(self, at: datetime) -> bool:
        """Of all processes that do this, one gets the step: a bucket that never fills again has one token."""
        if at != self._ours:
            taken = await self._engine.take_tokens(f"{TICKETS}history {at.isoformat()}", 1.0, rate=0.0, burst=1.0)
            if taken.granted < 1:
                return False
            self._ours = at
        return True

    async def _keep(self, at: datetime) -> None:
        samples: Samples = {}
        for seen in await self._engine.observe(at, at + _STEP):
            samples[seen.tenant, seen.queue] = sample_of(seen, at)
        busy = await self._engine.latest(step=STEP, since=at - BUSY_WITHIN, until=at, busy=True)
        before = {one.tenant: one for one in busy}
        counted = _to_count(samples, before)
        for tenant in counted:
            for depth in await self._engine.depths(cap=MOST_COUNTED, tenant=tenant):
                samples[tenant, depth.queue] = await self._with_depth(samples, tenant, depth, at)
        totals = _totals(samples, counted, before, at)
        await self._engine.remember([*samples.values(), *totals])

    async def _with_depth(self, samples: Samples, tenant: str, depth: Depth, at: datetime) -> Sample:
        sample = samples.get((tenant, depth.queue), Sample(tenant, depth.queue, at, STEP))
        sample = replace(sample, waiting=depth.waiting, running=depth.running, oldest=depth.oldest)
        if not depth.capped:
            return sample
        since = at - _LONG_STEP
        before = await self._engine.history(step=STEP, since=since, until=at, queue=depth.queue, tenant=tenant)
        return carried_on(sample, before[-1]) if before else sample

    async def _merge_until(self, until: datetime) -> None:
        """Merge long steps that nobody has merged. What fails stays to be done, and holds up nothing else."""
        first = until - MERGED_WITHIN
        at = first if self._merged is None else max(first, self._merged)
        failed: Exception | None = None
        while at < until:
            for tenant in await self._unmerged(at):
                try:
                    await self._merge(tenant, at)
                except Exception as error:  # noqa: BLE001 - raised when all had their turn
                    failed = failed or error
            at += _LONG_STEP
        if failed is not None:
            raise failed
        self._merged = until

    async def _unmerged(self, at: datetime) -> list[str]:
        """The tenants of which there are samples of short steps, but none of the long one."""
        long = await self._engine.latest(step=LONG_STEP, since=at, until=at + _LONG_STEP)
        done = {one.tenant for one in long}
        short = await self._engine.latest(step=STEP, since=at, until=at + _LONG_STEP)
        return [one.tenant for one in short if one.tenant not in done]

    async def _merge(self, tenant: str, at: datetime) -> None:
        """The short steps of a long one, added up."""
        short = await self._engine.history(step=STEP, since=at, until=at + _LONG_STEP, tenant=tenant)
        by_queue: dict[str, list[Sample]] = defaultdict(list)
        for sample in short:
            by_queue[sample.queue].append(sample)
        # A queue without a sample at the end had nothing any more.
        end = short[-1].at
        await self._engine.remember(
            [
                merged([*samples, Sample(tenant, queue, end, STEP)], at, LONG_STEP, queue=queue)
                for queue, samples in by_queue.items()
            ]
        )


def _totals(
    samples: Samples, counted: Collection[str], before: Mapping[str, Sample], at: datetime
) -> list[Sample]:
    """All queues of a tenant together, of each that was counted or in which something moved."""
    of_tenant = {tenant: [Sample(tenant, ALL_QUEUES, at, STEP)] for tenant in counted}
    for (tenant, _), sample in samples.items():
        of_tenant.setdefault(tenant, []).append(sample)
    totals = []
    for tenant, found in of_tenant.items():
        total = merged(found, at, STEP, queue=ALL_QUEUES)
        last = before.get(tenant)
        if tenant not in counted and last is not None and last.at == at - _STEP:
            total = carried_on(replace(total, running=last.running), last)
        totals.append(total)
    return totals


def _to_count(samples: Samples, before: Mapping[str, Sample]) -> list[str]:
    """The tenants whose queues are counted. Of those in which nothing moved the stuck ones go first, the longest
    left out before the others."""
    queues: dict[str, int] = defaultdict(int)
    for tenant, _ in samples:
        queues[tenant] += 1
    moved = sorted(queues, key=lambda tenant: -queues[tenant])[:MOST_TENANTS]
    quiet = [one for one in before.values() if one.tenant not in queues]
    quiet.sort(key=lambda one: (one.waiting + one.running == 0, one.at))
    return list(dict.fromkeys([DEFAULT_TENANT, *moved, *(one.tenant for one in quiet[:MOST_TENANTS])]))
