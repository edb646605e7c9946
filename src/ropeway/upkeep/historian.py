"""Keeps samples of how it was: one for each queue and step of time, from which the dashboard draws."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from ropeway.core.history import ALL_QUEUES, LONG_STEP, STEP, Sample, last_step, merged, sample_of, step_of
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.limits import TICKETS
from ropeway.core.states import State
from ropeway.engines.protocol import Engine

#: Seconds between two looks whether a step is over.
INTERVAL = 5.0

#: Tenants whose queues are counted for one step, beside the first one: those with the most queues that moved.
MOST_TENANTS = 50


class Historian:
    name = "history"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._done: datetime | None = None

    async def run_once(self) -> bool:
        at = last_step(await self._engine.now())
        if at == self._done or not await self._mine(at):
            self._done = at
            return False
        await self._keep(at)
        self._done = at
        return False

    async def _mine(self, at: datetime) -> bool:
        """Of all processes that do this, one gets the step: a bucket that never fills again has one token."""
        taken = await self._engine.take_tokens(f"{TICKETS}history {at.isoformat()}", 1.0, rate=0.0, burst=1.0)
        return taken.granted >= 1

    async def _keep(self, at: datetime) -> None:
        until = at + timedelta(seconds=STEP)
        seen = await self._engine.observe(at, until)
        samples = {(one.tenant, one.queue): sample_of(one, at) for one in seen}
        for tenant in self._tenants(samples):
            for stats in await self._engine.queue_stats(tenant=tenant):
                waiting = stats.counts.get(State.QUEUED, 0)
                running = stats.counts.get(State.RUNNING, 0)
                lane = (tenant, stats.queue)
                if lane in samples or waiting or running:
                    samples[lane] = replace(
                        samples.get(lane, Sample(*lane, at, STEP)),
                        waiting=waiting,
                        running=running,
                        oldest=stats.oldest_age_seconds,
                    )
            of_tenant = [sample for (owner, _), sample in samples.items() if owner == tenant]
            nothing = Sample(tenant, ALL_QUEUES, at, STEP)
            samples[tenant, ALL_QUEUES] = merged([*of_tenant, nothing], at, STEP, queue=ALL_QUEUES)
        await self._engine.remember(list(samples.values()))
        if step_of(until, LONG_STEP) == until:
            for tenant in {tenant for tenant, _ in samples}:
                await self._merge(tenant, until)

    @staticmethod
    def _tenants(samples: dict[tuple[str, str], Sample]) -> list[str]:
        queues: dict[str, int] = defaultdict(int)
        for tenant, _ in samples:
            queues[tenant] += 1
        moved = sorted(queues, key=lambda tenant: -queues[tenant])[:MOST_TENANTS]
        return [DEFAULT_TENANT, *(tenant for tenant in moved if tenant != DEFAULT_TENANT)]

    async def _merge(self, tenant: str, until: datetime) -> None:
        """The short steps of a long one, added up."""
        since = until - timedelta(seconds=LONG_STEP)
        short = await self._engine.history(step=STEP, since=since, until=until, tenant=tenant)
        by_queue: dict[str, list[Sample]] = defaultdict(list)
        for sample in short:
            by_queue[sample.queue].append(sample)
        await self._engine.remember(_merged(by_queue, since))


def _merged(by_queue: dict[str, list[Sample]], at: datetime) -> Sequence[Sample]:
    return [merged(samples, at, LONG_STEP, queue=queue) for queue, samples in by_queue.items()]
