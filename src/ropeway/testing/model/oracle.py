"""What an engine must answer, worked out the slow way: one list of jobs, walked from end to end for every call.

The oracle shares no decision with the engines. It knows the records of the protocol, and the rules as design.md
states them; it does not import `core.decide`, the table of states, ageing, keys or the memory engine.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from ropeway.core.events import Event
from ropeway.core.job import Job, Progress
from ropeway.core.outcome import Done, Failed, Lost, Outcome, Released, Snoozed
from ropeway.core.query import Count, JobFilter, QueueSettings, QueueStats
from ropeway.core.states import CancelReason, DeadReason, EventName, State
from ropeway.engines.protocol import (
    Beat,
    Changed,
    EngineRules,
    Enqueued,
    LeaseBatch,
    Leased,
    Pruned,
    Rescued,
    Settled,
)
from ropeway.testing.model.records import (
    INVALID_STATE,
    LEASE_LOST,
    NOT_FOUND,
    RESULTS,
    Ask,
    ModelGrant,
    ModelJob,
    OwnerBeat,
    Refused,
    Ticket,
    small,
)

_ENDS = (State.SUCCEEDED, State.DEAD, State.CANCELLED)
_ENDINGS = (EventName.COMPLETED, EventName.DLQ, EventName.CANCELLED)
_LIVE = (State.SCHEDULED, State.QUEUED, State.RUNNING, State.RETRYING, State.WAITING)


@dataclass
class _Key:
    job: ModelJob
    body: Ask
    until: datetime | None


@dataclass
class _Unique:
    job: ModelJob
    since: datetime
    until: datetime


class Oracle:
    """Every call of the protocol that a program makes, and what must come back."""

    def __init__(self, start: datetime, rules: EngineRules) -> None:
        self.start = start
        self.now = start
        self.rules = rules
        #: All jobs ever accepted, by number - 1.
        self.all: list[ModelJob] = []
        #: Those that were deleted or pruned.
        self.gone: set[int] = set()
        self.grants: list[ModelGrant] = []
        self.paused: set[tuple[str, str]] = set()
        #: What queues were set to, the defaults too.
        self.settings: dict[tuple[str, str], QueueSettings] = {}
        self._keys: dict[tuple[str, str], _Key] = {}
        self._uniques: dict[tuple[object, ...], _Unique] = {}
        self._places = 0
        self._events_removed: set[tuple[int, int]] = set()
        #: Tickets whose holder was told, one way or the other, that they are not good any more.
        self._heard: set[Ticket] = set()

    # ── what can be seen ──

    def job(self, number: int) -> ModelJob:
        return self.all[number - 1]

    def kept(self, tenant: str | None = None) -> list[ModelJob]:
        return [
            job for job in self.all if job.number not in self.gone and (tenant is None or job.tenant == tenant)
        ]

    def get(self, tenant: str) -> list[Job | None]:
        """All numbers, asked for by one tenant: those of the others and those that are gone are not there."""
        return [
            job.seen(self.now) if job.tenant == tenant and job.number not in self.gone else None
            for job in self.all
        ]

    def queue_stats(self, tenant: str) -> list[QueueStats]:
        told = self.paused | {lane for lane, settings in self.settings.items() if settings != QueueSettings()}
        names = {job.queue for job in self.kept(tenant)} | {queue for who, queue in told if who == tenant}
        return [self._stats(tenant, name) for name in sorted(names)]

    def _stats(self, tenant: str, queue: str) -> QueueStats:
        jobs = [job for job in self.kept(tenant) if job.queue == queue]
        states = [job.state(self.now) for job in jobs]
        due = [job.run_at for job in jobs if job.state(self.now) is State.QUEUED]
        recent = [
            event.event
            for job in self.all
            for event in job.log
            if (event.tenant, event.queue) == (tenant, queue) and event.at > self.now - _seconds(60)
        ]
        return QueueStats(
            queue,
            (tenant, queue) in self.paused,
            {state: states.count(state) for state in State if state in states},
            oldest_age_seconds=(self.now - min(due)).total_seconds() if due else None,
            enqueued_per_minute=float(sum(event is EventName.ENQUEUED for event in recent)),
            finished_per_minute=float(sum(event in _ENDINGS for event in recent)),
            settings=self.settings.get((tenant, queue), QueueSettings()),
        )

    def place(self, tenant: str, number: int) -> Count | None:
        mine = self.job(number)
        line = [
            job for job in self.kept(tenant) if job.state(self.now) is State.QUEUED and job.queue == mine.queue
        ]
        line.sort(key=lambda job: (job.priority, job.run_at, job.place))
        return Count(line.index(mine)) if mine in line else None

    def find(self, tenant: str, where: JobFilter) -> list[Job]:
        return [job for job in (job.seen(self.now) for job in self.kept(tenant)) if _matches(job, where)]

    # ── submitting ──

    def enqueue(self, tenant: str, asks: Sequence[Ask]) -> list[Enqueued] | Refused:
        before = len(self.all), dict(self._keys), dict(self._uniques)
        answers: list[Enqueued] = []
        for index, ask in enumerate(asks):
            answer = self._enqueue(tenant, ask)
            if isinstance(answer, Refused):
                length, self._keys, self._uniques = before
                del self.all[length:]
                return Refused(answer.code, index)
            answers.append(answer)
        return answers

    def _enqueue(self, tenant: str, ask: Ask) -> Enqueued | Refused:
        if ask.key is not None and (key := self._keys.get((tenant, ask.key))) is not None:
            state = self._state_of(key.job)
            if state in _LIVE or key.until is None or key.until > self.now:
                if key.body != ask.body():
                    return Refused("idempotency_mismatch")
                return Enqueued(small(key.job.number), state, deduplicated=True)
        name = ask.unique_name()
        if ask.unique is not None and (held := self._uniques.get((tenant, name))) is not None:
            state = self._state_of(held.job)
            blocking = ask.unique.states or ((*_LIVE, State.SUCCEEDED) if ask.unique.within is not None else _LIVE)
            recent = ask.unique.within is None or self.now < held.since + _seconds(ask.unique.within)
            if state is not None and state in blocking and recent:
                return Enqueued(small(held.job.number), state, deduplicated=True)
        job = self._accept(tenant, ask)
        if ask.key is not None:
            window = self.rules.idempotency_window if ask.window is None else ask.window
            until = None if window == 0 else self.now + _seconds(window)
            self._keys[tenant, ask.key] = _Key(job, ask.body(), until)
        if ask.unique is not None:
            until = self.now + _seconds(ask.unique.within or 0)
            self._uniques[tenant, name] = _Unique(job, self.now, until)
        return Enqueued(small(job.number), job.state(self.now), created_at=job.created_at, run_at=job.run_at)

    def _accept(self, tenant: str, ask: Ask) -> ModelJob:
        asked = self.now
        if ask.delay is not None:
            asked = self.now + _seconds(ask.delay)
        elif ask.at is not None:
            asked = self.start + _seconds(ask.at)
        job = ModelJob(
            number=len(self.all) + 1,
            tenant=tenant,
            ask=ask,
            queue=ask.queue,
            priority=ask.priority,
            run_at=max(asked, self.now),
            place=self._next_place(),
            created_at=self.now,
            updated_at=self.now,
            expires_at=None if ask.expires_in is None else self.now + _seconds(ask.expires_in),
        )
        self.all.append(job)
        self._write(
            job,
            EventName.ENQUEUED,
            job.state(self.now),
            data={"run_at": _text(job.run_at), "priority": job.priority},
        )
        return job

    def _state_of(self, job: ModelJob) -> State | None:
        return None if job.number in self.gone else job.state(self.now)

    def _next_place(self) -> int:
        self._places += 1
        return self._places

    # ── leasing ──

    def lease(
        self, tenant: str, queues: Sequence[str], count: int, worker: str, owner: UUID, seconds: float
    ) -> LeaseBatch:
        open_queues = [queue for queue in queues if (tenant, queue) not in self.paused]
        line = [job for queue in open_queues for job in self._line(tenant, queue)]
        chosen = line[:count]
        grant = ModelGrant(tenant, owner, seconds, self.now + _seconds(seconds))
        self.grants.append(grant)
        for job in chosen:
            job.attempt += 1
            job.attempts += 1
            job.grant = grant
            job.worker = worker
            job.started_at = job.updated_at = self.now
            self._write(job, EventName.STARTED, State.RUNNING)
        leases = [Leased(job.seen(self.now), Ticket(job.number, job.attempt).lease()) for job in chosen]
        return LeaseBatch(leases, seconds, self._next_due_in(tenant, open_queues) if len(chosen) < count else None)

    def _line(self, tenant: str, queue: str) -> list[ModelJob]:
        """The startable jobs of one lane, first to last."""
        ready = sorted(
            (job for job in self.kept(tenant) if job.queue == queue and job.startable(self.now)),
            key=lambda job: (job.run_at, job.place),
        )

        def rank(priority: int) -> tuple[int, float]:
            if priority == 1:
                return 1, 0.0
            waited = next((self.now - job.run_at).total_seconds() for job in ready if job.priority == priority)
            return max(2, priority - int(waited / self.rules.ageing_seconds)), -waited

        present = sorted({job.priority for job in ready})
        return [job for priority in sorted(present, key=rank) for job in ready if job.priority == priority]

    def _next_due_in(self, tenant: str, queues: Sequence[str]) -> float | None:
        due = [
            job.run_at
            for job in self.kept(tenant)
            if job.queue in queues and job.free() and (job.run_at > self.now or not job.overdue(self.now))
        ]
        return max(0.0, (min(due) - self.now).total_seconds()) if due else None

    def current(self, tenant: str, ticket: Ticket) -> ModelJob | None:
        """The fence."""
        job = self.job(ticket.job)
        held = job.tenant == tenant and job.grant is not None and job.attempt == ticket.attempt
        return job if held else None

    def settle(self, tenant: str, pairs: Sequence[tuple[Ticket, Outcome]]) -> list[Settled | Refused]:
        return [self._settle(tenant, ticket, outcome) for ticket, outcome in pairs]

    def _settle(self, tenant: str, ticket: Ticket, outcome: Outcome) -> Settled | Refused:
        job = self.current(tenant, ticket)
        if job is None:
            return self._spent(tenant, ticket, type(outcome))
        if isinstance(outcome, Done):
            job.result, job.sanitized = RESULTS[outcome.result]
            self._ack(job)
            return Settled(small(job.number), State.SUCCEEDED, sanitized=job.sanitized)
        state, delay = self._settle_otherwise(job, outcome)
        return Settled(
            small(job.number),
            state,
            attempts=job.attempts,
            run_at=None if state is State.DEAD else job.run_at,
            retry_in=delay,
        )

    def _spent(self, tenant: str, ticket: Ticket, kind: type[Outcome] | None) -> Settled | Refused:
        """What a ticket is told that is not current (`kind` None: it only wanted to be heard of)."""
        job = self.job(ticket.job)
        self._heard.add(ticket)
        if job.tenant != tenant or job.number in self.gone or job.attempt != ticket.attempt or job.spent is None:
            return LEASE_LOST
        state = job.state(self.now)
        if job.spent is kind:
            return Settled(small(job.number), state, already=True)
        if state in _ENDS and job.spent is not Lost:
            return Refused("terminal", status=state.value)
        return LEASE_LOST

    def _ack(self, job: ModelJob) -> None:
        assert job.started_at is not None
        ran = (self.now - job.started_at).total_seconds()
        worker = job.worker
        self._finish(job, State.SUCCEEDED, spent=Done)
        self._write(
            job, EventName.COMPLETED, State.SUCCEEDED, worker=worker, data={"duration_ms": round(ran * 1000)}
        )

    def _settle_otherwise(self, job: ModelJob, outcome: Outcome) -> tuple[State, float | None]:
        worker = job.worker
        if isinstance(outcome, Failed):
            return self._fail(job, outcome, worker)
        if isinstance(outcome, Lost):
            return self._lose(job, outcome), None
        job.attempts -= 1
        if isinstance(outcome, Snoozed):
            if outcome.delay is not None:
                job.run_at = self.now + _seconds(outcome.delay)
            elif outcome.run_at is not None:
                job.run_at = max(outcome.run_at, self.now)
            self._free(job, Snoozed)
            # Due at once or not, it was a snooze: becoming due is not a transition.
            state = State.RETRYING if job.failures else State.SCHEDULED
            self._write(job, EventName.SNOOZED, state, worker=worker, data={"run_at": _text(job.run_at)})
            return state, outcome.delay
        self._free(job, Released)
        self._write(job, EventName.RELEASED, State.QUEUED, worker=worker)
        return State.QUEUED, None

    def _fail(self, job: ModelJob, outcome: Failed, worker: str | None) -> tuple[State, float | None]:
        error = msgspec.to_builtins(outcome.error)
        job.last_error = outcome.error
        job.failures += 1
        reason = None
        if not outcome.retry:
            reason = outcome.reason
        elif job.attempts >= job.ask.max_attempts:
            reason = DeadReason.MAX_ATTEMPTS
        if reason is not None:
            job.dead_reason = reason
            self._finish(job, State.DEAD, spent=Failed)
            self._write(
                job, EventName.DLQ, State.DEAD, worker=worker, data={"error": error, "reason": reason.value}
            )
            return State.DEAD, None
        policy = self.rules.decisions.retry
        delay = outcome.retry_after
        if delay is None:
            delay = float(min(policy.cap, policy.base * policy.factor ** (job.attempts - 1)))
        job.run_at = self.now + _seconds(delay)
        self._free(job, Failed)
        self._write(
            job,
            EventName.FAILED,
            State.RETRYING,
            worker=worker,
            data={"error": error, "retry_in_ms": round(delay * 1000)},
        )
        return State.RETRYING, delay

    def _lose(self, job: ModelJob, outcome: Lost) -> State:
        worker = job.worker
        job.lost += 1
        data: dict[str, Any] = {"cause": outcome.cause}
        if outcome.signal is not None:
            data["signal"] = outcome.signal
        if job.lost < self.rules.decisions.crash_limit and job.attempts < job.ask.max_attempts:
            self._free(job, Lost)
            self._write(job, EventName.RECLAIMED, State.QUEUED, worker=worker, data=data)
            return State.QUEUED
        crashed = job.lost >= self.rules.decisions.crash_limit
        job.dead_reason = DeadReason.CRASH_LIMIT if crashed else DeadReason.MAX_ATTEMPTS
        self._finish(job, State.DEAD, spent=Lost)
        self._write(job, EventName.DLQ, State.DEAD, worker=worker, data={"reason": job.dead_reason.value, **data})
        return State.DEAD

    def _free(self, job: ModelJob, spent: type[Outcome] | None) -> None:
        job.grant = job.worker = job.progress = None
        job.spent = spent
        job.updated_at = self.now

    def _finish(self, job: ModelJob, end: State, *, spent: type[Outcome] | None) -> None:
        self._free(job, spent)
        job.end = end
        job.finished_at = self.now

    def progress(self, tenant: str, ticket: Ticket, done: float) -> Refused | None:
        job = self.current(tenant, ticket)
        if job is None:
            return self._unheard(tenant, ticket)
        job.progress = Progress(done=done, at=self.now)
        return None

    def _unheard(self, tenant: str, ticket: Ticket) -> Refused:
        answer = self._spent(tenant, ticket, None)
        assert isinstance(answer, Refused)
        return answer

    def heartbeat(self, tenant: str, ticket: Ticket, seconds: float | None) -> Beat | Refused:
        job = self.current(tenant, ticket)
        if job is None or job.grant is None or job.started_at is None:
            return self._unheard(tenant, ticket)
        until = self.now + _seconds(job.grant.seconds if seconds is None else seconds)
        if job.ask.timeout:
            until = min(until, job.started_at + _seconds(job.ask.timeout))
        job.grant.expires_at = max(job.grant.expires_at, until)
        revoked = sorted(small(ticket.job) for ticket in job.grant.revoked)
        return Beat(max(0.0, (job.grant.expires_at - self.now).total_seconds()), tuple(revoked))

    def heartbeat_owner(self, tenant: str, owner: UUID) -> OwnerBeat:
        grants = self._held(tenant, owner)
        running = [grant for grant in grants if self._open(grant)]
        for grant in running:
            grant.expires_at = max(grant.expires_at, self.now + _seconds(grant.seconds))
        must = {
            ticket
            for grant in grants
            if grant in running or grant.expires_at > self.now
            for ticket in grant.revoked
            if ticket not in self._heard
        }
        self._heard |= must
        expires = min((grant.expires_at for grant in running), default=None)
        return OwnerBeat(
            None if expires is None else (expires - self.now).total_seconds(),
            frozenset(small(ticket.job) for ticket in must),
            frozenset(small(ticket.job) for grant in grants for ticket in grant.revoked),
        )

    def _held(self, tenant: str, owner: UUID) -> list[ModelGrant]:
        """The owner's grants that still stand for something: a running job, or one to be stopped."""
        return [
            grant
            for grant in self.grants
            if (grant.tenant, grant.owner) == (tenant, owner) and (grant.revoked or self._open(grant))
        ]

    def _open(self, grant: ModelGrant) -> list[ModelJob]:
        return [job for job in self.all if job.grant is grant]

    def end_grants(self, tenant: str, owner: UUID, started: Collection[int] | None, lost: Lost) -> list[Rescued]:
        return self._take_back(self._held(tenant, owner), started, lost)

    def _take_back(
        self, grants: Sequence[ModelGrant], started: Collection[int] | None, lost: Lost
    ) -> list[Rescued]:
        rescued = []
        for grant in grants:
            for job in self._open(grant):
                outcome = lost if started is None or job.number in started else Released()
                state, _ = self._settle_otherwise(job, outcome)
                rescued.append(Rescued(job.tenant, small(job.number), state))
            self.grants.remove(grant)
        return sorted(rescued, key=lambda answer: answer.id)

    # ── operating ──

    def cancel(self, tenant: str, numbers: Sequence[int]) -> list[Changed | Refused]:
        return [self._cancel(tenant, number) for number in numbers]

    def _cancel(self, tenant: str, number: int) -> Changed | Refused:
        job = self._there(tenant, number)
        if job is None:
            return NOT_FOUND
        before = job.state(self.now)
        if job.end is not None:
            return Refused("terminal", status=before.value)
        self._end_unasked(job, CancelReason.REQUESTED)
        return Changed(small(number), before, State.CANCELLED)

    def _end_unasked(self, job: ModelJob, reason: CancelReason) -> None:
        """End a job without its worker: every ticket that was ever given out for it is void."""
        worker = job.worker
        if job.grant is not None:
            job.grant.revoked.append(Ticket(job.number, job.attempt))
        self._finish(job, State.CANCELLED, spent=None)
        job.cancel_reason = reason
        self._write(job, EventName.CANCELLED, State.CANCELLED, worker=worker, data={"reason": reason.value})

    def redrive(self, tenant: str, numbers: Sequence[int], by: str | None) -> list[Changed | Refused]:
        return [self._redrive(tenant, number, by) for number in numbers]

    def _redrive(self, tenant: str, number: int, by: str | None) -> Changed | Refused:
        job = self._there(tenant, number)
        if job is None:
            return NOT_FOUND
        before = job.state(self.now)
        if before not in (State.DEAD, State.CANCELLED):
            return INVALID_STATE
        job.end = job.finished_at = job.dead_reason = job.cancel_reason = job.spent = None
        job.attempts = job.failures = job.lost = 0
        job.expires_at = None
        job.run_at = job.updated_at = self.now
        job.place = self._next_place()
        self._write(job, EventName.RETRIED, State.QUEUED, data={"by": by} if by else {})
        return Changed(small(number), before, State.QUEUED)

    def reschedule(
        self,
        tenant: str,
        number: int,
        *,
        delay: float | None,
        run_at: datetime | None,
        priority: int | None,
        queue: str | None,
    ) -> Changed | Refused:
        job = self._there(tenant, number)
        if job is None:
            return NOT_FOUND
        before = job.state(self.now)
        if before not in (State.SCHEDULED, State.QUEUED, State.RETRYING):
            return INVALID_STATE
        if delay is not None:
            job.run_at = self.now + _seconds(delay)
        if run_at is not None:
            job.run_at = max(run_at, self.now)
        if priority is not None:
            job.priority = priority
        if queue is not None:
            job.queue = queue
        job.updated_at = self.now
        after = job.state(self.now)
        self._write(job, EventName.RESCHEDULED, after, data={"run_at": _text(job.run_at)})
        return Changed(small(number), before, after)

    def delete(self, tenant: str, numbers: Sequence[int]) -> list[Changed | Refused]:
        return [self._delete(tenant, number) for number in numbers]

    def _delete(self, tenant: str, number: int) -> Changed | Refused:
        job = self._there(tenant, number)
        if job is None:
            return NOT_FOUND
        before = job.state(self.now)
        if before is State.RUNNING:
            return INVALID_STATE
        if job.end is None:
            self._end_unasked(job, CancelReason.REQUESTED)
        self.gone.add(number)
        return Changed(small(number), before, None)

    def _there(self, tenant: str, number: int) -> ModelJob | None:
        job = self.job(number)
        return job if job.tenant == tenant and number not in self.gone else None

    # ── upkeep ──

    def rescue(self) -> list[Rescued]:
        return self._take_back([g for g in self.grants if g.expires_at <= self.now], None, Lost("expired"))

    def expire(self) -> list[UUID]:
        late = [job for job in self.kept() if job.free() and job.overdue(self.now)]
        for job in late:
            self._end_unasked(job, CancelReason.EXPIRED)
        return [small(job.number) for job in late]

    def prune(self) -> Pruned:
        over = [
            job
            for job in self.kept()
            if job.end is not None
            and job.finished_at is not None
            and job.finished_at < self._midnight(self.rules.keep(job.end))
        ]
        self.gone |= {job.number for job in over}
        edge = self._midnight(self.rules.keep_log)
        old = {(job.number, event.seq) for job in self.all for event in job.log if event.at < edge}
        removed = len(old - self._events_removed)
        self._events_removed |= old
        return Pruned(len(over), removed, self._prune_keys())

    def _midnight(self, keep: float) -> datetime:
        """The first instant of the oldest UTC day that `keep` seconds reach back to."""
        edge = self.now - _seconds(keep)
        return datetime(edge.year, edge.month, edge.day, tzinfo=edge.tzinfo)

    def _prune_keys(self) -> int:
        free = [
            name
            for name, key in self._keys.items()
            if self._state_of(key.job) not in _LIVE and key.until is not None and key.until <= self.now
        ]
        for name in free:
            del self._keys[name]
        forgotten = [
            unique
            for unique, held in self._uniques.items()
            if held.job.number in self.gone and held.until <= self.now
        ]
        for unique in forgotten:
            del self._uniques[unique]
        return len(free) + len(forgotten)

    def kept_log(self, number: int) -> list[Event]:
        """The events of a job that retention has not removed."""
        return [event for event in self.job(number).log if (number, event.seq) not in self._events_removed]

    # ── the log ──

    def _write(
        self,
        job: ModelJob,
        name: EventName,
        state: State,
        *,
        worker: str | None = None,
        data: dict[str, Any] | None = None,
    ) -> None:
        job.log.append(
            Event(
                event=name,
                tenant=job.tenant,
                job_id=small(job.number),
                seq=len(job.log) + 1,
                at=self.now,
                type=job.ask.type,
                queue=job.queue,
                state=state,
                attempt=job.attempt,
                worker_id=worker or job.worker,
                data=data or {},
            )
        )


def _matches(job: Job, where: JobFilter) -> bool:
    wanted = [
        where.queue in (None, job.queue),
        where.type in (None, job.type),
        where.states is None or job.state in where.states,
        where.idempotency_key in (None, job.idempotency_key),
        where.worker_id in (None, job.locked_by),
        where.reason in (None, job.dead_reason),
        where.created_after is None or job.created_at >= where.created_after,
        where.created_before is None or job.created_at < where.created_before,
    ]
    if where.error is not None:
        error = job.last_error
        wanted.append(error is not None and where.error in f"{error.type}\n{error.message}")
    if where.finished_after is not None:
        wanted.append(job.finished_at is not None and job.finished_at >= where.finished_after)
    if where.finished_before is not None:
        wanted.append(job.finished_at is not None and job.finished_at < where.finished_before)
    return all(wanted)


def _seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def _text(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%S.%f}Z"
