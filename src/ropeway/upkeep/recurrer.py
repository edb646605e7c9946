"""Fires recurring schedules. Any number of these may run: each instant of a schedule is fired once."""

from __future__ import annotations

from ropeway.core.events import rfc3339
from ropeway.engines.protocol import Engine
from ropeway.observability import metrics
from ropeway.observability.logs import Logger
from ropeway.observability.names import SCHEDULE_FIRED
from ropeway.upkeep.telling import look_up


class Recurrer:
    name = "schedules"

    def __init__(self, engine: Engine, log: Logger, *, batch: int = 100) -> None:
        self._engine = engine
        self._log = log
        self._batch = batch

    async def run_once(self) -> bool:
        """True when there may be more."""
        fired = await self._engine.fire_due(limit=self._batch)
        jobs = await look_up(self._engine, [(each.tenant, each.job_id) for each in fired])
        for each in fired:
            job = jobs.get(each.job_id)
            if job is not None:
                count = metrics.deduplicated if each.deduplicated else metrics.enqueued
                count(job.queue, job.type)
            self._log.info(
                SCHEDULE_FIRED,
                job_id=each.job_id,
                type=None if job is None else job.type,
                queue=None if job is None else job.queue,
                schedule=each.name,
                scheduled_for=rfc3339(each.at),
                tenant=each.tenant,
                **({"deduplicated": True} if each.deduplicated else {}),
            )
        return len(fired) >= self._batch
