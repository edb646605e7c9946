"""Inspecting: jobs, counts, histories and the tail, page by page under the server's own cursors."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from ropeway.core.errors import BadCursor, NotFound
from ropeway.core.events import Event, EventPage, rfc3339
from ropeway.core.fields import MAX_BATCH
from ropeway.core.job import DEFAULT_TENANT, Job
from ropeway.core.joblog import DEFAULT_LINES, LogLine, check_lines
from ropeway.core.query import Count, JobFilter, JobPage, Order, QueueStats, check_page
from ropeway.engines.remote.connection import RemoteConnection, reader
from ropeway.wire import models, paths, records

_WHOLE = "payload,result,traceback"
_AN_ID = re.compile(r"[0-9a-f]{32}\Z")


class RemoteInspecting(RemoteConnection):
    async def now(self) -> datetime:
        return (await self.ask(paths.TIME, models.Now)).now

    async def get(self, ids: Sequence[UUID], *, tenant: str = DEFAULT_TENANT) -> list[Job | None]:
        found: list[Job | None] = []
        for start in range(0, len(ids), MAX_BATCH):
            reply = await self.tell(
                "POST",
                paths.JOBS_LOOKUP,
                reader(models.JobsFound),
                {"ids": ids[start : start + MAX_BATCH]},
                tenant=tenant,
                repeatable=True,
            )
            found += [None if job is None else records.job_of(job, tenant=tenant) for job in reply.jobs]
        return found

    async def find(
        self,
        where: JobFilter = JobFilter(),
        *,
        order: Order = "newest",
        limit: int = 50,
        after: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> JobPage:
        check_page(limit)
        if after is not None and not after.strip():
            raise BadCursor("an empty text is no position in a list")
        if where.states is not None and not where.states:
            return JobPage([])
        query = {**filter_query(where), "limit": limit, "cursor": after, "include": _WHOLE}
        path = paths.DLQ if order == "died" else paths.JOBS
        if order != "died":
            query["order"] = order
            if after is not None and _AN_ID.match(after):
                # The place behind an id, which anybody may name; all others are the server's own.
                query |= {"cursor": None, "after_id": str(UUID(hex=after))}
        reply = await self.ask(path, models.JobList, query, tenant=tenant)
        return JobPage([records.job_of(job, tenant=tenant) for job in reply.jobs], reply.next_cursor)

    async def count(
        self, where: JobFilter = JobFilter(), *, cap: int = 10_000, tenant: str = DEFAULT_TENANT
    ) -> Count:
        if where.states is not None and not where.states:
            return Count(0)
        reply = await self.ask(
            paths.JOBS_COUNT, models.JobCount, {**filter_query(where), "cap": cap}, tenant=tenant
        )
        return Count(reply.count, reply.capped)

    async def queue_stats(
        self, queues: Collection[str] | None = None, *, cap: int = 10_000, tenant: str = DEFAULT_TENANT
    ) -> list[QueueStats]:
        if queues is not None and not queues:
            return []
        asked = None if queues is None else ",".join(queues)
        reply = await self.ask(paths.QUEUES, models.QueueList, {"queues": asked, "cap": cap}, tenant=tenant)
        return [records.queue_stats_of(one) for one in reply.queues]

    async def place(self, id: UUID, *, cap: int = 10_000, tenant: str = DEFAULT_TENANT) -> Count | None:
        try:
            reply = await self.ask(paths.job(id, "place"), models.Place, {"cap": cap}, tenant=tenant)
        except NotFound:
            return None
        return None if reply.ahead is None else Count(reply.ahead, reply.capped)

    async def events_of(self, id: UUID, *, tenant: str = DEFAULT_TENANT) -> list[Event]:
        try:
            reply = await self.ask(paths.job(id, "events"), models.EventsFound, tenant=tenant)
        except NotFound:
            return []
        return [records.event_of(event, tenant=tenant) for event in reply.events]

    async def log_of(
        self, id: UUID, *, after: int = 0, limit: int = DEFAULT_LINES, tenant: str = DEFAULT_TENANT
    ) -> list[LogLine]:
        check_lines(after, limit)
        try:
            reply = await self.ask(
                paths.job(id, "logs"), models.LogsFound, {"after": after, "limit": limit}, tenant=tenant
            )
        except NotFound:
            return []
        return [records.line_of(line) for line in reply.logs]

    async def tail(self, position: str | None = None, *, limit: int = 500, tenant: str | None = None) -> EventPage:
        """`tenant` None is what the key may see: its own tenant."""
        if position is not None and not position.strip():
            raise BadCursor("an empty text is no position in the log")
        whose = DEFAULT_TENANT if tenant is None else tenant
        query = {"after": "start" if position is None else position, "limit": limit}
        reply = await self._page_of_events(query, whose)
        return EventPage([records.event_of(event, tenant=whose) for event in reply.events], reply.next_after)

    async def tail_position(self) -> str:
        return (await self._page_of_events({"after": "end", "limit": 1}, DEFAULT_TENANT)).next_after

    async def newest_events(self, *, limit: int = 500, tenant: str | None = None) -> EventPage:
        """`tenant` None is what the key may see: its own tenant."""
        whose = DEFAULT_TENANT if tenant is None else tenant
        reply = await self._page_of_events({"last": limit}, whose)
        return EventPage([records.event_of(event, tenant=whose) for event in reply.events], reply.next_after)

    async def _page_of_events(self, query: dict[str, Any], tenant: str) -> models.EventList:
        return await self.ask(
            paths.EVENTS, models.EventList, query, tenant=tenant, headers={"Accept": "application/json"}
        )


def filter_query(where: JobFilter) -> dict[str, Any]:
    """A filter as the parameters of a list; what is not asked for is left out."""
    asked = {name: value for name, value in msgspec.structs.asdict(where).items() if value is not None}
    states = asked.pop("states", None)
    if states is not None:
        asked["status"] = ",".join(sorted(states))
    return {name: rfc3339(value) if isinstance(value, datetime) else str(value) for name, value in asked.items()}
