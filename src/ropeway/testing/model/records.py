"""What a program and the oracle speak of: jobs as they are asked for, tickets, and jobs as the oracle keeps them.

Jobs are numbered in the order of their creation; `UUID(int=number)` stands for the id that an engine would draw.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from ropeway.core.events import Event
from ropeway.core.job import DEFAULT_TIMEOUT, Job, NewJob, Progress
from ropeway.core.lease import Lease
from ropeway.core.outcome import Outcome
from ropeway.core.payload import JobError
from ropeway.core.states import CancelReason, DeadReason, State
from ropeway.core.unique import Unique
from ropeway.engines.protocol import Beat

#: Payloads that programs use, and what each of them is equal to: spaces do not count, digits do.
PAYLOADS = {b"{}": 0, b'{"n":1}': 1, b'{ "n" : 1 }': 1, b'{"n":1.0}': 2}

#: Results that programs use, and what is stored of each.
RESULTS = {
    None: (None, False),
    b"[1]": (b"[1]", False),
    b'"\\u0000"': ('"\N{REPLACEMENT CHARACTER}"'.encode(), True),
}

#: Stands for every token: a ticket is known by its job and its attempt.
NO_TOKEN = UUID(int=0)


class Refused(msgspec.Struct, frozen=True):
    """An error as an answer: what a face would show of it."""

    code: str
    index: int | None = None
    status: str | None = None


NOT_FOUND = Refused("not_found")
LEASE_LOST = Refused("lease_lost")
INVALID_STATE = Refused("invalid_state")


@dataclass(frozen=True)
class Ask:
    """A job that a program asks for. `at` counts seconds from the start of the program."""

    queue: str = "q1"
    type: str = "t1"
    priority: int = 5
    max_attempts: int = 3
    payload: bytes = b"{}"
    delay: float | None = None
    at: float | None = None
    key: str | None = None
    window: float | None = None
    unique: Unique | None = None
    expires_in: float | None = None
    timeout: float = DEFAULT_TIMEOUT

    def __repr__(self) -> str:
        defaults = Ask()
        said = (f"{name}={value!r}" for name, value in vars(self).items() if value != getattr(defaults, name))
        return f"Ask({', '.join(said)})"

    def job(self, start: datetime) -> NewJob:
        return NewJob(
            type=self.type,
            payload=self.payload,
            queue=self.queue,
            priority=self.priority,
            max_attempts=self.max_attempts,
            delay=self.delay,
            run_at=None if self.at is None else start + timedelta(seconds=self.at),
            idempotency_key=self.key,
            key_window=self.window,
            unique=self.unique,
            expires_in=self.expires_in,
            timeout=self.timeout,
        )

    def plainer(self) -> list[Ask]:
        """The same with one thing less said."""
        defaults = Ask()
        return [
            replace(self, **{name: getattr(defaults, name)})
            for name, value in vars(self).items()
            if value != getattr(defaults, name)
        ]

    def body(self) -> Ask:
        """Two asks under one key are the same request when their bodies are equal."""
        return replace(self, key=None, window=None, payload=_canonical(self.payload))

    def unique_name(self) -> tuple[object, ...] | None:
        if self.unique is None:
            return None
        if self.unique.by == "key":
            return "key", self.type, self.unique.key
        return "args", self.type, self.queue, _canonical(self.payload)


def _canonical(payload: bytes) -> bytes:
    return b"%d" % PAYLOADS[payload]


@dataclass(frozen=True)
class Ticket:
    """One lease of a program: the job's number and the attempt."""

    job: int
    attempt: int

    def lease(self) -> Lease:
        return Lease(small(self.job), self.attempt, NO_TOKEN)


class OwnerBeat(msgspec.Struct, frozen=True):
    """What a heartbeat by owner must say.

    A grant whose jobs all have an answer may be kept a while or not, so without a running job there is no more
    to ask than this: a job that was taken away is told of once, unless the lease ended before or its ticket was
    refused.
    """

    expires_in: float | None
    must_tell: frozenset[UUID]
    may_tell: frozenset[UUID]

    def complaint(self, beat: Beat | None) -> str | None:
        told = frozenset(() if beat is None else beat.revoked)
        if not self.must_tell <= told <= self.may_tell:
            return f"revoked is {sorted(told)}, not between {sorted(self.must_tell)} and {sorted(self.may_tell)}"
        if self.expires_in is not None and (beat is None or beat.expires_in != self.expires_in):
            return f"{beat} for a running job, not {self.expires_in} seconds"
        return None


def small(number: int) -> UUID:
    """The id of a job by its number."""
    return UUID(int=number)


@dataclass(eq=False)
class ModelGrant:
    tenant: str
    owner: UUID
    seconds: float
    expires_at: datetime
    revoked: list[Ticket] = field(default_factory=list)


@dataclass(eq=False)
class ModelJob:
    number: int
    tenant: str
    ask: Ask
    queue: str
    priority: int
    run_at: datetime
    place: int
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    attempt: int = 0
    attempts: int = 0
    failures: int = 0
    lost: int = 0
    grant: ModelGrant | None = None
    worker: str | None = None
    started_at: datetime | None = None
    end: State | None = None
    finished_at: datetime | None = None
    last_error: JobError | None = None
    result: bytes | None = None
    sanitized: bool = False
    dead_reason: DeadReason | None = None
    cancel_reason: CancelReason | None = None
    progress: Progress | None = None
    #: The kind of the outcome that used up the newest ticket.
    spent: type[Outcome] | None = None
    log: list[Event] = field(default_factory=list)

    def state(self, now: datetime) -> State:
        if self.end is not None:
            return self.end
        if self.grant is not None:
            return State.RUNNING
        if self.run_at > now:
            return State.RETRYING if self.failures else State.SCHEDULED
        return State.QUEUED

    def overdue(self, now: datetime) -> bool:
        return self.expires_at is not None and self.attempts == 0 and self.expires_at <= now

    def free(self) -> bool:
        return self.end is None and self.grant is None

    def startable(self, now: datetime) -> bool:
        return self.free() and self.run_at <= now and not self.overdue(now)

    def seen(self, now: datetime) -> Job:
        return Job(
            id=small(self.number),
            tenant=self.tenant,
            type=self.ask.type,
            queue=self.queue,
            state=self.state(now),
            priority=self.priority,
            payload=self.ask.payload,
            attempt=self.attempt,
            attempts=self.attempts,
            max_attempts=self.ask.max_attempts,
            run_at=self.run_at,
            created_at=self.created_at,
            updated_at=self.updated_at,
            failures=self.failures,
            lease_lost_count=self.lost,
            timeout=self.ask.timeout,
            started_at=self.started_at,
            finished_at=self.finished_at,
            locked_by=self.worker,
            locked_until=None if self.grant is None else self.grant.expires_at,
            last_error=self.last_error,
            result=self.result,
            dead_reason=self.dead_reason,
            cancel_reason=self.cancel_reason,
            idempotency_key=self.ask.key,
            expires_at=self.expires_at,
            progress=self.progress,
            result_sanitized=self.sanitized,
        )
