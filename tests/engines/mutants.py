"""Engines that are broken on purpose, one switch each (E39 iii). The conformance suite has to catch every one.

A mutant of the memory engine is a subclass that overrides one method, named after what is broken, registered by
`@mutant`. It must still answer calls: what it gets wrong has to be seen by a test, not by a crash of its own.

A mutant of an SQL engine is a change to the text of one statement. `sqlfile.statements(package, file)` returns the
dict of named statements that the engine reads from, the same dict at each call, so a statement can be exchanged in
place while the mutant lives:

    with altered(Alteration("unfenced ack", "ropeway.engines.sqlite", "sql/leasing.sql", "complete",
                            old="AND token = :token", new="")):
        run_suite(SqliteHarness())

`altered` refuses an alteration whose `old` text is not in the statement: a mutant that changes nothing proves
nothing. An engine that copies its statements when it opens must be opened inside the block, as a harness does for
each subject.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from chaos.mutants import (
    AckUnfenced,
    AttemptNotRaised,
    AttemptsNotCounted,
    CancelKeepsTheLease,
    HeartbeatUnfenced,
    NackUnfenced,
    NoCrashLimit,
    NoMaxAttempts,
)
from ropeway.core.access import ApiKey, NewKey
from ropeway.core.auditlog import Action
from ropeway.core.decide import Transition
from ropeway.core.errors import RopewayError
from ropeway.core.events import Event, EventPage
from ropeway.core.fleet import WorkerInfo
from ropeway.core.job import DEFAULT_TENANT, Job, NewJob
from ropeway.core.joblog import LogLine
from ropeway.core.lease import LastTicket, Lease
from ropeway.core.limits import Taken
from ropeway.core.outcome import Lost
from ropeway.core.query import Count, QueueSettings
from ropeway.core.schedule import Schedule
from ropeway.core.states import CancelReason, EventName, State, Verb
from ropeway.engines import sqlfile
from ropeway.engines.memory import MemoryEngine
from ropeway.engines.memory.lanes import Lanes
from ropeway.engines.memory.rows import GrantRow, JobRow
from ropeway.engines.protocol import (
    Beat,
    Changed,
    EngineRules,
    Enqueued,
    Leased,
    Pruned,
    Rescued,
)
from ropeway.engines.settling import Applied
from ropeway.runtime.clock import Clock
from ropeway.testing.conformance.subject import TEST_RULES
from ropeway.testing.harness import MemoryHarness, MemorySubject

MUTANTS: dict[str, type[MemoryEngine]] = {}


def mutant(engine: type[MemoryEngine]) -> type[MemoryEngine]:
    MUTANTS[engine.__name__] = engine
    return engine


class MutantHarness(MemoryHarness):
    """The memory engine's harness around another class."""

    def __init__(self, engine: type[MemoryEngine]) -> None:
        self._engine = engine

    @asynccontextmanager
    async def subject(self, rules: EngineRules = TEST_RULES) -> AsyncIterator[MemorySubject]:
        subject = MemorySubject(rules)
        subject.engine = self._engine(rules, subject.clock)
        yield subject


#: Flaws that the checker of histories has to find as well.
for _engine in (
    AckUnfenced,
    NackUnfenced,
    HeartbeatUnfenced,
    AttemptNotRaised,
    CancelKeepsTheLease,
    AttemptsNotCounted,
    NoMaxAttempts,
    NoCrashLimit,
):
    mutant(_engine)


# ── the fence ──


@mutant
class TokenNotCompared(MemoryEngine):
    def _current(self, tenant: str, lease: Lease) -> JobRow | None:
        row = self.row(tenant, lease.job_id)
        return row if row is not None and row.token is not None and row.attempt == lease.attempt else None


@mutant
class TokenReused(MemoryEngine):
    def __init__(self, rules: EngineRules = EngineRules(), clock: Clock | None = None) -> None:
        super().__init__(rules, clock)
        self.first_tokens: dict[UUID, UUID] = {}

    def _start(self, row: JobRow, worker: str, grant: GrantRow) -> Leased:
        """Every grant of an owner gets the token of its first one."""
        first = self.first_tokens.setdefault(grant.owner, grant.token)
        if grant.token != first:
            self.grants.pop(grant.token, None)
            grant.token = first
            self.grants[first] = grant
        return super()._start(row, worker, grant)


@mutant
class LateAckRefused(MemoryEngine):
    def _current(self, tenant: str, lease: Lease) -> JobRow | None:
        row = super()._current(tenant, lease)
        until = None if row is None else self.locked_until(row)
        return None if until is None or until <= self.clock.now() else row


@mutant
class SecondAckRefused(MemoryEngine):
    async def last_tickets(self, tenant: str, ids: Sequence[UUID]) -> dict[UUID, LastTicket]:
        return {}


@mutant
class CancelDoesNotRevoke(MemoryEngine):
    def cancel_row(self, row: JobRow, reason: CancelReason) -> None:
        grant = None if row.token is None else self.grants.get(row.token)
        super().cancel_row(row, reason)
        if grant is not None:
            grant.revoked.clear()


# ── events ──


@mutant
class EventLost(MemoryEngine):
    def write_event(self, row: JobRow, event: EventName, **facts: Any) -> None:
        if event is not EventName.RECLAIMED:
            super().write_event(row, event, **facts)


@mutant
class EventSeqGap(MemoryEngine):
    def write_event(self, row: JobRow, event: EventName, **facts: Any) -> None:
        row.event_seq += event is EventName.RETRIED
        super().write_event(row, event, **facts)


@mutant
class EventDoubled(MemoryEngine):
    def write_event(self, row: JobRow, event: EventName, **facts: Any) -> None:
        super().write_event(row, event, **facts)
        if event is EventName.COMPLETED:
            super().write_event(row, event, **facts)


@mutant
class TailSkips(MemoryEngine):
    async def tail(self, position: str | None = None, *, limit: int = 500, tenant: str | None = None) -> EventPage:
        """A full page leaves out the event after it."""
        page = await super().tail(position, limit=limit, tenant=tenant)
        more = len(page.events) == limit and int(page.position) < int(await self.tail_position())
        return EventPage(page.events, str(int(page.position) + more))


# ── counting ──


class _OtherChange(MemoryEngine):
    """Writes transitions of one verb differently."""

    verb: Verb
    fields: dict[str, Any]

    def change(self, row: JobRow, transition: Transition) -> Applied:
        if transition.verb is self.verb:
            transition = msgspec.structs.replace(transition, **self.fields)
        return super().change(row, transition)


@mutant
class ReleaseBurnsAnAttempt(_OtherChange):
    verb, fields = Verb.RELEASE, {"refund": False}


@mutant
class SnoozeCountsAsFailure(_OtherChange):
    verb, fields = Verb.SNOOZE, {"failed": True}


@mutant
class SnoozeBurnsAnAttempt(_OtherChange):
    verb, fields = Verb.SNOOZE, {"refund": False}


@mutant
class LossNotCounted(_OtherChange):
    verb, fields = Verb.LOSE, {"lost": False}


@mutant
class RetryAtOnce(MemoryEngine):
    def change(self, row: JobRow, transition: Transition) -> Applied:
        if transition.event is EventName.FAILED:
            transition = msgspec.structs.replace(transition, delay=0.0)
        return super().change(row, transition)


@mutant
class RedriveKeepsTheSpentBudget(MemoryEngine):
    def _redrive(self, row: JobRow, by: str | None) -> None:
        attempts, lost = row.attempts, row.lost
        super()._redrive(row, by)
        row.attempts, row.lost = attempts, lost


@mutant
class RedriveRestartsTheFence(MemoryEngine):
    def _redrive(self, row: JobRow, by: str | None) -> None:
        super()._redrive(row, by)
        row.attempt = 0


# ── taking back ──


@mutant
class RunningNeverReclaimed(MemoryEngine):
    async def rescue(self, *, limit: int = 1_000) -> list[Rescued]:
        return []


@mutant
class RescuesTooEarly(MemoryEngine):
    async def rescue(self, *, limit: int = 1_000) -> list[Rescued]:
        for grant in self.grants.values():
            grant.expires_at -= timedelta(seconds=5)
        return await super().rescue(limit=limit)


@mutant
class RescueOverwritesCompleted(MemoryEngine):
    """The grant forgets nothing, and what it holds is lost without a look at its state."""

    def drop_ticket(self, row: JobRow, *, spent_by: Verb | None) -> None:
        grant = None if row.token is None else self.grants.get(row.token)
        super().drop_ticket(row, spent_by=spent_by)
        if grant is not None and spent_by is Verb.ACK:
            grant.open.add(row.id)
            self.grants[grant.token] = grant

    def take_back(self, grant: GrantRow, started: Any, lost: Lost) -> list[Rescued]:
        grant.open = {id for id in grant.open if id in self.jobs}
        for id in grant.open:
            self.jobs[id].ended = None
        return super().take_back(grant, started, lost)


@mutant
class EndOfOwnerLosesEverything(MemoryEngine):
    """Jobs that the dead worker had not started count as crashed too."""

    def take_back(self, grant: GrantRow, started: Any, lost: Lost) -> list[Rescued]:
        return super().take_back(grant, None, lost)


@mutant
class HeartbeatShortens(MemoryEngine):
    async def heartbeat(
        self, leases: Sequence[Lease], *, lease_seconds: float | None = None, tenant: str = DEFAULT_TENANT
    ) -> list[Beat | RopewayError]:
        for lease in leases:
            grant = self.grants.get(lease.token)
            if grant is not None and self._current(tenant, lease) is not None:
                grant.expires_at = self.clock.now()
        return await super().heartbeat(leases, lease_seconds=lease_seconds, tenant=tenant)


@mutant
class HeartbeatOutlivesTheTimeout(MemoryEngine):
    async def heartbeat(
        self, leases: Sequence[Lease], *, lease_seconds: float | None = None, tenant: str = DEFAULT_TENANT
    ) -> list[Beat | RopewayError]:
        answers = await super().heartbeat(leases, lease_seconds=lease_seconds, tenant=tenant)
        for lease, answer in zip(leases, answers, strict=True):
            if isinstance(answer, Beat):
                grant = self.grants[lease.token]
                until = self.clock.now() + timedelta(seconds=lease_seconds or grant.lease_seconds)
                grant.expires_at = max(grant.expires_at, until)
        return answers


# ── who is next ──


@mutant
class DoubleLease(MemoryEngine):
    """A claim that comes back short is filled up with what is already running."""

    def _claim(self, tenant: str, queues: Sequence[str], count: int) -> list[JobRow]:
        rows = super()._claim(tenant, queues, count)
        running = [row for row in self.jobs.values() if row.token and row.tenant == tenant and row.queue in queues]
        return rows + running[: count - len(rows)]


@mutant
class StartedEarly(MemoryEngine):
    class EagerLanes(Lanes):
        def take(self, tenant: str, queue: str, priority: int, now: datetime) -> Iterator[JobRow]:
            return super().take(tenant, queue, priority, now + timedelta(seconds=1))

    def __init__(self, rules: EngineRules = EngineRules(), clock: Clock | None = None) -> None:
        super().__init__(rules, clock)
        self.lanes = self.EagerLanes(self.jobs.get)


class _OtherOrder(MemoryEngine):
    """Takes everything that is due, sorts it differently and puts back what is too much."""

    @staticmethod
    def rank(row: JobRow) -> Any:
        raise NotImplementedError

    def _claim(self, tenant: str, queues: Sequence[str], count: int) -> list[JobRow]:
        rows = sorted(super()._claim(tenant, queues, 1_000_000), key=self.rank)
        for row in rows[count:]:
            self.lanes.add(row)
        return rows[:count]


@mutant
class PriorityIgnored(_OtherOrder):
    @staticmethod
    def rank(row: JobRow) -> Any:
        return row.run_at, row.place


@mutant
class LastInFirstOut(_OtherOrder):
    @staticmethod
    def rank(row: JobRow) -> Any:
        return row.queue, row.priority, -row.place


@mutant
class NoAgeing(MemoryEngine):
    def __init__(self, rules: EngineRules = EngineRules(), clock: Clock | None = None) -> None:
        super().__init__(msgspec.structs.replace(rules, ageing_seconds=0.0), clock)


@mutant
class LostGoesToTheBack(MemoryEngine):
    def change(self, row: JobRow, transition: Transition) -> Applied:
        if transition.verb in (Verb.LOSE, Verb.RELEASE):
            row.place = next(self.places)
        return super().change(row, transition)


@mutant
class PausedQueueStillLeased(MemoryEngine):
    def _claim(self, tenant: str, queues: Sequence[str], count: int) -> list[JobRow]:
        paused, self.paused = self.paused, set()
        try:
            return super()._claim(tenant, queues, count)
        finally:
            self.paused = paused


@mutant
class ExpiredStillStarted(MemoryEngine):
    """Too late is late, says the claim; only the sweep ends such jobs."""

    def _claim(self, tenant: str, queues: Sequence[str], count: int) -> list[JobRow]:
        late = {row.id: row.expires_at for row in self.jobs.values() if row.expires_at is not None}
        for id in late:
            self.jobs[id].expires_at = None
        try:
            return super()._claim(tenant, queues, count)
        finally:
            for id, expires_at in late.items():
                self.jobs[id].expires_at = expires_at


@mutant
class ExpireEndsRunningJobs(MemoryEngine):
    async def expire(self, *, limit: int = 1_000) -> list[UUID]:
        now = self.clock.now()
        late = [
            row for row in self.jobs.values() if row.ended is None and row.expires_at and row.expires_at <= now
        ]
        for row in late[:limit]:
            self.cancel_row(row, CancelReason.EXPIRED)
        return [row.id for row in late[:limit]]


# ── keys ──


@mutant
class NoIdempotency(MemoryEngine):
    def _known(self, job: NewJob, tenant: str) -> Enqueued | None:
        return super()._known(msgspec.structs.replace(job, idempotency_key=None), tenant)


@mutant
class NoUniqueness(MemoryEngine):
    def _known(self, job: NewJob, tenant: str) -> Enqueued | None:
        return super()._known(msgspec.structs.replace(job, unique=None), tenant)


@mutant
class OtherBodyAccepted(MemoryEngine):
    def _known(self, job: NewJob, tenant: str) -> Enqueued | None:
        held = self.job_keys.get((tenant, "idempotency", job.idempotency_key or ""))
        same = job if held is None else msgspec.structs.replace(job, fingerprint=held.fingerprint)
        return super()._known(same, tenant)


@mutant
class KeysOfAllTenantsAreOne(MemoryEngine):
    async def enqueue(self, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT) -> list[Enqueued]:
        for (owner, kind, key), held in list(self.job_keys.items()):
            if owner != tenant:
                self.job_keys.setdefault((tenant, kind, key), held)
        return await super().enqueue(jobs, tenant=tenant)


@mutant
class KeyStoredThoughRefused(MemoryEngine):
    def _take_back(self, undo: Any) -> None:
        super()._take_back([(row, []) for row, _ in undo])


@mutant
class HalfABatchStored(MemoryEngine):
    def _take_back(self, undo: Any) -> None:
        for row, _ in undo:
            self.write_event(row, EventName.ENQUEUED, run_at=row.run_at)
            self.queue_up(row)


@mutant
class KeyFreeWhenItsJobEnds(MemoryEngine):
    def _known(self, job: NewJob, tenant: str) -> Enqueued | None:
        held = self.job_keys.get((tenant, "idempotency", job.idempotency_key or ""))
        row = None if held is None else self.jobs.get(held.job_id)
        if held is not None and (row is None or row.ended is not None):
            held.until = self.clock.now()
        return super()._known(job, tenant)


# ── keeping and showing ──


@mutant
class PayloadRewritten(MemoryEngine):
    async def enqueue(self, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT) -> list[Enqueued]:
        rewritten = [
            msgspec.structs.replace(job, payload=json.dumps(json.loads(job.payload)).encode()) for job in jobs
        ]
        return await super().enqueue(rewritten, tenant=tenant)


@mutant
class PrunesTooEarly(MemoryEngine):
    async def prune(self) -> Pruned:
        keep = self.rules
        short = {f"keep_{end}": getattr(keep, f"keep_{end}") / 2 for end in ("succeeded", "cancelled", "dead")}
        self.rules = msgspec.structs.replace(keep, **short)
        try:
            return await super().prune()
        finally:
            self.rules = keep


@mutant
class NeverPrunes(MemoryEngine):
    def _prune_jobs(self) -> int:
        return 0


@mutant
class TenantLeakInGet(MemoryEngine):
    async def get(self, ids: Sequence[UUID], *, tenant: str = DEFAULT_TENANT) -> list[Job | None]:
        rows = [self.jobs.get(id) for id in ids]
        return [None if row is None else self._job(row) for row in rows]


@mutant
class TenantLeakInEvents(MemoryEngine):
    async def events_of(self, id: UUID, *, tenant: str = DEFAULT_TENANT) -> list[Event]:
        return [event for event in self.events if event.job_id == id]


@mutant
class TenantLeakInSettle(MemoryEngine):
    def _current(self, tenant: str, lease: Lease) -> JobRow | None:
        row = self.jobs.get(lease.job_id)
        return None if row is None else super()._current(row.tenant, lease)


@mutant
class TenantLeakInCancel(MemoryEngine):
    async def cancel(self, ids: Sequence[UUID], *, tenant: str = DEFAULT_TENANT) -> list[Changed | RopewayError]:
        answers: list[Changed | RopewayError] = []
        for id in ids:
            row = self.jobs.get(id)
            answers += await super().cancel([id], tenant=tenant if row is None else row.tenant)
        return answers


@mutant
class DeletesRunningJobs(MemoryEngine):
    async def delete(self, ids: Sequence[UUID], *, tenant: str = DEFAULT_TENANT) -> list[Changed | RopewayError]:
        for id in ids:
            row = self.row(tenant, id)
            if row is not None and row.token is not None:
                self.cancel_row(row, CancelReason.REQUESTED)
        return await super().delete(ids, tenant=tenant)


@mutant
class LogUnfenced(MemoryEngine):
    async def log(
        self, lines: Sequence[tuple[Lease, LogLine]], *, tenant: str = DEFAULT_TENANT
    ) -> list[RopewayError | None]:
        for lease, line in lines:
            row = self.row(tenant, lease.job_id)
            if row is not None:
                row.append_line(line, self.clock.now())
        return [None] * len(lines)


@mutant
class LinesAllKept(MemoryEngine):
    async def log(
        self, lines: Sequence[tuple[Lease, LogLine]], *, tenant: str = DEFAULT_TENANT
    ) -> list[RopewayError | None]:
        before = {id: list(row.lines) for id, row in self.jobs.items()}
        answers = await super().log(lines, tenant=tenant)
        for id, kept in before.items():
            known = {line.n for line in self.jobs[id].lines}
            self.jobs[id].lines[:0] = [line for line in kept if line.n not in known]
        return answers


@mutant
class AbsentWorkersListed(MemoryEngine):
    async def workers(self, *, seen_within: float = 60.0, tenant: str = DEFAULT_TENANT) -> list[WorkerInfo]:
        return await super().workers(seen_within=max(seen_within, 1e6), tenant=tenant)


@mutant
class AbsentWorkersNeverForgotten(MemoryEngine):
    def forget_absent(self) -> None:
        pass


# ── queues: places, rates, settings ──


@mutant
class PlaceCountsRunningJobs(MemoryEngine):
    async def place(self, id: UUID, *, cap: int = 10_000, tenant: str = DEFAULT_TENANT) -> Count | None:
        running = [row for row in self.jobs.values() if row.token is not None and row.tenant == tenant]
        mine, ahead = self.row(tenant, id), await super().place(id, cap=cap, tenant=tenant)
        if mine is None or ahead is None:
            return ahead
        return Count(ahead.number + sum(row.queue == mine.queue for row in running))


@mutant
class PlaceForgetsPriority(MemoryEngine):
    async def place(self, id: UUID, *, cap: int = 10_000, tenant: str = DEFAULT_TENANT) -> Count | None:
        before = {row.id: row.priority for row in self.jobs.values()}
        for row in self.jobs.values():
            row.priority = 5
        try:
            return await super().place(id, cap=cap, tenant=tenant)
        finally:
            for row in self.jobs.values():
                row.priority = before[row.id]


@mutant
class TenantLeakInPlace(MemoryEngine):
    async def place(self, id: UUID, *, cap: int = 10_000, tenant: str = DEFAULT_TENANT) -> Count | None:
        row = self.jobs.get(id)
        return await super().place(id, cap=cap, tenant=tenant if row is None else row.tenant)


@mutant
class RatesNeverFall(MemoryEngine):
    def _recent(self, tenant: str) -> list[Event]:
        return [event for event in self.events if event.tenant == tenant]


@mutant
class TenantLeakInRates(MemoryEngine):
    def _recent(self, tenant: str) -> list[Event]:
        own = super()._recent
        return [event for owner in {event.tenant for event in self.events} for event in own(owner)]


@mutant
class EveryJobSaidToBeDue(MemoryEngine):
    async def enqueue(self, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT) -> list[Enqueued]:
        answers = await super().enqueue(jobs, tenant=tenant)
        return [msgspec.structs.replace(answer, run_at=answer.created_at) for answer in answers]


@mutant
class ResumeForgetsSettings(MemoryEngine):
    async def resume(self, queue: str, *, tenant: str = DEFAULT_TENANT) -> None:
        await super().resume(queue, tenant=tenant)
        self.settings_of.pop((tenant, queue), None)


@mutant
class SettingsResume(MemoryEngine):
    async def set_queue(self, queue: str, settings: QueueSettings, *, tenant: str = DEFAULT_TENANT) -> None:
        await super().set_queue(queue, settings, tenant=tenant)
        self.paused.discard((tenant, queue))


# ── tenants, keys, limits, actions ──


@mutant
class TenantNameTwice(MemoryEngine):
    def _has_name(self, name: str) -> bool:
        return False


@mutant
class TenantLeakInRevoke(MemoryEngine):
    def _key(self, id: str, tenant: str) -> ApiKey:
        key = self.api_keys.get(id)
        return super()._key(id, tenant if key is None else key.tenant)


@mutant
class TenantLeakInKeys(MemoryEngine):
    async def keys(self, *, tenant: str = DEFAULT_TENANT) -> list[ApiKey]:
        own = super().keys
        return [key for owner in self.stored_tenants for key in await own(tenant=owner)]


@mutant
class RevokedLater(MemoryEngine):
    async def revoke_key(self, id: str, *, tenant: str = DEFAULT_TENANT) -> ApiKey:
        await super().revoke_key(id, tenant=tenant)
        self.api_keys[id] = msgspec.structs.replace(self.api_keys[id], revoked_at=self.clock.now())
        return self.api_keys[id]


@mutant
class RotationEndsNothing(MemoryEngine):
    async def rotate_key(
        self, id: str, successor: NewKey, *, overlap: float, tenant: str = DEFAULT_TENANT
    ) -> ApiKey:
        old = self.api_keys.get(id)
        made = await super().rotate_key(id, successor, overlap=overlap, tenant=tenant)
        if old is not None:
            self.api_keys[id] = old
        return made


@mutant
class RotationProlongs(MemoryEngine):
    async def rotate_key(
        self, id: str, successor: NewKey, *, overlap: float, tenant: str = DEFAULT_TENANT
    ) -> ApiKey:
        made = await super().rotate_key(id, successor, overlap=overlap, tenant=tenant)
        end = self.clock.now() + timedelta(seconds=overlap)
        self.api_keys[id] = msgspec.structs.replace(self.api_keys[id], expires_at=end)
        return made


@mutant
class RotationRevives(MemoryEngine):
    async def rotate_key(
        self, id: str, successor: NewKey, *, overlap: float, tenant: str = DEFAULT_TENANT
    ) -> ApiKey:
        if (key := self.api_keys.get(id)) is not None:
            self.api_keys[id] = msgspec.structs.replace(key, revoked_at=None)
        return await super().rotate_key(id, successor, overlap=overlap, tenant=tenant)


@mutant
class UseOfTenantNotNoted(MemoryEngine):
    async def note_use(self, key_ids: Collection[str]) -> None:
        before = dict(self.stored_tenants)
        await super().note_use(key_ids)
        self.stored_tenants = before


@mutant
class SecretDrawnAnew(MemoryEngine):
    async def secret(self) -> bytes:
        return secrets.token_bytes(32)


class _OtherBucket(MemoryEngine):
    """Takes from a bucket of another rate, size or tenant."""

    def other(self, asked: dict[str, Any]) -> dict[str, Any]:
        return asked

    async def take_tokens(
        self, name: str, wanted: float, *, rate: float, burst: float, tenant: str = DEFAULT_TENANT
    ) -> Taken:
        asked = self.other({"wanted": wanted, "rate": rate, "burst": burst, "tenant": tenant})
        return await super().take_tokens(name, **asked)


@mutant
class BucketNeverRefilled(_OtherBucket):
    def other(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {**asked, "rate": 1e-9}


@mutant
class BucketHasNoBrim(_OtherBucket):
    def other(self, asked: dict[str, Any]) -> dict[str, Any]:
        known = (asked["tenant"], "b") in self.buckets
        return {**asked, "burst": 1e9 if known else asked["burst"]}


@mutant
class BucketOfAllTenants(_OtherBucket):
    def other(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {**asked, "tenant": DEFAULT_TENANT}


@mutant
class BucketsNeverForgotten(MemoryEngine):
    def forget_buckets(self) -> None:
        pass


@mutant
class UniqueRulesKeepNobodyOut(MemoryEngine):
    async def kept_out(self, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT) -> list[bool]:
        return await super().kept_out([msgspec.structs.replace(job, unique=None) for job in jobs], tenant=tenant)


@mutant
class AskingTakesTheKeys(MemoryEngine):
    async def kept_out(self, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT) -> list[bool]:
        return [(await self.enqueue([job], tenant=tenant))[0].deduplicated for job in jobs]


@mutant
class TenantLeakInActions(MemoryEngine):
    async def actions(self, *args: Any, tenant: str = DEFAULT_TENANT, **how: Any) -> list[Action]:
        noted = self.noted_actions
        self.noted_actions = [(tenant, action) for _, action in noted]
        try:
            return await super().actions(*args, tenant=tenant, **how)
        finally:
            self.noted_actions = noted


@mutant
class ActionsPageSeenTwice(MemoryEngine):
    async def actions(self, *args: Any, before_n: int | None = None, **how: Any) -> list[Action]:
        found = await super().actions(*args, before_n=before_n, **how)
        last = () if before_n is None else [one for _, one in self.noted_actions if one.n == before_n]
        return [*last, *found] if found else found


@mutant
class ActionsNeverPruned(MemoryEngine):
    def prune_actions(self) -> None:
        pass


# ── schedules and signals ──


@mutant
class ScheduleFiredTwice(MemoryEngine):
    async def advance(
        self, tenant: str, name: str, due: datetime, next_at: datetime, jobs: Sequence[NewJob]
    ) -> list[Enqueued] | None:
        """Two schedulers that both saw it due."""
        row = self.stored_schedules.get((tenant, name))
        if row is not None and row.next_run_at == next_at and not row.spec.paused:
            row.next_run_at = due
        return await super().advance(tenant, name, due, next_at, jobs)

    async def due_schedules(self, limit: int) -> list[tuple[str, Schedule]]:
        due = await super().due_schedules(limit)
        return due + due


@mutant
class PausedScheduleFires(MemoryEngine):
    async def due_schedules(self, limit: int) -> list[tuple[str, Schedule]]:
        for row in self.stored_schedules.values():
            row.spec = msgspec.structs.replace(row.spec, paused=False)
        return await super().due_schedules(limit)


@mutant
class NoWakeUp(MemoryEngine):
    def signal(self, tenant: str, queue: str) -> None:
        pass


@mutant
class LeaseGivesMoreThanAsked(MemoryEngine):
    def _claim(self, tenant: str, queues: Sequence[str], count: int) -> list[JobRow]:
        return super()._claim(tenant, queues, count + 1)


@mutant
class DeadJobsComeBack(MemoryEngine):
    """A nack that gives up is tried again all the same."""

    def change(self, row: JobRow, transition: Transition) -> Applied:
        if transition.target is State.DEAD and transition.verb is Verb.NACK:
            transition = msgspec.structs.replace(
                transition, target=State.RETRYING, event=EventName.FAILED, delay=1.0, dead_reason=None
            )
        return super().change(row, transition)


# ── SQL ──


class Alteration(NamedTuple):
    """A change to one named statement of an SQL engine: `old` text becomes `new`, wherever it stands."""

    name: str
    package: str
    file: str
    statement: str
    old: str
    new: str = ""


@contextmanager
def altered(change: Alteration) -> Iterator[None]:
    """Exchange the statement while the block runs."""
    named = sqlfile.statements(change.package, change.file)
    before = named[change.statement]
    if change.old not in before:
        raise LookupError(f"{change.name}: {change.statement} of {change.file} has no {change.old!r}")
    named[change.statement] = before.replace(change.old, change.new)
    try:
        yield
    finally:
        named[change.statement] = before


def _sqlite(name: str, file: str, statement: str, old: str, new: str = "") -> Alteration:
    return Alteration(name, "ropeway.engines.sqlite", f"sql/{file}.sql", statement, old, new)


_FENCE = "AND j.token = substr(:tokens, 16 * lease.key + 1, 16)"

SQLITE_MUTANTS = {
    change.name: change
    for change in (
        _sqlite("ack unfenced", "settling", "current_places", f"{_FENCE}\n  AND j.attempt = lease.value"),
        _sqlite("nack unfenced", "settling", "current_jobs", f"{_FENCE}\n  AND j.attempt = lease.value"),
        _sqlite("heartbeat unfenced", "leasing", "held_grant", "AND j.token = :token AND j.attempt = :attempt"),
        _sqlite("ack: token not compared", "settling", "current_places", _FENCE),
        _sqlite("ack: attempt not compared", "settling", "current_places", "AND j.attempt = lease.value"),
        _sqlite("nack: attempt not compared", "settling", "current_jobs", "AND j.attempt = lease.value"),
        _sqlite("tenant leak in ack", "settling", "current_places", "j.tenant = :tenant", ":tenant <> ''"),
        _sqlite("tenant leak in get", "inspecting", "jobs", "j.tenant = :tenant", ":tenant <> ''"),
        _sqlite("tenant leak in operating", "operating", "job", "tenant = :tenant AND"),
        _sqlite("started early", "leasing", "claim", "j.run_at <= :now", "j.run_at <= :now + 1000000"),
        _sqlite("expired still started", "leasing", "claim", "OR j.expires_at > :now", "OR 1"),
        _sqlite("paused queue still leased", "leasing", "claim", "AND q.paused", "AND NOT q.paused"),
        _sqlite("last in, first out", "leasing", "claim", "LIMIT :count", "ORDER BY j.place DESC LIMIT :count"),
        _sqlite("no ageing", "leasing", "oldest_due", "j.run_at <= :now", "j.run_at < 0"),
        _sqlite("attempts not counted", "leasing", "start", "attempts = attempts + 1", "attempts = attempts"),
        _sqlite("attempt not raised", "leasing", "start", "attempt = attempt + 1", "attempt = max(attempt, 1)"),
        _sqlite("release burns an attempt", "settling", "put_back", "attempts - :refund", "attempts"),
        _sqlite("loss not counted", "settling", "put_back", "lost + :lost", "lost"),
        _sqlite("failure not counted", "settling", "put_back", "failures + :failed", "failures"),
        _sqlite("place in line lost", "settling", "put_back", "run_at = :run_at", "run_at = max(:run_at, :now)"),
        _sqlite(
            "cancel does not revoke", "leasing", "revoke", "WHERE token = :token", "WHERE token = :token AND 0"
        ),
        _sqlite("redrive keeps the budget", "operating", "redrive", "attempts = 0", "attempts = attempts"),
        _sqlite("redrive keeps the losses", "operating", "redrive", "lost = 0", "lost = lost"),
        _sqlite("running never reclaimed", "upkeeping", "expired_grants", "expires_at <= :now", "0"),
        _sqlite("heartbeat shortens", "leasing", "extend_grant", "max(expires_at, :until)", ":until"),
        _sqlite("event lost", "settling", "log", "WHERE place", "WHERE :event <> 'job.reclaimed' AND place"),
        _sqlite("event seq gap", "operating", "redrive", "event_seq + 1", "event_seq + 2"),
        _sqlite("no idempotency", "submitting", "held_keys", "k.tenant = :tenant", "k.tenant = :tenant AND 0"),
        _sqlite("keys of all tenants", "submitting", "held_keys", "k.tenant = :tenant", ":tenant <> ''"),
        _sqlite("prunes a day early", "upkeeping", "old_places", ":before", ":before + 86400000000"),
        _sqlite("schedule fired twice", "scheduling", "advance", "AND next_run_at = :due"),
        _sqlite("paused schedule fires", "scheduling", "pause_schedule", ":paused", "0 * :paused"),
        _sqlite("expire ends what has run", "upkeeping", "overdue", "AND attempts = 0"),
        _sqlite("log unfenced", "lines", "current_body", "AND j.token = :token AND j.attempt = :attempt"),
        _sqlite("old lines stay", "lines", "trim", "AND n <= (", "AND n < 0 * ("),
        _sqlite("tenant leak in log", "lines", "lines_of", "j.tenant = :tenant", ":tenant <> ''"),
        _sqlite("restarted worker keeps its start", "attending", "report", "AND pid = excluded.pid"),
        _sqlite("absent workers listed", "attending", "workers", "AND seen_at >= :since"),
        _sqlite("absent workers never forgotten", "attending", "forget_absent", "seen_at <= :before", "0"),
        _sqlite("tenant leak in workers", "attending", "workers", "tenant = :tenant", ":tenant <> ''"),
        _sqlite("place counts what runs", "inspecting", "ahead", "j.stage = 'free'", "j.stage <> 'dead'"),
        _sqlite("place ignores order", "inspecting", "ahead", "j.run_at < :run_at OR j.place < :place", "1"),
        _sqlite("place for strangers", "inspecting", "queued_job", "tenant = :tenant", ":tenant <> ''"),
        _sqlite("rates never fall", "inspecting", "come_and_gone", "AND at > :since"),
        _sqlite("tenant leak in rates", "inspecting", "come_and_gone", "tenant = :tenant", ":tenant <> ''"),
        _sqlite("a cancel is no end", "inspecting", "come_and_gone", " OR event = 'job.cancelled'"),
        _sqlite("tenant leak in settings", "operating", "settings", "tenant = :tenant", ":tenant <> ''"),
        _sqlite("key requirement forgotten", "operating", "keep_settings", ":require_key", "0 * :require_key"),
        _sqlite("tenant leak in keys", "tenancy", "keys", "tenant = :tenant", ":tenant <> ''"),
        _sqlite("revoked later", "tenancy", "revoke_key", "coalesce(revoked_at, :now)", ":now"),
        _sqlite("rotation ends nothing", "tenancy", "end_key", "= :expires_at", "= expires_at"),
        _sqlite("use of tenant not noted", "tenancy", "note_tenants", "WHERE id", "WHERE 0 AND id"),
        _sqlite("every tenant was used", "tenancy", "note_tenants", "SELECT tenant", "SELECT tenants.id"),
        _sqlite("bucket of all tenants", "limiting", "bucket", "tenant = :tenant", ":tenant <> ''"),
        _sqlite("bucket never empties", "limiting", "keep_bucket", "tokens = excluded.tokens", "tokens = tokens"),
        _sqlite("buckets never forgotten", "limiting", "forget_unused", "at <= :before", "0"),
        _sqlite("tenant leak in actions", "auditing", "actions", "tenant = :tenant", ":tenant <> ''"),
        _sqlite("actions page seen twice", "auditing", "actions", "n < :before_n", "n <= :before_n"),
        _sqlite("actions of any actor", "auditing", "actions", "AND (:actor IS NULL OR actor = :actor)"),
        _sqlite("error searched as a type only", "inspecting", "where_error", "'$.message'", "'$.type'"),
    )
}
