"""Engines that are broken on purpose, one flaw each: the checker has to find every one of them.

The flaws are those that job queues have had: an ack that asks for no ticket, a reaper that overwrites what is
done, a key that is stored before its job. Each is a subclass of the memory engine, so that a hundred seeds take
seconds; the same flaws of the SQL engines are in `mutants_sqlite` and `mutants_postgres`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from ropeway.core.decide import JobFacts, Transition
from ropeway.core.errors import Indeterminate, RopewayError
from ropeway.core.job import DEFAULT_TENANT, NewJob
from ropeway.core.lease import Lease
from ropeway.core.outcome import Lost
from ropeway.core.states import CancelReason, EventName, State, Verb
from ropeway.core.unique import KeyKind
from ropeway.engines.memory import MemoryEngine
from ropeway.engines.memory.rows import GrantRow, JobRow, KeyRow
from ropeway.engines.protocol import Beat, EngineRules, Enqueued, Leased, Rescued
from ropeway.engines.settling import Applied, Change, Completion
from ropeway.runtime.clock import Clock
from ropeway.runtime.ids import uuid7

#: By name: the engine, and the rules that are meant to catch it.
MUTANTS: dict[str, tuple[type[MemoryEngine], frozenset[str]]] = {}


def caught_by(*rules: str) -> Callable[[type[MemoryEngine]], type[MemoryEngine]]:
    def register(engine: type[MemoryEngine]) -> type[MemoryEngine]:
        MUTANTS[engine.__name__] = (engine, frozenset(rules))
        return engine

    return register


class _OpenGate(MemoryEngine):
    """Lets any ticket of a live job pass while the gate is open."""

    gate = False

    def _current(self, tenant: str, lease: Lease) -> JobRow | None:
        if not self.gate:
            return super()._current(tenant, lease)
        row = self.row(tenant, lease.job_id)
        return row if row is not None and row.ended is None and row.started_at is not None else None


@caught_by("C5", "C17", "C20")
class AckUnfenced(_OpenGate):
    async def complete(self, tenant: str, completions: Sequence[Completion]) -> list[bool]:
        self.gate = True
        try:
            return await super().complete(tenant, completions)
        finally:
            self.gate = False


@caught_by("C5", "C20")
class NackUnfenced(_OpenGate):
    async def facts(self, tenant: str, leases: Sequence[Lease]) -> list[JobFacts | None]:
        self.gate = True
        try:
            return await super().facts(tenant, leases)
        finally:
            self.gate = False

    async def apply(self, tenant: str, changes: Sequence[Change]) -> list[Applied | None]:
        self.gate = True
        try:
            return await super().apply(tenant, changes)
        finally:
            self.gate = False


@caught_by("C5", "C20")
class HeartbeatUnfenced(MemoryEngine):
    async def heartbeat(
        self, leases: Sequence[Lease], *, lease_seconds: float | None = None, tenant: str = DEFAULT_TENANT
    ) -> list[Beat | RopewayError]:
        newest = []
        for lease in leases:
            row = self.row(tenant, lease.job_id)
            newest.append(lease if row is None or row.token is None else Lease(row.id, row.attempt, row.token))
        return await super().heartbeat(newest, lease_seconds=lease_seconds, tenant=tenant)


@caught_by("C6")
class AttemptsNotCounted(MemoryEngine):
    def _start(self, row: JobRow, worker: str, grant: GrantRow) -> Leased:
        row.attempts -= 1
        return super()._start(row, worker, grant)


@caught_by("C6", "C5")
class AttemptNotRaised(MemoryEngine):
    def _start(self, row: JobRow, worker: str, grant: GrantRow) -> Leased:
        if row.attempt:
            row.attempt -= 1
        return super()._start(row, worker, grant)


@caught_by("C1")
class KeyBeforeJob(MemoryEngine):
    """The key is stored by itself first; now and then the job does not follow."""

    calls = 0

    async def enqueue(self, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT) -> list[Enqueued]:
        self.calls += 1
        if self.calls % 10 == 0 and jobs[0].idempotency_key is not None:
            (name,) = [(tenant, KeyKind.IDEMPOTENCY.value, jobs[0].idempotency_key)]
            if name not in self.job_keys:
                now = self.clock.now()
                later = now + timedelta(days=1)
                self.job_keys[name] = KeyRow(uuid7(), jobs[0].body_fingerprint(), later, now)
                raise Indeterminate("the store went away")
        return await super().enqueue(jobs, tenant=tenant)


@caught_by("C10")
class NoIdempotency(MemoryEngine):
    def _known(self, job: NewJob, tenant: str) -> Enqueued | None:
        return None


@caught_by("C2", "C18")
class ReaperOverwritesCompleted(MemoryEngine):
    """What was completed between the reaper's look and its write is put back."""

    async def rescue(self, *, limit: int = 1_000) -> list[Rescued]:
        now = self.clock.now()
        for row in self.jobs.values():
            just = row.finished_at is not None and (now - row.finished_at).total_seconds() < 0.1
            if just and row.ended is State.SUCCEEDED:
                row.ended, row.finished_at = None, None
                self.write_event(row, EventName.RECLAIMED, detail={"cause": "crashed"})
                self.queue_up(row)
        return await super().rescue(limit=limit)


@caught_by("C1")
class CommitLost(MemoryEngine):
    """An accepted job was only in memory when the store went away."""

    async def enqueue(self, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT) -> list[Enqueued]:
        answers = await super().enqueue(jobs, tenant=tenant)
        if len(self.jobs) % 15 == 0 and not answers[0].deduplicated:
            self.jobs.pop(answers[0].id)
            self.events = [event for event in self.events if event.job_id != answers[0].id]
        return answers


@caught_by("C8", "C6")
class DoubleLease(MemoryEngine):
    """Two claims at once take the same row."""

    def _claim(self, tenant: str, queues: Sequence[str], count: int) -> list[JobRow]:
        rows = super()._claim(tenant, queues, count)
        running = [row for row in self.jobs.values() if row.token is not None and row.ended is None]
        if running and not rows:
            return running[:1] if len(self.events) % 5 == 0 else []
        return rows


@caught_by("C8", "C11")
class EventLost(MemoryEngine):
    def write_event(self, row: JobRow, event: EventName, **facts: Any) -> None:
        if event is not EventName.FAILED:
            super().write_event(row, event, **facts)


@caught_by("C11")
class EventNumberSkipped(MemoryEngine):
    def write_event(self, row: JobRow, event: EventName, **facts: Any) -> None:
        row.event_seq += event is EventName.COMPLETED
        super().write_event(row, event, **facts)


@caught_by("C11")
class EventsReordered(MemoryEngine):
    """The log hands out the newest event before the one that was written before it."""

    def write_event(self, row: JobRow, event: EventName, **facts: Any) -> None:
        super().write_event(row, event, **facts)
        if len(self.events) >= 2 and self.events[-2].job_id == row.id:
            self.events[-1], self.events[-2] = self.events[-2], self.events[-1]


@caught_by("C13")
class StartedEarly(MemoryEngine):
    def _claim(self, tenant: str, queues: Sequence[str], count: int) -> list[JobRow]:
        clock = self.clock
        self.clock = _Ahead(clock, 0.3)
        try:
            return super()._claim(tenant, queues, count)
        finally:
            self.clock = clock


class _Ahead(Clock):
    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._ahead = timedelta(seconds=seconds)

    def now(self) -> Any:
        return self._clock.now() + self._ahead


@caught_by("C7")
class WorkersClockInLease(MemoryEngine):
    """Leases are judged by a clock that is two seconds ahead."""

    async def rescue(self, *, limit: int = 1_000) -> list[Rescued]:
        for grant in self.grants.values():
            grant.expires_at -= timedelta(seconds=2)
        try:
            return await super().rescue(limit=limit)
        finally:
            for grant in self.grants.values():
                grant.expires_at += timedelta(seconds=2)


@caught_by("C17", "C19")
class RedeliverySkipped(MemoryEngine):
    """A job that comes back from a dead worker is taken for a duplicate and marked as done."""

    def change(self, row: JobRow, transition: Transition) -> Applied:
        if transition.event is not EventName.RECLAIMED:
            return super().change(row, transition)
        self.end(row, State.SUCCEEDED, spent_by=Verb.LOSE)
        self.write_event(row, EventName.COMPLETED, seconds=0.0)
        return Applied(State.SUCCEEDED, row.attempts, row.run_at)


@caught_by("C6")
class TokenReused(MemoryEngine):
    """Each owner has one token for all its leases."""

    def __init__(self, rules: EngineRules = EngineRules(), clock: Clock | None = None) -> None:
        super().__init__(rules, clock)
        self.first_tokens: dict[UUID, UUID] = {}

    def _start(self, row: JobRow, worker: str, grant: GrantRow) -> Leased:
        first = self.first_tokens.setdefault(UUID(int=0), grant.token)
        if grant.token != first:
            self.grants.pop(grant.token, None)
            held = self.grants.get(first)
            if held is not None:
                grant.open |= held.open
            grant.token = first
            self.grants[first] = grant
        return super()._start(row, worker, grant)


@caught_by("C6", "C1")
class NoMaxAttempts(MemoryEngine):
    async def facts(self, tenant: str, leases: Sequence[Lease]) -> list[JobFacts | None]:
        known = await super().facts(tenant, leases)
        return [f and msgspec.structs.replace(f, max_attempts=1_000) for f in known]


@caught_by("C19")
class NoCrashLimit(MemoryEngine):
    def __init__(self, rules: EngineRules = EngineRules(), clock: Clock | None = None) -> None:
        decisions = msgspec.structs.replace(rules.decisions, crash_limit=1_000)
        super().__init__(msgspec.structs.replace(rules, decisions=decisions), clock)


@caught_by("C1")
class RunningNeverReclaimed(MemoryEngine):
    async def rescue(self, *, limit: int = 1_000) -> list[Rescued]:
        return []

    async def end_grants(
        self,
        owner: UUID,
        *,
        started: Collection[UUID] | None = None,
        lost: Lost = Lost(),
        only: Collection[UUID] | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Rescued]:
        return []


@caught_by("C17", "C2")
class PopWithoutLease(MemoryEngine):
    """Taking a job from the queue is the end of it."""

    def _start(self, row: JobRow, worker: str, grant: GrantRow) -> Leased:
        leased = super()._start(row, worker, grant)
        self.end(row, State.SUCCEEDED, spent_by=Verb.ACK)
        self.write_event(row, EventName.COMPLETED, seconds=0.0)
        return leased


@caught_by("C5", "C2", "C20")
class CancelKeepsTheLease(MemoryEngine):
    def cancel_row(self, row: JobRow, reason: CancelReason) -> None:
        token, worker = row.token, row.worker
        super().cancel_row(row, reason)
        row.token, row.worker = token, worker


@caught_by("C18", "C20")
class RedriveOfSucceeded(MemoryEngine):
    """An operator's redrive does not ask whether the job succeeded."""

    async def redrive(self, ids: Sequence[UUID], *, by: str | None = None, tenant: str = DEFAULT_TENANT) -> Any:
        for id in ids:
            row = self.row(tenant, id)
            if row is not None and row.ended is State.SUCCEEDED:
                row.ended = State.DEAD
        return await super().redrive(ids, by=by, tenant=tenant)
