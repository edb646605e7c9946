"""Inspecting: jobs, counts, queues and the event log, as they are now."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from uuid import UUID

from ropeway.core import query
from ropeway.core.errors import BadCursor, PositionExpired
from ropeway.core.events import Event, EventPage
from ropeway.core.job import DEFAULT_TENANT, Job
from ropeway.core.joblog import DEFAULT_LINES, LogLine, check_lines
from ropeway.core.query import Count, JobFilter, JobPage, Order, QueueSettings, QueueStats
from ropeway.core.states import TERMINAL_STATES, EventName, State
from ropeway.engines.memory.rows import JobRow, queue_counts
from ropeway.engines.memory.store import MemoryStore

_POSITION = re.compile(r"[0-9]{1,18}\Z")


class MemoryInspecting(MemoryStore):
    async def get(self, ids: Sequence[UUID], *, tenant: str = DEFAULT_TENANT) -> list[Job | None]:
        rows = [self.row(tenant, id) for id in ids]
        return [None if row is None else self._job(row) for row in rows]

    async def find(
        self,
        where: JobFilter = JobFilter(),
        *,
        order: Order = "newest",
        limit: int = query.DEFAULT_PAGE,
        after: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> JobPage:
        query.check_page(limit)
        found = self._matching(where, tenant)
        if order == "died":
            found = self._died(found, after)
        else:
            newest = order == "newest"
            if after is not None:
                edge = query.parse_id_position(after)
                found = [job for job in found if (job.id < edge if newest else job.id > edge)]
            found.sort(key=lambda job: job.id, reverse=newest)
        page = found[:limit]
        if len(found) <= limit:
            return JobPage(page)
        last = page[-1]
        return JobPage(page, query.death_position(last) if order == "died" else query.id_position(last.id))

    def _died(self, found: list[Job], after: str | None) -> list[Job]:
        dead = sorted(
            ((job.finished_at, job.id, job) for job in found if job.state is State.DEAD and job.finished_at),
            reverse=True,
        )
        edge = None if after is None else query.parse_death_position(after)
        return [job for finished, id, job in dead if edge is None or (finished, id) < edge]

    async def count(
        self, where: JobFilter = JobFilter(), *, cap: int = 10_000, tenant: str = DEFAULT_TENANT
    ) -> Count:
        number = len(self._matching(where, tenant))
        return Count(min(number, cap), capped=number > cap)

    async def queue_stats(
        self,
        queues: Collection[str] | None = None,
        *,
        cap: int = 10_000,
        tenant: str = DEFAULT_TENANT,
    ) -> list[QueueStats]:
        told = self.paused | self.settings_of.keys()
        rows: dict[str, list[JobRow]] = {queue: [] for owner, queue in told if owner == tenant}
        for row in self.jobs.values():
            if row.tenant == tenant:
                rows.setdefault(row.queue, []).append(row)
        names = sorted(rows if queues is None else set(queues) & rows.keys())
        recent = self._recent(tenant)
        return [self._stats(tenant, name, rows[name], recent, cap) for name in names]

    def _recent(self, tenant: str) -> list[Event]:
        """The tenant's events of the last minute, newest first."""
        edge = self.clock.now() - timedelta(seconds=query.RATE_SECONDS)
        newest = takewhile(lambda event: event.at > edge, reversed(self.events))
        return [event for event in newest if event.tenant == tenant]

    def _stats(self, tenant: str, queue: str, rows: list[JobRow], recent: list[Event], cap: int) -> QueueStats:
        now = self.clock.now()
        events = [event for event in recent if event.queue == queue]
        counts = queue_counts(rows, now)
        due = [row.run_at for row in rows if row.state(now) is State.QUEUED]
        return QueueStats(
            queue=queue,
            paused=(tenant, queue) in self.paused,
            counts={state: min(number, cap) for state, number in counts.items()},
            capped=frozenset(state for state, number in counts.items() if number > cap),
            oldest_age_seconds=(now - min(due)).total_seconds() if due else None,
            enqueued_per_minute=float(sum(event.event is EventName.ENQUEUED for event in events)),
            finished_per_minute=float(sum(event.state in TERMINAL_STATES for event in events)),
            settings=self.settings_of.get((tenant, queue), QueueSettings()),
        )

    async def place(self, id: UUID, *, cap: int = 10_000, tenant: str = DEFAULT_TENANT) -> Count | None:
        now = self.clock.now()
        mine = self.row(tenant, id)
        if mine is None or mine.state(now) is not State.QUEUED:
            return None
        ahead = sum(
            row.tenant == tenant
            and row.queue == mine.queue
            and row.state(now) is State.QUEUED
            and (row.priority, row.run_at, row.place) < (mine.priority, mine.run_at, mine.place)
            for row in self.jobs.values()
        )
        return Count(min(ahead, cap), capped=ahead > cap)

    async def events_of(self, id: UUID, *, tenant: str = DEFAULT_TENANT) -> list[Event]:
        return [event for event in self.events if event.job_id == id and event.tenant == tenant]

    async def log_of(
        self, id: UUID, *, after: int = 0, limit: int = DEFAULT_LINES, tenant: str = DEFAULT_TENANT
    ) -> list[LogLine]:
        check_lines(after, limit)
        row = self.row(tenant, id)
        return [] if row is None else [line for line in row.lines if line.n > after][:limit]

    async def tail(self, position: str | None = None, *, limit: int = 500, tenant: str | None = None) -> EventPage:
        return self._log_page(self.events_removed if position is None else self._position(position), limit, tenant)

    def _log_page(self, start: int, limit: int, tenant: str | None) -> EventPage:
        seen: list[Event] = []
        next_position = start
        for event in self.events[start - self.events_removed :]:
            if len(seen) == limit:
                break
            next_position += 1
            if tenant is None or event.tenant == tenant:
                seen.append(event)
        return EventPage(seen, str(next_position))

    def _position(self, position: str) -> int:
        if not _POSITION.match(position) or int(position) > self._end():
            raise BadCursor("this is not a position in the event log")
        if int(position) < self.events_removed:
            raise PositionExpired(
                "the event log no longer reaches back that far", hint="start again from the oldest kept event"
            )
        return int(position)

    def _end(self) -> int:
        return self.events_removed + len(self.events)

    async def tail_position(self) -> str:
        return str(self._end())

    async def newest_events(self, *, limit: int = 500, tenant: str | None = None) -> EventPage:
        return self._log_page(max(self.events_removed, self._end() - limit), limit, tenant)

    def _matching(self, where: JobFilter, tenant: str) -> list[Job]:
        jobs = (self._job(row) for row in self.jobs.values() if row.tenant == tenant)
        return [job for job in jobs if query.matches(job, where)]

    def _job(self, row: JobRow, now: datetime | None = None) -> Job:
        return row.job(now or self.clock.now(), self.locked_until(row))
