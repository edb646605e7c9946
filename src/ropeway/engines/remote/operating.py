"""Operating: several jobs in one call, with an answer for each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from ropeway.core import fields
from ropeway.core.errors import RopewayError
from ropeway.core.events import rfc3339
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.query import JobFilter, QueueSettings, RedriveReport
from ropeway.core.states import State
from ropeway.engines.operating import redrivable
from ropeway.engines.protocol import Changed
from ropeway.engines.remote.connection import RemoteConnection, nothing, reader
from ropeway.engines.remote.inspecting import filter_query
from ropeway.wire import models, paths
from ropeway.wire.problems import Problem, error_of


class _ChangedItem(msgspec.Struct):
    id: UUID
    ok: bool
    error: Problem | None = None
    before: State | None = None
    status: State | None = None

    def answer(self) -> Changed | RopewayError:
        if not self.ok or self.before is None:
            assert self.error is not None, "an item that is not ok says why"  # noqa: S101
            return error_of(self.error)
        return Changed(self.id, self.before, self.status)


class _ChangedReply(msgspec.Struct):
    results: list[_ChangedItem]


class RemoteOperating(RemoteConnection):
    async def cancel(self, ids: Sequence[UUID], *, tenant: str = DEFAULT_TENANT) -> list[Changed | RopewayError]:
        return await self._change(paths.JOBS_CANCEL, ids, tenant)

    async def redrive(
        self, ids: Sequence[UUID], *, by: str | None = None, tenant: str = DEFAULT_TENANT
    ) -> list[Changed | RopewayError]:
        return await self._change(paths.JOBS_RETRY, ids, tenant, by=by)

    async def delete(self, ids: Sequence[UUID], *, tenant: str = DEFAULT_TENANT) -> list[Changed | RopewayError]:
        return await self._change(paths.JOBS_DELETE, ids, tenant)

    async def _change(
        self, path: str, ids: Sequence[UUID], tenant: str, **more: object
    ) -> list[Changed | RopewayError]:
        answers: list[Changed | RopewayError] = []
        for start in range(0, len(ids), fields.MAX_BATCH):
            body: dict[str, Any] = {"ids": ids[start : start + fields.MAX_BATCH], **more}
            reply = await self.tell("POST", path, reader(_ChangedReply), body, tenant=tenant)
            answers += [one.answer() for one in reply.results]
        return answers

    async def redrive_where(
        self,
        where: JobFilter,
        *,
        limit: int = 10_000,
        dry_run: bool = False,
        by: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> RedriveReport:
        body = {"filter": filter_query(redrivable(where)), "limit": limit, "dry_run": dry_run, "by": by}
        reply = await self.tell("POST", paths.JOBS_RETRY_WHERE, reader(models.RetriedWhere), body, tenant=tenant)
        return RedriveReport(reply.matched, reply.retried, reply.more, reply.dry_run)

    async def reschedule(
        self,
        id: UUID,
        *,
        run_at: datetime | None = None,
        delay: float | None = None,
        priority: int | None = None,
        queue: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> Changed:
        if run_at is not None:
            run_at = fields.check_time(run_at, "run_at")
        if delay is not None:
            fields.check_seconds(delay, "delay", 0, fields.HORIZON_SECONDS)
        body = {
            "run_at": None if run_at is None else rfc3339(run_at),
            "delay": delay,
            "priority": priority,
            "queue": queue,
        }
        reply = await self.tell(
            "POST", paths.job(id, "reschedule"), reader(models.Rescheduled), body, tenant=tenant
        )
        return Changed(reply.id, State(reply.before), State(reply.status))

    # ── queues ──

    async def pause(self, queue: str, *, tenant: str = DEFAULT_TENANT) -> None:
        fields.check_name(queue, "queue")
        await self.tell("POST", paths.queue(queue, "pause"), nothing, {}, tenant=tenant, repeatable=True)

    async def resume(self, queue: str, *, tenant: str = DEFAULT_TENANT) -> None:
        fields.check_name(queue, "queue")
        await self.tell("POST", paths.queue(queue, "resume"), nothing, {}, tenant=tenant, repeatable=True)

    async def queue_settings(self, *, tenant: str = DEFAULT_TENANT) -> dict[str, QueueSettings]:
        reply = await self.ask(paths.QUEUES, models.QueueList, {"cap": 1}, tenant=tenant)
        settings = {
            one.queue: QueueSettings(one.depth_limit, one.require_key, one.lease_seconds) for one in reply.queues
        }
        return {queue: given for queue, given in settings.items() if given != QueueSettings()}

    async def set_queue(self, queue: str, settings: QueueSettings, *, tenant: str = DEFAULT_TENANT) -> None:
        fields.check_name(queue, "queue")
        body = msgspec.structs.asdict(settings)
        await self.tell("PATCH", paths.queue(queue), nothing, body, tenant=tenant, repeatable=True)
