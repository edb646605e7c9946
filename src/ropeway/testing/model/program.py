"""A program: calls made on every side and in the oracle, and everything that can be seen compared after each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

import msgspec

from ropeway.core.decide import Rules
from ropeway.core.job import Job
from ropeway.core.outcome import Done, Lost, Outcome, Released
from ropeway.core.query import JobFilter, Order, QueueSettings
from ropeway.core.retry import RetryPolicy
from ropeway.core.states import State
from ropeway.engines.memory import MemoryEngine
from ropeway.engines.protocol import EngineRules, WorkerRef
from ropeway.runtime import ids
from ropeway.runtime.clock import ManualClock
from ropeway.testing.conformance.subject import TEST_RULES, Harness, Subject
from ropeway.testing.harness import MemorySubject
from ropeway.testing.model.laws import broken_end, broken_law
from ropeway.testing.model.oracle import Oracle
from ropeway.testing.model.records import LEASE_LOST, NOT_FOUND, Ask, ModelJob, Ticket
from ropeway.testing.model.side import Forged, Side, moment
from ropeway.testing.model.telling import compare, said

Thing = TypeVar("Thing")

DAY = 86_400.0

#: Nothing random decides anything, and retention is short enough for a program to see its end.
RULES: EngineRules = msgspec.structs.replace(
    TEST_RULES,
    decisions=Rules(retry=RetryPolicy(base=5.0, factor=2.0, cap=60.0, jitter=0.0)),
    keep_succeeded=DAY,
    keep_cancelled=2 * DAY,
    keep_dead=3 * DAY,
    keep_events=3 * DAY,
)

TENANTS = ("a", "b")
QUEUES = ("q1", "q2")
WORKERS = ("w1", "w2", "w3")


class Call(NamedTuple):
    """One step: a method of `Program` and its arguments."""

    method: str
    arguments: dict[str, Any]

    def __repr__(self) -> str:
        return f"{self.method}({', '.join(f'{name}={said(value)}' for name, value in self.arguments.items())})"


class Broken(AssertionError):
    """A program did not go as the oracle says. `calls` are those that were made, the last one went wrong."""

    def __init__(self, what: str, calls: Sequence[Call]) -> None:
        super().__init__("\n".join([what, "after this program:", *(f"  {call!r}" for call in calls)]))
        self.calls = list(calls)


class Program:
    """Producers, workers, operators and upkeep at work, and time passing by."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        #: Tickets that were not used yet (which does not make them good), and those that were.
        self.leases: list[Ticket] = []
        self.stale: list[Ticket] = []
        self.calls: list[Call] = []
        self._runner = asyncio.Runner()
        self._opened = AsyncExitStack()
        try:
            self._runner.run(self._open())
        except BaseException:
            self.close()
            raise

    async def _open(self) -> None:
        subject = await self._opened.enter_async_context(self.harness.subject(RULES))
        now = await subject.engine.now()
        # Retention goes by whole days, so every program starts at noon.
        noon = now.replace(hour=12, minute=0, second=0, microsecond=0)
        await subject.advance(((noon - now) % timedelta(days=1)).total_seconds())
        start = await subject.engine.now()
        self.oracle = Oracle(start, RULES)
        self.sides = [Side(self.harness.name, subject)]
        if self.harness.name != MemoryEngine.name:
            self.sides.append(Side("the reference", _reference(start)))
        self.owners = {(tenant, name): ids.token() for tenant in TENANTS for name in WORKERS}

    def close(self) -> None:
        self._runner.run(self._opened.aclose())
        self._runner.close()

    # ── steps ──

    def step(self, call: Call) -> None:
        """Make a call that names jobs and tickets by how long ago they were made: 0 is the newest.

        What it needs is made first, the plainest way there is, so that few steps of a program come to nothing.
        """
        arguments = dict(call.arguments)
        if "job" in arguments:
            arguments["job"] = _from_end(self._some_jobs(), arguments["job"]).number
        for bundle, some in (("lease", self._some_leases), ("stale", self._some_stale)):
            if bundle in arguments:
                arguments["ticket"] = _from_end(some(), arguments.pop(bundle))
        self.do(call.method, **arguments)

    def _some_jobs(self) -> list[ModelJob]:
        if not self.oracle.all:
            self.do("enqueue", tenant="a", asks=[Ask()], reply_lost=False)
        return self.oracle.all

    def _some_leases(self) -> list[Ticket]:
        for tenant in TENANTS:
            if not self.leases:
                self.do("lease", tenant=tenant, queues=QUEUES, count=2, worker="w1", seconds=30.0)
        if not self.leases:
            self.do("pause", tenant="a", queue="q1", paused=False)
            self.do("enqueue", tenant="a", asks=[Ask()], reply_lost=False)
            return self._some_leases()
        return self.leases

    def _some_stale(self) -> list[Ticket]:
        if not self.stale:
            self.do("settle", ticket=self._some_leases()[-1], outcome=Released(), reply_lost=False)
        return self.stale

    def do(self, method: str, **arguments: Any) -> None:
        """Make one call and look at everything."""
        self.calls.append(Call(method, arguments))
        try:
            getattr(self, method)(**arguments)
            for side in self.sides:
                self._runner.run(self._look(side))
        except Exception as error:  # noqa: BLE001 - whatever it is, the program is what explains it
            what = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            raise Broken(what, self.calls) from (None if isinstance(error, AssertionError) else error)

    def possible(self, call: Call) -> bool:
        """Whether the job or ticket that a call names exists: in a shortened program it may not."""
        ticket = call.arguments.get("ticket")
        known = ticket is None or self.sides[0].knows(ticket)
        return known and call.arguments.get("job", 0) <= len(self.oracle.all)

    # ── comparing ──

    def both(self, expected: object, call: Callable[[Side], Coroutine[Any, Any, object]]) -> None:
        """Make a call on every side; each has to give the answer that the oracle gave."""
        for side in self.sides:
            compare(f"answer of {side.name}", self._runner.run(call(side)), expected)

    async def _look(self, side: Side) -> None:
        jobs: dict[str, list[Job | None]] = {}
        for tenant in TENANTS:
            jobs[tenant] = await side.get(tenant)
            compare(f"jobs of {tenant} in {side.name}", jobs[tenant], self.oracle.get(tenant))
            stats = await side.queue_stats(tenant)
            compare(f"queues of {tenant} in {side.name}", stats, self.oracle.queue_stats(tenant))
            # Every job that was accepted and not removed is in exactly one state.
            number = sum(sum(queue.counts.values()) for queue in stats)
            assert number == len(self.oracle.kept(tenant)), f"C16 {side.name}: {number} jobs of {tenant}"
        for touched in await side.read_log():
            job, log = self.oracle.job(touched), side.logs[touched]
            complaint = broken_law(
                log, max_attempts=job.ask.max_attempts, crash_limit=RULES.decisions.crash_limit
            ) or broken_end(log, jobs[job.tenant][touched - 1])
            if complaint is not None:
                raise AssertionError(f"{side.name}: job {touched}: {complaint}")
            compare(f"log of job {touched} in {side.name}", log, job.log)
        for job in self.oracle.all:
            missing = len(job.log) - len(side.logs.get(job.number, ()))
            assert not missing, f"C11 {side.name}: job {job.number} lacks {missing} events"

    def everything_comes_to_an_end(self) -> None:
        """C1: given workers and time, no job is left. Then every log is read once more, by job."""
        for tenant in TENANTS:
            for queue in QUEUES:
                self.pause(tenant, queue, paused=False)
        for _ in range(5):
            live = [job for job in self.oracle.kept() if job.end is None]
            if not live:
                break
            ahead = max(job.run_at for job in live) - self.oracle.now
            self.advance(max(ahead.total_seconds(), 43_200.0))
            self.rescue()
            self.expire()
            for tenant in TENANTS:
                leases = self._lease(tenant, QUEUES, 1_000, "w1", 30.0)
                self._settle(tenant, [(ticket, Done()) for ticket in leases])
        assert all(job.end is not None for job in self.oracle.kept()), "C1 a job is left"
        for side in self.sides:
            self._runner.run(self._look_again(side))

    async def _look_again(self, side: Side) -> None:
        for job in self.oracle.all:
            events = await side.events_of(job.tenant, job.number)
            compare(f"events of job {job.number} in {side.name}", events, self.oracle.kept_log(job.number))
            foreign = await side.events_of(_other(job.tenant), job.number)
            assert foreign == [], f"C15 {side.name}: events of job {job.number} for another tenant"

    # ── producers ──

    def enqueue(self, tenant: str, asks: list[Ask], reply_lost: bool) -> None:
        self._enqueue(tenant, asks)
        if reply_lost and all(ask.key for ask in asks):
            self._enqueue(tenant, asks)

    def _enqueue(self, tenant: str, asks: Sequence[Ask]) -> None:
        wanted = [ask.job(self.oracle.start) for ask in asks]
        self.both(self.oracle.enqueue(tenant, asks), lambda side: side.enqueue(tenant, wanted))

    # ── workers ──

    def lease(self, tenant: str, queues: Sequence[str], count: int, worker: str, seconds: float) -> None:
        self.leases += self._lease(tenant, queues, count, worker, seconds)

    def _lease(self, tenant: str, queues: Sequence[str], count: int, worker: str, seconds: float) -> list[Ticket]:
        who = WorkerRef(worker, self.owners[tenant, worker])
        expected = self.oracle.lease(tenant, queues, count, worker, who.owner, seconds)
        for leased in expected.leases:
            assert leased.job.run_at <= self.oracle.now, "C13 the oracle itself started a job early"
        self.both(expected, lambda side: side.lease(tenant, queues, count, who, seconds))
        return [Ticket(leased.lease.job_id.int, leased.lease.attempt) for leased in expected.leases]

    def settle(self, ticket: Ticket, outcome: Outcome, reply_lost: bool) -> None:
        tenant = self._use(ticket)
        self._settle(tenant, [(ticket, outcome)])
        if reply_lost:
            self._settle(tenant, [(ticket, outcome)])

    def work(self, tenant: str, count: int, outcome: Outcome) -> None:
        """A worker takes a batch and everything in it ends alike."""
        tickets = self._lease(tenant, QUEUES, count, "w2", 30.0)
        self.stale += tickets
        self._settle(tenant, [(ticket, outcome) for ticket in tickets])

    def crash(self, tenant: str, times: int) -> None:
        """The next job kills its worker, and the one after that."""
        for _ in range(times):
            self.stale += self._lease(tenant, QUEUES, 1, "w3", 30.0)
            self.worker_dies(tenant, "w3", reported=True, started=None)

    def settle_together(self, ticket: Ticket, how: tuple[Outcome, Outcome, Outcome]) -> None:
        """One batch for two tickets, the first of them twice, and the tenant of the first for both."""
        tenant = self._use(ticket)
        other = self.leases[-1] if self.leases else ticket
        self._settle(tenant, list(zip((ticket, other, ticket), how, strict=True)))

    def replay(self, ticket: Ticket, outcome: Outcome) -> None:
        """A zombie wakes up."""
        self._settle(self.oracle.job(ticket.job).tenant, [(ticket, outcome)])

    def _use(self, ticket: Ticket) -> str:
        if ticket in self.leases:
            self.leases.remove(ticket)
        self.stale.append(ticket)
        return self.oracle.job(ticket.job).tenant

    def _settle(self, tenant: str, pairs: Sequence[tuple[Ticket, Outcome]]) -> None:
        self.both(self.oracle.settle(tenant, pairs), lambda side: side.settle(tenant, pairs))

    def forge(self, ticket: Ticket, outcome: Outcome, forged: Forged) -> None:
        """The right job, but another token or attempt."""
        tenant = self.oracle.job(ticket.job).tenant
        self.both([LEASE_LOST], lambda side: side.settle(tenant, [(ticket, outcome)], forged=forged))
        self.both(LEASE_LOST, lambda side: side.heartbeat(tenant, ticket, None, forged=forged))

    def heartbeat(self, ticket: Ticket, seconds: float | None) -> None:
        tenant = self.oracle.job(ticket.job).tenant
        expected = self.oracle.heartbeat(tenant, ticket, seconds)
        self.both(expected, lambda side: side.heartbeat(tenant, ticket, seconds))

    def heartbeat_owner(self, tenant: str, worker: str) -> None:
        owner = self.owners[tenant, worker]
        expected = self.oracle.heartbeat_owner(tenant, owner)
        for side in self.sides:
            complaint = expected.complaint(self._runner.run(side.heartbeat_owner(tenant, owner)))
            if complaint is not None:
                raise AssertionError(f"answer of {side.name}: {complaint}")

    def progress(self, ticket: Ticket, done: float) -> None:
        tenant = self.oracle.job(ticket.job).tenant
        expected = self.oracle.progress(tenant, ticket, done)
        self.both(expected, lambda side: side.progress(tenant, ticket, done))

    def worker_dies(self, tenant: str, worker: str, reported: bool, started: int | None) -> None:
        """Its supervisor reports it (`started`: every job, or only those with an even or odd number), or nobody
        does and its leases have to run out. The next worker of that name is another owner."""
        owner = self.owners[tenant, worker]
        self.owners[tenant, worker] = ids.token()
        if not reported:
            return
        numbers = range(1, len(self.oracle.all) + 1)
        ran = None if started is None else [number for number in numbers if number % 2 == started]
        lost = Lost("crashed", signal=9)
        expected = self.oracle.end_grants(tenant, owner, ran, lost)
        self.both(expected, lambda side: side.end_grants(tenant, owner, ran, lost))

    # ── operators ──

    def _batch(self, job: int, more: int) -> list[int]:
        """The job and its neighbours; the last one may be named twice."""
        return [min(job + step, len(self.oracle.all)) for step in range(more + 1)]

    def cancel(self, job: int, more: int) -> None:
        tenant, batch = self.oracle.job(job).tenant, self._batch(job, more)
        self.both(self.oracle.cancel(tenant, batch), lambda side: side.cancel(tenant, batch))

    def redrive(self, job: int, more: int, by: str | None) -> None:
        tenant, batch = self.oracle.job(job).tenant, self._batch(job, more)
        self.both(self.oracle.redrive(tenant, batch, by), lambda side: side.redrive(tenant, batch, by))

    def redrive_where(self, tenant: str, queue: str | None, cancelled: bool, dry_run: bool) -> None:
        states = frozenset({State.DEAD, State.CANCELLED}) if cancelled else None
        where = JobFilter(queue=queue, states=states)
        found = self.oracle.find(tenant, JobFilter(queue=queue, states=states or frozenset({State.DEAD})))
        numbers = [job.id.int for job in found]
        # They queue up by id, so only ids that sort alike on all sides give the same line.
        dry_run = dry_run or not all(side.in_creation_order(numbers) for side in self.sides)
        retried = [] if dry_run else [job.id for job in found]
        if not dry_run:
            self.oracle.redrive(tenant, numbers, None)
        self.both((len(found), retried, False), lambda side: side.redrive_where(tenant, where, dry_run=dry_run))

    def reschedule(
        self, job: int, delay: float | None, at: float | None, priority: int | None, queue: str | None
    ) -> None:
        if delay is None and at is None and priority is None and queue is None:
            priority = 2
        tenant = self.oracle.job(job).tenant
        run_at = None if at is None or delay is not None else moment(self.oracle.start, at)
        change: dict[str, Any] = {"delay": delay, "run_at": run_at, "priority": priority, "queue": queue}
        expected = self.oracle.reschedule(tenant, job, **change)
        self.both(expected, lambda side: side.reschedule(tenant, job, **change))

    def delete(self, job: int, more: int) -> None:
        tenant, batch = self.oracle.job(job).tenant, self._batch(job, more)
        self.both(self.oracle.delete(tenant, batch), lambda side: side.delete(tenant, batch))

    def pause(self, tenant: str, queue: str, paused: bool) -> None:
        (self.oracle.paused.add if paused else self.oracle.paused.discard)((tenant, queue))
        self.both(None, lambda side: side.pause(tenant, queue, paused))

    def set_queue(self, tenant: str, queue: str, settings: QueueSettings) -> None:
        self.oracle.settings[tenant, queue] = settings
        self.both(None, lambda side: side.set_queue(tenant, queue, settings))

    def place(self, job: int, more: int) -> None:
        tenant = self.oracle.job(job).tenant
        for number in self._batch(job, more):
            self._place(tenant, number)

    def _place(self, tenant: str, number: int) -> None:
        self.both(self.oracle.place(tenant, number), lambda side: side.place(tenant, number))

    def trespass(self, job: int) -> None:
        """C15: to another tenant a job is as if it were not there."""
        tenant = _other(self.oracle.job(job).tenant)
        self.both([NOT_FOUND], lambda side: side.cancel(tenant, [job]))
        self.both([NOT_FOUND], lambda side: side.redrive(tenant, [job], None))
        self.both([NOT_FOUND], lambda side: side.delete(tenant, [job]))
        change: dict[str, Any] = {"delay": 1.0, "run_at": None, "priority": None, "queue": None}
        self.both(NOT_FOUND, lambda side: side.reschedule(tenant, job, **change))
        self.both(None, lambda side: side.place(tenant, job))

    def trespass_with_a_ticket(self, ticket: Ticket, outcome: Outcome) -> None:
        tenant = _other(self.oracle.job(ticket.job).tenant)
        self.both([LEASE_LOST], lambda side: side.settle(tenant, [(ticket, outcome)]))
        self.both(LEASE_LOST, lambda side: side.heartbeat(tenant, ticket, None))

    def find(self, tenant: str, where: JobFilter, order: Order, limit: int) -> None:
        found = self.oracle.find(tenant, where)
        self.both(len(found), lambda side: side.count(tenant, where))
        if order == "died":
            found = [job for job in found if job.state is State.DEAD]
        self.both(found, lambda side: side.find(tenant, where, order, limit))

    # ── time and upkeep ──

    def advance(self, seconds: float) -> None:
        self.oracle.now = moment(self.oracle.now, seconds)
        self.both(self.oracle.now, lambda side: side.advance(seconds))

    def rescue(self) -> None:
        self.both(self.oracle.rescue(), lambda side: side.rescue())

    def expire(self) -> None:
        self.both(self.oracle.expire(), lambda side: side.expire())

    def audit(self) -> None:
        """No call leaves a job without its grant, so there is nothing to be found."""
        self.both([], lambda side: side.audit())

    def prune(self) -> None:
        self.both(self.oracle.prune(), lambda side: side.prune())


def _reference(start: datetime) -> Subject:
    reference = MemorySubject(RULES)
    reference.clock = ManualClock(start)
    reference.engine = MemoryEngine(RULES, reference.clock)
    return reference


def _from_end(things: list[Thing], ago: int) -> Thing:
    return things[-1 - ago % len(things)]


def _other(tenant: str) -> str:
    return TENANTS[1 - TENANTS.index(tenant)]
