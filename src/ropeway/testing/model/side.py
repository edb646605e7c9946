"""One engine as the program sees it: numbers instead of ids, tickets instead of leases, refusals as values."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar
from uuid import UUID

import msgspec

from ropeway.core.errors import RopewayError
from ropeway.core.events import Event
from ropeway.core.job import Job, NewJob, Progress
from ropeway.core.lease import Lease
from ropeway.core.outcome import Lost, Outcome
from ropeway.core.query import Count, JobFilter, Order, QueueSettings, QueueStats
from ropeway.engines.protocol import (
    Beat,
    Changed,
    Enqueued,
    LeaseBatch,
    Leased,
    Pruned,
    Rescued,
    Settled,
    Settlement,
    WorkerRef,
)
from ropeway.runtime import ids
from ropeway.testing.conformance.subject import Subject
from ropeway.testing.model.records import Refused, Ticket, small

Answer = TypeVar("Answer")
#: The part of a ticket that is made up.
Forged = Literal["token", "attempt"]


class Side:
    """An engine, and what the ids and tokens it drew stand for."""

    def __init__(self, name: str, subject: Subject) -> None:
        self.name = name
        self.subject = subject
        self.engine = subject.engine
        self.ids: list[UUID] = []
        self.logs: dict[int, list[Event]] = {}
        self._numbers: dict[UUID, int] = {}
        self._leases: dict[Ticket, Lease] = {}
        self._tokens: set[UUID] = set()
        self._position: str | None = None

    # ── translation ──

    def _number(self, id: UUID) -> int:
        """A job's number; an id that was never accepted is unexpected (C3)."""
        assert id in self._numbers, f"C3 {self.name}: {id} was never accepted"
        return self._numbers[id]

    def _id(self, number: int) -> UUID:
        return self.ids[number - 1]

    def knows(self, ticket: Ticket) -> bool:
        return ticket in self._leases

    def lease_of(self, ticket: Ticket) -> Lease:
        return self._leases[ticket]

    def _job(self, job: Job) -> Job:
        return msgspec.structs.replace(job, id=small(self._number(job.id)))

    def _changed(self, answer: Changed | RopewayError) -> Changed | Refused:
        return _refused(answer) if isinstance(answer, RopewayError) else self._renamed(answer)

    def _renamed(self, answer: Any) -> Any:
        return msgspec.structs.replace(answer, id=small(self._number(answer.id)))

    # ── submitting ──

    async def enqueue(self, tenant: str, jobs: Sequence[NewJob]) -> list[Enqueued] | Refused:
        answers = await _caught(self.engine.enqueue(jobs, tenant=tenant))
        if isinstance(answers, Refused):
            return answers
        for answer in answers:
            if answer.id not in self._numbers:
                self.ids.append(answer.id)
                self._numbers[answer.id] = len(self.ids)
        return [self._renamed(answer) for answer in answers]

    # ── leasing ──

    async def lease(
        self, tenant: str, queues: Sequence[str], count: int, worker: WorkerRef, seconds: float
    ) -> LeaseBatch:
        batch = await self.engine.lease(queues, count, worker, lease_seconds=seconds, tenant=tenant)
        tokens = {leased.lease.token for leased in batch.leases}
        assert not tokens & self._tokens, f"C6 {self.name}: a token was given out before"
        self._tokens |= tokens
        return LeaseBatch(
            [self._leased(leased) for leased in batch.leases], batch.lease_seconds, batch.next_due_in
        )

    def _leased(self, leased: Leased) -> Leased:
        assert leased.job.id == leased.lease.job_id
        ticket = Ticket(self._number(leased.job.id), leased.lease.attempt)
        assert ticket not in self._leases, f"C6 {self.name}: {ticket} was given out before"
        self._leases[ticket] = leased.lease
        return Leased(self._job(leased.job), ticket.lease())

    async def settle(
        self, tenant: str, pairs: Sequence[tuple[Ticket, Outcome]], *, forged: Forged | None = None
    ) -> list[Settled | Refused]:
        settlements = [Settlement(self._presented(ticket, forged), outcome) for ticket, outcome in pairs]
        answers = await self.engine.settle(settlements, tenant=tenant)
        return [
            _refused(answer) if isinstance(answer, RopewayError) else self._renamed(answer) for answer in answers
        ]

    def _presented(self, ticket: Ticket, forged: Forged | None) -> Lease:
        lease = self.lease_of(ticket)
        if forged == "token":
            return msgspec.structs.replace(lease, token=ids.token())
        return msgspec.structs.replace(lease, attempt=lease.attempt + 1) if forged == "attempt" else lease

    async def progress(self, tenant: str, ticket: Ticket, done: float) -> Refused | None:
        (answer,) = await self.engine.progress([(self.lease_of(ticket), Progress(done=done))], tenant=tenant)
        return None if answer is None else _refused(answer)

    async def heartbeat(
        self, tenant: str, ticket: Ticket, seconds: float | None, *, forged: Forged | None = None
    ) -> Beat | Refused:
        (answer,) = await self.engine.heartbeat(
            [self._presented(ticket, forged)], lease_seconds=seconds, tenant=tenant
        )
        return _refused(answer) if isinstance(answer, RopewayError) else self._beat(answer)

    async def heartbeat_owner(self, tenant: str, owner: UUID) -> Beat | None:
        answer = await self.engine.heartbeat_owner(owner, tenant=tenant)
        return None if answer is None else self._beat(answer)

    def _beat(self, beat: Beat) -> Beat:
        return Beat(beat.expires_in, tuple(sorted(small(self._number(id)) for id in beat.revoked)))

    async def end_grants(
        self, tenant: str, owner: UUID, started: Collection[int] | None, lost: Lost
    ) -> list[Rescued]:
        ran = None if started is None else [self._id(number) for number in started]
        return self._rescued(await self.engine.end_grants(owner, started=ran, lost=lost, tenant=tenant))

    def _rescued(self, answers: Sequence[Rescued]) -> list[Rescued]:
        return sorted((self._renamed(answer) for answer in answers), key=lambda answer: answer.id)

    # ── operating ──

    async def cancel(self, tenant: str, numbers: Sequence[int]) -> list[Changed | Refused]:
        answers = await self.engine.cancel([self._id(number) for number in numbers], tenant=tenant)
        return [self._changed(answer) for answer in answers]

    async def redrive(self, tenant: str, numbers: Sequence[int], by: str | None) -> list[Changed | Refused]:
        answers = await self.engine.redrive([self._id(number) for number in numbers], by=by, tenant=tenant)
        return [self._changed(answer) for answer in answers]

    async def redrive_where(self, tenant: str, where: JobFilter, *, dry_run: bool) -> tuple[int, list[UUID], bool]:
        report = await self.engine.redrive_where(where, dry_run=dry_run, tenant=tenant)
        assert report.dry_run is dry_run
        return report.matched, sorted(small(self._number(id)) for id in report.retried), report.more

    async def delete(self, tenant: str, numbers: Sequence[int]) -> list[Changed | Refused]:
        answers = await self.engine.delete([self._id(number) for number in numbers], tenant=tenant)
        return [self._changed(answer) for answer in answers]

    async def reschedule(
        self,
        tenant: str,
        number: int,
        *,
        delay: float | None,
        run_at: datetime | None,
        priority: int | None,
        queue: str | None,
    ) -> Changed | Refused:
        answer = await _caught(
            self.engine.reschedule(
                self._id(number), delay=delay, run_at=run_at, priority=priority, queue=queue, tenant=tenant
            )
        )
        return answer if isinstance(answer, Refused) else self._changed(answer)

    async def pause(self, tenant: str, queue: str, paused: bool) -> None:
        await (self.engine.pause if paused else self.engine.resume)(queue, tenant=tenant)

    async def set_queue(self, tenant: str, queue: str, settings: QueueSettings) -> None:
        await self.engine.set_queue(queue, settings, tenant=tenant)

    # ── upkeep ──

    async def advance(self, seconds: float) -> datetime:
        await self.subject.advance(seconds)
        return await self.engine.now()

    async def rescue(self) -> list[Rescued]:
        return self._rescued(await self.engine.rescue())

    async def audit(self) -> list[Rescued]:
        return self._rescued(await self.engine.audit())

    async def expire(self) -> list[UUID]:
        return sorted(small(self._number(id)) for id in await self.engine.expire())

    async def prune(self) -> Pruned:
        return await self.engine.prune()

    # ── looking ──

    async def get(self, tenant: str) -> list[Job | None]:
        jobs = await self.engine.get(self.ids, tenant=tenant)
        return [None if job is None else self._job(job) for job in jobs]

    async def queue_stats(self, tenant: str) -> list[QueueStats]:
        return await self.engine.queue_stats(tenant=tenant)

    async def place(self, tenant: str, number: int) -> Count | None:
        return await self.engine.place(self._id(number), tenant=tenant)

    async def count(self, tenant: str, where: JobFilter) -> int:
        return (await self.engine.count(where, tenant=tenant)).number

    async def find(self, tenant: str, where: JobFilter, order: Order, limit: int) -> list[Job]:
        """All pages of a list, by number; the order within and across pages is checked here."""
        found: list[Job] = []
        after: str | None = None
        while True:
            page = await self.engine.find(where, order=order, limit=limit, after=after, tenant=tenant)
            assert len(page.jobs) <= limit, f"{self.name}: a page of {len(page.jobs)}, {limit} were asked for"
            found += page.jobs
            if page.next is None:
                break
            assert page.jobs, f"{self.name}: an empty page says that there is more"
            after = page.next
        places = [(job.finished_at, job.id) if order == "died" else (None, job.id) for job in found]
        assert places == sorted(places, reverse=order != "oldest"), f"{self.name}: not in the order {order}"
        return sorted((self._job(job) for job in found), key=lambda job: job.id)

    def in_creation_order(self, numbers: Sequence[int]) -> bool:
        """Whether the ids of these jobs sort as the jobs were made (two calls in one millisecond may not)."""
        drawn = [self._id(number) for number in numbers]
        return drawn == sorted(drawn)

    async def read_log(self) -> set[int]:
        """Read the tail on and keep it by job; the jobs that something happened to."""
        touched = set()
        while True:
            page = await self.engine.tail(self._position, limit=7)
            self._position = page.position
            for event in page.events:
                number = self._number(event.job_id)
                touched.add(number)
                renamed = msgspec.structs.replace(event, job_id=small(number))
                self.logs.setdefault(number, []).append(renamed)
            if not page.events:
                return touched

    async def events_of(self, tenant: str, number: int) -> list[Event]:
        events = await self.engine.events_of(self._id(number), tenant=tenant)
        return [msgspec.structs.replace(event, job_id=small(number)) for event in events]


async def _caught(call: Awaitable[Answer]) -> Answer | Refused:
    try:
        return await call
    except RopewayError as error:
        return _refused(error)


def _refused(error: RopewayError) -> Refused:
    return Refused(error.code, error.index, getattr(error, "status", None))


def moment(start: datetime, seconds: float) -> datetime:
    """An instant of the program."""
    return start + timedelta(seconds=seconds)
