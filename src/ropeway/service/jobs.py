"""Jobs: enqueue, look at, list, wait for, cancel, retry, put off."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from uuid import UUID

import msgspec

from ropeway.core.errors import FieldError, NotFound, RopewayError
from ropeway.core.events import Attempt, Event, attempt_history
from ropeway.core.job import DEFAULT_TENANT, Job, NewJob
from ropeway.core.joblog import LogLine
from ropeway.core.query import DEFAULT_PAGE, MAX_PAGE, JobFilter, JobPage, Order, id_position
from ropeway.core.states import TERMINAL_STATES
from ropeway.engines.protocol import Changed, Engine, Enqueued

#: The first look for an awaited job's end comes soon, later ones rarer.
FIRST_LOOK, LAST_LOOK = 0.02, 1.0

_ID_PART = re.compile(r"[0-9a-f-]+\Z")
#: Shorter beginnings name only a time of months, never one job.
SHORTEST_PREFIX = 6


class JobDetail(msgspec.Struct, frozen=True):
    """A job and all that is known of its life."""

    job: Job
    attempts: list[Attempt]
    events: list[Event]
    logs: list[LogLine]


class Jobs:
    """The jobs of one tenant."""

    def __init__(self, engine: Engine, *, tenant: str = DEFAULT_TENANT) -> None:
        self._engine = engine
        self._tenant = tenant

    async def enqueue(self, job: NewJob) -> Enqueued:
        (answer,) = await self._engine.enqueue([job], tenant=self._tenant)
        return answer

    async def get(self, id: UUID) -> Job:
        """Raises NotFound."""
        (job,) = await self._engine.get([id], tenant=self._tenant)
        if job is None:
            raise no_job(str(id))
        return job

    async def detail(self, id: UUID) -> JobDetail:
        """Raises NotFound."""
        job = await self.get(id)
        events = await self._engine.events_of(id, tenant=self._tenant)
        return JobDetail(job, attempt_history(events), events, await self.logs(id))

    async def logs(self, id: UUID, *, after: int = 0) -> list[LogLine]:
        """The log lines of a job after number `after`."""
        lines: list[LogLine] = []
        while True:
            page = await self._engine.log_of(
                id, after=lines[-1].n if lines else after, limit=MAX_PAGE, tenant=self._tenant
            )
            lines += page
            if len(page) < MAX_PAGE:
                return lines

    async def page(
        self,
        where: JobFilter = JobFilter(),
        *,
        order: Order = "newest",
        limit: int = DEFAULT_PAGE,
        after: str | None = None,
    ) -> JobPage:
        return await self._engine.find(where, order=order, limit=limit, after=after, tenant=self._tenant)

    async def search(
        self, where: JobFilter, *, limit: int = DEFAULT_PAGE, after: str | None = None, seconds: float = 0.0
    ) -> JobPage:
        """The newest jobs that a filter finds. Where the engine stops before the page is full, go on for so long.

        A page that is not full and has a next position was searched as far as that position.
        """
        until = time.monotonic() + seconds
        jobs: list[Job] = []
        while True:
            page = await self.page(where, limit=limit - len(jobs), after=after)
            jobs += page.jobs
            after = page.next
            if after is None or len(jobs) == limit or time.monotonic() >= until:
                return JobPage(jobs, after)

    async def pages(
        self,
        where: JobFilter = JobFilter(),
        *,
        order: Order = "newest",
        limit: int | None = None,
        after: str | None = None,
    ) -> AsyncIterator[JobPage]:
        """Page by page up to `limit` jobs (None: all). Always at least one page, which may be empty."""
        left = limit
        while True:
            size = MAX_PAGE if left is None else min(left, MAX_PAGE)
            page = await self.page(where, order=order, limit=size, after=after)
            yield page
            after = page.next
            if left is not None:
                left -= len(page.jobs)
            if after is None or left == 0:
                return

    async def starting_with(self, text: str) -> UUID:
        """The id of the one job whose id starts with `text`, with or without dashes. A whole id is not looked up.

        Raises FieldError when `text` cannot start an id or starts several, NotFound when it starts none. One look
        at the index of ids.
        """
        start = text.strip().lower()
        digits = start.replace("-", "")
        if not _ID_PART.match(start) or len(digits) > 32:
            raise FieldError(
                f"{text[:64]!r} is not a job id",
                code="invalid_id",
                pointer="/id",
                hint="ids look like 0198c0de-4242-7000-8000-0123456789ab; the beginning is enough",
            )
        if len(digits) == 32:
            return UUID(hex=digits)
        if len(digits) < SHORTEST_PREFIX:
            raise FieldError(
                f"{text!r} is too short for the beginning of a job id",
                code="invalid_id",
                pointer="/id",
                hint=f"give at least {SHORTEST_PREFIX} digits, as `ropeway jobs list` shows them",
            )
        lowest = int(digits.ljust(32, "0"), 16)
        before = None if lowest == 0 else id_position(UUID(int=lowest - 1))
        page = await self.page(order="oldest", limit=2, after=before)
        ids = [job.id for job in page.jobs if job.id.hex.startswith(digits)]
        if not ids:
            raise NotFound(f"no job whose id starts with {text}", hint="ropeway jobs list shows the newest")
        if len(ids) > 1:
            raise FieldError(
                f"more than one job's id starts with {text}",
                code="invalid_id",
                pointer="/id",
                hint=f"give more of it: {ids[0]}, {ids[1]} ...",
            )
        return ids[0]

    async def cancel(self, ids: Sequence[UUID]) -> list[Changed | RopewayError]:
        return await self._engine.cancel(ids, tenant=self._tenant)

    async def retry(self, ids: Sequence[UUID], *, by: str | None = None) -> list[Changed | RopewayError]:
        """Dead and cancelled jobs run again, with a fresh budget."""
        return await self._engine.redrive(ids, by=by, tenant=self._tenant)

    async def reschedule(self, id: UUID, *, delay: float) -> Changed:
        """A job that has not started is due in so many seconds. Raises NotFound and InvalidState."""
        return await self._engine.reschedule(id, delay=delay, tenant=self._tenant)

    async def until_ended(self, id: UUID, *, timeout: float | None = None) -> Job:
        """The job once it has ended, or as it is when `timeout` seconds are over. Raises NotFound."""
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = FIRST_LOOK
        while True:
            job = await self.get(id)
            left = LAST_LOOK if deadline is None else deadline - time.monotonic()
            if job.state in TERMINAL_STATES or left <= 0:
                return job
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 1.5, LAST_LOOK)


def no_job(id: str) -> NotFound:
    return NotFound(f"no job {id}", hint="ended jobs are removed when their time is over: see the keep_ settings")
