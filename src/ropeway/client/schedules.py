"""The stored schedules of an app: list, put, pause, resume, run now, delete."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from uuid import UUID

from ropeway.client.engines import Engines
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.schedule import NewSchedule, Schedule

T = TypeVar("T")


class Schedules:
    """For async code. What does not exist raises NotFound."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    async def list(self, *, tenant: str = DEFAULT_TENANT) -> list[Schedule]:
        """All schedules, by name."""
        return await (await self._engines.here()).schedules(tenant=tenant)

    async def put(self, schedule: NewSchedule, *, replace: bool = True, tenant: str = DEFAULT_TENANT) -> Schedule:
        """Store a schedule. With `replace` False a name that exists raises NameTaken."""
        engine = await self._engines.here()
        return await engine.put_schedule(schedule, replace=replace, tenant=tenant)

    async def pause(self, name: str, *, tenant: str = DEFAULT_TENANT) -> Schedule:
        return await (await self._engines.here()).pause_schedule(name, True, tenant=tenant)

    async def resume(self, name: str, *, tenant: str = DEFAULT_TENANT) -> Schedule:
        return await (await self._engines.here()).pause_schedule(name, False, tenant=tenant)

    async def run(self, name: str, *, tenant: str = DEFAULT_TENANT) -> UUID:
        """Make the schedule's job now, besides its times; the id of the job."""
        return await (await self._engines.here()).run_schedule(name, tenant=tenant)

    async def delete(self, name: str, *, tenant: str = DEFAULT_TENANT) -> None:
        await (await self._engines.here()).delete_schedule(name, tenant=tenant)


class SyncSchedules:
    """The same for code without an event loop."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._schedules = Schedules(engines)

    def list(self, *, tenant: str = DEFAULT_TENANT) -> list[Schedule]:
        return self._run(lambda: self._schedules.list(tenant=tenant))

    def put(self, schedule: NewSchedule, *, replace: bool = True, tenant: str = DEFAULT_TENANT) -> Schedule:
        return self._run(lambda: self._schedules.put(schedule, replace=replace, tenant=tenant))

    def pause(self, name: str, *, tenant: str = DEFAULT_TENANT) -> Schedule:
        return self._run(lambda: self._schedules.pause(name, tenant=tenant))

    def resume(self, name: str, *, tenant: str = DEFAULT_TENANT) -> Schedule:
        return self._run(lambda: self._schedules.resume(name, tenant=tenant))

    def run(self, name: str, *, tenant: str = DEFAULT_TENANT) -> UUID:
        return self._run(lambda: self._schedules.run(name, tenant=tenant))

    def delete(self, name: str, *, tenant: str = DEFAULT_TENANT) -> None:
        self._run(lambda: self._schedules.delete(name, tenant=tenant))

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._engines.run(work, instead="the same method of app.schedules")
