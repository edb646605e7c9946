"""What the memory engine keeps: one mutable row per job, grant, key and schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from ropeway.core.decide import JobFacts
from ropeway.core.job import Job, NewJob, Progress
from ropeway.core.joblog import LogLine, kept_line, newest_kept
from ropeway.core.lease import LastTicket
from ropeway.core.payload import JobError
from ropeway.core.retry import RetryPolicy
from ropeway.core.schedule import NewSchedule, Schedule
from ropeway.core.states import CancelReason, DeadReason, State, Verb, live_state


@dataclass(slots=True)
class JobRow:
    """One job, from its enqueue until it is pruned."""

    id: UUID
    tenant: str
    new: NewJob
    queue: str
    priority: int
    run_at: datetime
    #: Order of acceptance: the tie-breaker of `run_at`.
    place: int
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    attempt: int = 0
    attempts: int = 0
    failures: int = 0
    lost: int = 0
    blockers: int = 0
    token: UUID | None = None
    worker: str | None = None
    started_at: datetime | None = None
    spent_token: UUID | None = None
    spent_verb: Verb | None = None
    ended: State | None = None
    finished_at: datetime | None = None
    last_error: JobError | None = None
    result: bytes | None = None
    result_sanitized: bool = False
    result_too_large: bool = False
    dead_reason: DeadReason | None = None
    cancel_reason: CancelReason | None = None
    progress: Progress | None = None
    event_seq: int = 0
    lines: list[LogLine] = field(default_factory=list)

    def state(self, now: datetime) -> State:
        if self.ended is not None:
            return self.ended
        return live_state(
            leased=self.token is not None,
            blockers=self.blockers,
            run_at=self.run_at,
            failures=self.failures,
            now=now,
        )

    def startable(self, now: datetime) -> bool:
        """Due, free and not too late: what a claim may take."""
        return (
            self.ended is None
            and self.token is None
            and self.blockers == 0
            and self.run_at <= now
            and not self.overdue(now)
        )

    def overdue(self, now: datetime) -> bool:
        """Not started by its `expires_at`."""
        return self.expires_at is not None and self.attempts == 0 and self.expires_at <= now

    def facts(self) -> JobFacts:
        return JobFacts(self.attempts, self.new.max_attempts, self.failures, self.lost, self.retry)

    @property
    def retry(self) -> RetryPolicy | None:
        return self.new.retry

    def append_line(self, line: LogLine, now: datetime) -> None:
        """Keep one more line of the handler's, and the newest only."""
        number = self.lines[-1].n + 1 if self.lines else 1
        self.lines.append(kept_line(line, attempt=self.attempt, n=number, at=now))
        self.lines = list(newest_kept(self.lines))

    def last_ticket(self, now: datetime) -> LastTicket:
        return LastTicket(self.attempt, self.spent_token, self.spent_verb, self.state(now))

    def job(self, now: datetime, locked_until: datetime | None) -> Job:
        new = self.new
        return Job(
            id=self.id,
            tenant=self.tenant,
            type=new.type,
            queue=self.queue,
            state=self.state(now),
            priority=self.priority,
            payload=new.payload,
            attempt=self.attempt,
            attempts=self.attempts,
            max_attempts=new.max_attempts,
            run_at=self.run_at,
            created_at=self.created_at,
            updated_at=self.updated_at,
            failures=self.failures,
            lease_lost_count=self.lost,
            timeout=new.timeout,
            retry=new.retry,
            started_at=self.started_at,
            finished_at=self.finished_at,
            locked_by=self.worker,
            locked_until=locked_until,
            last_error=self.last_error,
            result=self.result,
            dead_reason=self.dead_reason,
            cancel_reason=self.cancel_reason,
            idempotency_key=new.idempotency_key,
            expires_at=self.expires_at,
            tags=new.tags,
            headers=new.headers,
            progress=self.progress,
            result_sanitized=self.result_sanitized,
            result_too_large=self.result_too_large,
        )


@dataclass(slots=True)
class GrantRow:
    """One lease call: who holds it, until when, and which of its jobs are not settled yet."""

    token: UUID
    tenant: str
    owner: UUID
    expires_at: datetime
    lease_seconds: float
    open: set[UUID]
    revoked: list[UUID] = field(default_factory=list)


@dataclass(slots=True)
class KeyRow:
    """An idempotency or unique key and the job it stands for."""

    job_id: UUID
    fingerprint: bytes
    until: datetime | None
    enqueued_at: datetime


@dataclass(slots=True)
class ScheduleRow:
    """A schedule, what code last declared for it, and its times."""

    spec: NewSchedule
    definition: str | None
    next_run_at: datetime
    last_run_at: datetime | None = None
    last_job_id: UUID | None = None

    def schedule(self) -> Schedule:
        return Schedule(self.spec, self.next_run_at, self.last_run_at, self.last_job_id)


def queue_counts(rows: list[JobRow], now: datetime) -> Mapping[State, int]:
    """How many rows are in each state; states without any are absent."""
    counts: dict[State, int] = {}
    for row in rows:
        state = row.state(now)
        counts[state] = counts.get(state, 0) + 1
    return counts
