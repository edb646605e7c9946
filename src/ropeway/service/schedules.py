"""Schedules: the recurring jobs, listed, paused, resumed, run now and deleted."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from datetime import datetime
from typing import TypeVar

from ropeway.core import cron
from ropeway.core.errors import NotFound
from ropeway.core.job import DEFAULT_TENANT, Job
from ropeway.core.schedule import Schedule
from ropeway.engines.protocol import Engine
from ropeway.service.jobs import Jobs
from ropeway.service.names import did_you_mean

T = TypeVar("T")


class Schedules:
    """The schedules of one tenant."""

    def __init__(self, engine: Engine, *, tenant: str = DEFAULT_TENANT) -> None:
        self._engine = engine
        self._tenant = tenant
        self._jobs = Jobs(engine, tenant=tenant)

    async def all(self) -> list[Schedule]:
        return await self._engine.schedules(tenant=self._tenant)

    async def last_jobs(self, schedules: Sequence[Schedule]) -> dict[str, Job]:
        """The newest job of each, by the schedule's name; of some there is none, or it is no longer kept."""
        made = [(one.name, one.last_job_id) for one in schedules if one.last_job_id is not None]
        jobs = await self._engine.get([id for _, id in made], tenant=self._tenant)
        return {name: job for (name, _), job in zip(made, jobs, strict=True) if job is not None}

    async def get(self, name: str) -> Schedule:
        """Raises NotFound, with the name that was probably meant; ConfigurationError if it cannot be read here."""
        return await self._found(name, self._engine.get_schedule(name, tenant=self._tenant))

    async def pause(self, name: str) -> Schedule:
        """It fires no more until it is resumed."""
        return await self._found(name, self._engine.pause_schedule(name, True, tenant=self._tenant))

    async def resume(self, name: str) -> Schedule:
        return await self._found(name, self._engine.pause_schedule(name, False, tenant=self._tenant))

    async def delete(self, name: str) -> None:
        """It fires no more. Also one that cannot be read here. What it made stays; a worker whose code declares it
        stores it again."""
        await self._found(name, self._engine.delete_schedule(name, tenant=self._tenant))

    async def run(self, name: str) -> Job:
        """Its job, made now, besides its times."""
        return await self._jobs.get(await self._found(name, self._engine.run_schedule(name, tenant=self._tenant)))

    async def _found(self, name: str, answer: Awaitable[T]) -> T:
        """What the engine answers; a name it does not know is told with the one that was probably meant."""
        try:
            return await answer
        except NotFound:
            raise _unknown(name, [schedule.name for schedule in await self.all()]) from None

    @staticmethod
    def coming(schedule: Schedule, count: int) -> list[datetime]:
        """The next instants, none for a schedule that is paused."""
        if schedule.spec.paused:
            return []
        instants = [schedule.next_run_at]
        while len(instants) < count:
            instants.append(cron.next_fire(schedule.spec.cron, schedule.spec.tz, instants[-1]))
        return instants[:count]


def _unknown(name: str, known: Iterable[str]) -> NotFound:
    hint = did_you_mean(name, known) or "ropeway schedules list shows them"
    return NotFound(f"no schedule {name!r}", hint=hint)
