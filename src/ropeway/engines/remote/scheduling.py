"""Schedules and workers: what code declares, who is at work."""

from __future__ import annotations

import logging
from uuid import UUID

import msgspec

from ropeway.core import fields
from ropeway.core.errors import ConfigurationError, MissingScope, RopewayError
from ropeway.core.fleet import SEEN_WITHIN, WorkerInfo, check_seen_within
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.schedule import NewSchedule, Schedule
from ropeway.engines import firing
from ropeway.engines.remote.connection import RemoteConnection, nothing, reader
from ropeway.wire import models, paths, records

log = logging.getLogger("ropeway.remote")


class _Made(msgspec.Struct):
    id: UUID


class RemoteScheduling(RemoteConnection):
    async def put_schedule(
        self, schedule: NewSchedule, *, replace: bool = True, tenant: str = DEFAULT_TENANT
    ) -> Schedule:
        """Raises MissingScope as it is: a key that may work but not declare is no reason to stop working."""
        body = {**records.lean(records.schedule_body(schedule)), "source": schedule.source}
        read = reader(models.Schedule)
        try:
            if replace:
                path = paths.schedule(schedule.name)
                return _read(await self.tell("PUT", path, read, body, tenant=tenant, repeatable=True))
            return _read(await self.tell("POST", paths.SCHEDULES, read, body, tenant=tenant))
        except ConfigurationError as error:
            if isinstance(error.__cause__, MissingScope):
                raise error.__cause__ from None
            raise

    async def schedules(self, *, tenant: str = DEFAULT_TENANT) -> list[Schedule]:
        reply = await self.ask(paths.SCHEDULES, models.ScheduleList, tenant=tenant)
        found = []
        for one in reply.schedules:
            try:
                found.append(records.schedule_of(one))
            except RopewayError as error:
                # Its time zone is known to the server, and not on this host.
                log.warning("schedule %s is not listed: %s", one.name, error)
        return found

    async def get_schedule(self, name: str, *, tenant: str = DEFAULT_TENANT) -> Schedule:
        return _read(await self.ask(paths.schedule(name), models.Schedule, tenant=tenant))

    async def pause_schedule(self, name: str, paused: bool, *, tenant: str = DEFAULT_TENANT) -> Schedule:
        path = paths.schedule(name, "pause" if paused else "resume")
        reply = await self.tell("POST", path, reader(models.Schedule), {}, tenant=tenant, repeatable=True)
        return _read(reply)

    async def delete_schedule(self, name: str, *, tenant: str = DEFAULT_TENANT) -> None:
        await self.tell("DELETE", paths.schedule(name), nothing, tenant=tenant)

    async def run_schedule(self, name: str, *, tenant: str = DEFAULT_TENANT) -> UUID:
        reply = await self.tell("POST", paths.schedule(name, "run"), reader(_Made), {}, tenant=tenant)
        return reply.id

    # ── workers ──

    async def report_worker(self, info: WorkerInfo, *, tenant: str = DEFAULT_TENANT) -> None:
        body = msgspec.structs.asdict(info)
        for name in ("id", "started_at", "seen_at"):
            del body[name]
        await self.tell("PUT", paths.worker(info.id), nothing, body, tenant=tenant, repeatable=True)

    async def workers(self, *, seen_within: float = SEEN_WITHIN, tenant: str = DEFAULT_TENANT) -> list[WorkerInfo]:
        query = {"seen_within": check_seen_within(seen_within)}
        reply = await self.ask(paths.WORKERS, models.WorkerList, query, tenant=tenant)
        return [records.worker_of(one) for one in reply.workers]

    async def forget_worker(self, id: str, *, tenant: str = DEFAULT_TENANT) -> None:
        fields.check_text(id, "id", limit=128)
        await self.tell("DELETE", paths.worker(id), nothing, tenant=tenant, repeatable=True)


def _read(reply: models.Schedule) -> Schedule:
    with firing.reading(reply.name):
        return records.schedule_of(reply)
