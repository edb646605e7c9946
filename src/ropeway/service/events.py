"""The event log as it grows: of all jobs of a tenant, or of one job until it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from uuid import UUID

import msgspec

from ropeway.core.errors import ConfigurationError, EngineError
from ropeway.core.events import Event, EventPage
from ropeway.core.job import DEFAULT_TENANT, Progress
from ropeway.core.joblog import LogLine
from ropeway.core.states import TERMINAL_STATES
from ropeway.engines.protocol import Engine
from ropeway.service.jobs import Jobs

#: Seconds between two looks when nothing is new, and the longest wait for a store that is away.
PAUSE, LONGEST_WAIT = 0.2, 5.0

Away = Callable[[EngineError], None]


class JobNews(msgspec.Struct, frozen=True):
    """What is new about one job since the last look."""

    events: list[Event]
    logs: list[LogLine]
    progress: Progress | None
    ended: bool


class Events:
    """The log of one tenant."""

    def __init__(self, engine: Engine, *, tenant: str = DEFAULT_TENANT, pause: float = PAUSE) -> None:
        self._engine = engine
        self._tenant = tenant
        self._jobs = Jobs(engine, tenant=tenant)
        self._pause = pause

    async def now(self) -> str:
        """The end of the log."""
        return await self._engine.tail_position()

    async def newest(self, *, limit: int) -> EventPage:
        """Up to so many of the last events, and where to go on from."""
        return await self._engine.newest_events(limit=limit, tenant=self._tenant)

    async def page(self, position: str, *, limit: int) -> EventPage:
        """The next events after a place in the log. Raises PositionExpired when they are no longer kept."""
        return await self._engine.tail(position, limit=limit, tenant=self._tenant)

    async def follow(self, position: str | None, *, away: Away) -> AsyncIterator[EventPage]:
        """Page after page, for ever, from `position` on (None: the oldest kept event).

        A page may be empty; its position is where to go on. A store that goes away is waited for: `away` is told
        once, and nothing is skipped.
        """
        waits = _Waits(self._pause, away)
        while True:
            try:
                page = await self._engine.tail(position, tenant=self._tenant)
            except EngineError as error:
                await waits.for_store(error)
                continue
            waits.reset()
            position = page.position
            yield page
            if not page.events and page.whole:
                await asyncio.sleep(self._pause)

    async def follow_job(self, id: UUID, *, away: Away) -> AsyncIterator[JobNews]:
        """All there is about one job, then what is new, until it has ended. Raises NotFound."""
        waits = _Waits(self._pause, away)
        seq = line = 0
        last: Progress | None = None
        while True:
            try:
                # The job first: what ended it is then among the events.
                job = await self._jobs.get(id)
                events = [e for e in await self._engine.events_of(id, tenant=self._tenant) if e.seq > seq]
                logs = await self._jobs.logs(id, after=line)
            except EngineError as error:
                await waits.for_store(error)
                continue
            waits.reset()
            seq = events[-1].seq if events else seq
            line = logs[-1].n if logs else line
            news = job.progress if job.progress != last else None
            last = job.progress
            ended = job.state in TERMINAL_STATES
            if events or logs or news is not None or ended:
                yield JobNews(events, logs, news, ended)
            if ended:
                return
            await asyncio.sleep(self._pause)


class _Waits:
    """Growing waits for a store that is away; said once per outage."""

    def __init__(self, first: float, away: Away) -> None:
        self._first = self._next = first
        self._away = away
        self._told = False

    async def for_store(self, error: EngineError) -> None:
        if isinstance(error, ConfigurationError):
            raise error
        if not self._told:
            self._told = True
            self._away(error)
        await asyncio.sleep(self._next)
        self._next = min(self._next * 2, LONGEST_WAIT)

    def reset(self) -> None:
        self._next, self._told = self._first, False
