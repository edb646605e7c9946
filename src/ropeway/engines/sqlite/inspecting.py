"""Inspecting: jobs, counts, queues and the event log, on the readers' connections."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from ropeway.core import query
from ropeway.core.errors import BadCursor, PositionExpired
from ropeway.core.events import Event, EventPage
from ropeway.core.job import DEFAULT_TENANT, Job
from ropeway.core.query import Count, JobFilter, JobPage, Order, QueueSettings, QueueStats
from ropeway.core.states import TERMINAL_STATES, State
from ropeway.engines.sqlite.finding import SQL, Question, by_ids, page
from ropeway.engines.sqlite.operating import settings_of
from ropeway.engines.sqlite.rows import micros, seconds, stored_events, stored_jobs
from ropeway.engines.sqlite.store import SqliteStore

#: No position in the log has more digits.
_MAX_DIGITS = 18

#: So many of the newest events, of all tenants, tell the rates of queues. If they span less than a minute, their
#: rate is taken for a minute's; they are never taken to span less than this, in microseconds.
RATE_EVENTS = 10_000
MIN_RATE_SPAN = 1_000_000

#: What jobs can be that are free and not due.
NOT_DUE = frozenset({State.SCHEDULED, State.RETRYING, State.WAITING})


class SqliteInspecting(SqliteStore):
    async def get(self, ids: Sequence[UUID], *, tenant: str = DEFAULT_TENANT) -> list[Job | None]:
        now = micros(self.clock.now())

        def ask(db: sqlite3.Connection) -> list[Job | None]:
            question = by_ids(ids, tenant, now)
            found = {job.id: job for job in stored_jobs(db, question.statement(), question.parameters, now)}
            return [found.get(id) for id in ids]

        return await self.read(ask) if ids else []

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
        edge, edge_parameters = page(order, after)
        now = micros(self.clock.now())

        def ask(db: sqlite3.Connection) -> JobPage:
            question = Question("jobs", tenant, now)
            question.match(where)
            if order == "died":
                question.narrow("where_dead")
            else:
                question.walk(db, where)
            if edge is not None:
                question.narrow(edge, **edge_parameters)
            parameters = {**question.parameters, "limit": limit + 1}
            found = stored_jobs(db, question.statement(SQL[order]), parameters, now)
            if len(found) <= limit:
                return JobPage(found)
            last = found[limit - 1]
            position = query.death_position(last) if order == "died" else query.id_position(last.id)
            return JobPage(found[:limit], position)

        return await self.read(ask)

    async def count(
        self, where: JobFilter = JobFilter(), *, cap: int = 10_000, tenant: str = DEFAULT_TENANT
    ) -> Count:
        now = micros(self.clock.now())

        def ask(db: sqlite3.Connection) -> Count:
            question = Question("places", tenant, now)
            question.match(where)
            question.walk(db, where)
            statement = SQL["counted"].replace("{found}", question.statement())
            (number,) = db.execute(statement, {**question.parameters, "limit": cap + 1}).fetchone()
            return Count(min(number, cap), capped=number > cap)

        return await self.read(ask)

    async def queue_stats(
        self,
        queues: Collection[str] | None = None,
        *,
        cap: int = 10_000,
        tenant: str = DEFAULT_TENANT,
    ) -> list[QueueStats]:
        now = micros(self.clock.now())

        def ask(db: sqlite3.Connection) -> list[QueueStats]:
            of_tenant = {"tenant": tenant}
            names = [name for (name,) in db.execute(SQL["queues"], of_tenant) if queues is None or name in queues]
            paused = {name for (name,) in db.execute(SQL["paused"], of_tenant)}
            running = dict(db.execute(SQL["count_running"], of_tenant).fetchall())
            settings = settings_of(db, tenant)
            rates = _rates(db, tenant, now) if names else {}
            return [
                replace(
                    _stats(db, tenant, name, running=running.get(name, 0), cap=cap, now=now),
                    paused=name in paused,
                    enqueued_per_minute=rates.get(name, (0.0, 0.0))[0],
                    finished_per_minute=rates.get(name, (0.0, 0.0))[1],
                    settings=settings.get(name, QueueSettings()),
                )
                for name in names
            ]

        return await self.read(ask)

    async def place(self, id: UUID, *, cap: int = 10_000, tenant: str = DEFAULT_TENANT) -> Count | None:
        asked: dict[str, Any] = {"tenant": tenant, "id": id.bytes, "now": micros(self.clock.now())}

        def ask(db: sqlite3.Connection) -> Count | None:
            row = db.execute(SQL["queued_job"], asked).fetchone()
            if row is None:
                return None
            job = dict(zip(("queue", "priority", "run_at", "place"), row, strict=True))
            (ahead,) = db.execute(SQL["ahead"], {**asked, **job, "limit": cap + 1}).fetchone()
            return Count(min(ahead, cap), capped=ahead > cap)

        return await self.read(ask)

    async def events_of(self, id: UUID, *, tenant: str = DEFAULT_TENANT) -> list[Event]:
        asked = {"id": id.bytes, "tenant": tenant}
        return await self.read(lambda db: stored_events(db.execute(SQL["events_of"], asked)))

    async def tail(self, position: str | None = None, *, limit: int = 500, tenant: str | None = None) -> EventPage:
        def ask(db: sqlite3.Connection) -> EventPage:
            start, end = _ends_of_log(db)
            after = start if position is None else _checked_position(position, start, end)
            return _page_of_log(db, after, end, limit, tenant)

        return await self.read(ask)

    async def tail_position(self) -> str:
        return str((await self.read(_ends_of_log))[1])

    async def newest_events(self, *, limit: int = 500, tenant: str | None = None) -> EventPage:
        def ask(db: sqlite3.Connection) -> EventPage:
            start, end = _ends_of_log(db)
            return _page_of_log(db, max(start, end - limit), end, limit, tenant)

        return await self.read(ask)


def _page_of_log(db: sqlite3.Connection, after: int, end: int, limit: int, tenant: str | None) -> EventPage:
    statement = SQL["tail" if tenant is None else "tail_of_tenant"]
    rows = db.execute(statement, {"position": after, "limit": limit, "tenant": tenant}).fetchall()
    # A page that is not full has seen the whole log.
    next_position = rows[-1][-1] if rows and len(rows) == limit else max(after, end)
    return EventPage(stored_events(row[:-1] for row in rows), str(next_position))


def _ends_of_log(db: sqlite3.Connection) -> tuple[int, int]:
    """The position before the oldest kept event, and that of the newest."""
    (end,) = db.execute(SQL["log_end"]).fetchone()
    (start,) = db.execute(SQL["log_start"]).fetchone()
    return end if start is None else start - 1, end


def _checked_position(position: str, start: int, end: int) -> int:
    if not position.isascii() or not position.isdigit() or len(position) > _MAX_DIGITS or int(position) > end:
        raise BadCursor("this is not a position in the event log")
    if int(position) < start:
        raise PositionExpired(
            "the event log no longer reaches back that far", hint="start again from the oldest kept event"
        )
    return int(position)


def _rates(db: sqlite3.Connection, tenant: str, now: int) -> dict[str, tuple[float, float]]:
    """How many jobs of each queue came and ended in the last minute, or at the rate of the newest events."""
    minute = seconds(query.RATE_SECONDS)
    number, since = db.execute(SQL["newest_events"], {"limit": RATE_EVENTS}).fetchone()
    span = minute if number < RATE_EVENTS else min(minute, max(now - since, MIN_RATE_SPAN))
    asked = {"tenant": tenant, "since": now - minute, "limit": RATE_EVENTS}
    return {
        queue: (come * minute / span, gone * minute / span)
        for queue, come, gone in db.execute(SQL["come_and_gone"], asked)
    }


def _stats(db: sqlite3.Connection, tenant: str, queue: str, *, running: int, cap: int, now: int) -> QueueStats:
    asked: dict[str, Any] = {"tenant": tenant, "queue": queue, "now": now, "limit": cap + 1}
    (queued,) = db.execute(SQL["count_queued"], asked).fetchone()
    (due_since,) = db.execute(SQL["first_due"], asked).fetchone()
    ahead = {State(state): number for state, number in db.execute(SQL["count_ahead"], asked)}
    counts = {State.QUEUED: queued, State.RUNNING: running, **ahead}
    for state in TERMINAL_STATES:
        (counts[state],) = db.execute(SQL["count_ended"], {**asked, "stage": state.value}).fetchone()
    capped = {state for state, number in counts.items() if number > cap}
    if sum(ahead.values()) > cap:
        # They were counted together, so that each may be more.
        capped |= NOT_DUE
    return QueueStats(
        queue=queue,
        paused=False,
        counts={state: min(number, cap) for state, number in counts.items() if number},
        capped=frozenset(capped),
        oldest_age_seconds=None if due_since is None else (now - due_since) / 1_000_000,
    )
