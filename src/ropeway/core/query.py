"""What may be asked of an engine: filters from an allow-list, and pages by keyset."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import UUID

import msgspec

from ropeway.core import fields
from ropeway.core.errors import BadCursor, FieldError
from ropeway.core.job import Job
from ropeway.core.states import DeadReason, State

MAX_PAGE = 500
DEFAULT_PAGE = 50

#: The rates of a queue are those of so many seconds.
RATE_SECONDS = 60.0

#: Older words for states that filters still understand.
STATE_ALIASES = {
    "pending": State.QUEUED,
    "enqueued": State.QUEUED,
    "delayed": State.SCHEDULED,
    "processing": State.RUNNING,
    "started": State.RUNNING,
    "leased": State.RUNNING,
    "failed": State.RETRYING,
    "failure": State.RETRYING,
    "retried": State.RETRYING,
    "completed": State.SUCCEEDED,
    "success": State.SUCCEEDED,
    "dlq": State.DEAD,
    "dead_letter": State.DEAD,
}

Order = Literal["newest", "oldest", "died"]


def parse_state(word: str) -> State:
    """A state by its name or by one of the older words."""
    try:
        return STATE_ALIASES.get(word) or State(word)
    except ValueError:
        raise FieldError(
            f"unknown status {word[:64]!r}", pointer="/status", hint=f"one of {', '.join(State)}"
        ) from None


class JobFilter(msgspec.Struct, frozen=True):
    """Which jobs. Every field narrows; an empty filter is all jobs of the tenant.

    `error` matches a part of the last error's message or type. Times are half-open: `after` <= t < `before`.
    """

    queue: str | None = None
    type: str | None = None
    states: frozenset[State] | None = None
    idempotency_key: str | None = None
    worker_id: str | None = None
    error: str | None = None
    reason: DeadReason | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    finished_after: datetime | None = None
    finished_before: datetime | None = None
    tag: str | None = None
    priority: int | None = None

    def __post_init__(self) -> None:
        for field in ("queue", "type"):
            value = getattr(self, field)
            if value is not None:
                fields.check_name(value, field)
        for field in ("created_after", "created_before", "finished_after", "finished_before"):
            value = getattr(self, field)
            if value is not None:
                fields.check_time(value, field)
        if self.error is not None:
            fields.check_text(self.error, "error", limit=256)
        if self.idempotency_key is not None:
            fields.check_key(self.idempotency_key, "idempotency_key")
        if self.worker_id is not None:
            fields.check_text(self.worker_id, "worker_id", limit=128)
        if self.tag is not None:
            fields.check_text(self.tag, "tag", limit=fields.MAX_TAG_LENGTH)
        if self.priority is not None:
            fields.check_integer(self.priority, "priority", 1, 9)


class JobPage(msgspec.Struct, frozen=True):
    """One page of jobs and the position after it; None when there is no more.

    A page that is not full may have a position all the same: the search stopped there, because it had looked at as
    many jobs as one call may, and goes on from it.
    """

    jobs: list[Job]
    next: str | None = None


class Count(msgspec.Struct, frozen=True):
    """How many, counted no further than the cap that was asked for."""

    number: int
    capped: bool = False


class QueueSettings(msgspec.Struct, frozen=True):
    """What a queue was set to: how many live jobs it takes, whether each needs a key, its leases' length."""

    depth_limit: int | None = None
    require_key: bool = False
    lease_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.depth_limit is not None:
            fields.check_integer(self.depth_limit, "depth_limit", 1, 2**53)
        if self.lease_seconds is not None:
            fields.check_seconds(self.lease_seconds, "lease_seconds", 1, fields.MAX_LEASE_SECONDS)


class QueueStats(msgspec.Struct, frozen=True):
    """One queue at a glance.

    The counts of the states in `capped` stopped before the end: there are at least so many. `oldest_age_seconds`
    is the longest that a job which could run now has been due: since its `run_at`, which is never before it was
    made and moves with each retry, snooze and redrive. A job that was released keeps its place and waits on.

    The rates are of the last 60 seconds by the engine's clock, from its events; an engine may count only the
    newest of them (at most its cap) and take the time those span.
    """

    queue: str
    paused: bool
    counts: dict[State, int]
    capped: frozenset[State] = frozenset()
    oldest_age_seconds: float | None = None
    enqueued_per_minute: float = 0.0
    finished_per_minute: float = 0.0
    settings: QueueSettings = QueueSettings()

    @property
    def counts_capped(self) -> bool:
        """Whether some count stopped before the end."""
        return bool(self.capped)


class RedriveReport(msgspec.Struct, frozen=True):
    """What a redrive by filter did, or would do (`dry_run`). Call again while `more`."""

    matched: int
    retried: list[UUID]
    more: bool = False
    dry_run: bool = False


def check_page(limit: int) -> int:
    """A page size within bounds."""
    return fields.check_integer(limit, "limit", 1, MAX_PAGE)


def matches(job: Job, where: JobFilter) -> bool:
    """Whether a filter takes a job: the meaning that every engine's SQL has to have."""
    error = job.last_error
    return (
        (where.queue is None or job.queue == where.queue)
        and (where.type is None or job.type == where.type)
        and (where.states is None or job.state in where.states)
        and (where.idempotency_key is None or job.idempotency_key == where.idempotency_key)
        and (where.worker_id is None or job.locked_by == where.worker_id)
        and (where.reason is None or job.dead_reason == where.reason)
        and (where.tag is None or where.tag in job.tags)
        and (where.priority is None or job.priority == where.priority)
        and (
            where.error is None
            or (error is not None and (where.error in error.message or where.error in error.type))
        )
        and _within(job.created_at, where.created_after, where.created_before)
        and _within(job.finished_at, where.finished_after, where.finished_before)
    )


def _within(at: datetime | None, after: datetime | None, before: datetime | None) -> bool:
    if after is None and before is None:
        return True
    return at is not None and (after is None or at >= after) and (before is None or at < before)


def id_position(id: UUID) -> str:
    """The position after a job in a list ordered by id."""
    return id.hex


def parse_id_position(position: str) -> UUID:
    if not _HEX_ID.match(position):
        raise BadCursor("this is not a position in a list of jobs")
    return UUID(hex=position)


def death_position(job: Job) -> str:
    """The position after a job in a list ordered by time of death."""
    finished = job.finished_at or job.updated_at
    return f"{(finished - _EPOCH) // _MICROSECOND}-{job.id.hex}"


def parse_death_position(position: str) -> tuple[datetime, UUID]:
    microseconds, _, id = position.partition("-")
    if not _MICROSECONDS.match(microseconds) or not _HEX_ID.match(id):
        raise BadCursor("this is not a position in a list of dead jobs")
    return _EPOCH + int(microseconds) * _MICROSECOND, UUID(hex=id)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_HEX_ID = re.compile(r"[0-9a-f]{32}\Z")
_MICROSECONDS = re.compile(r"[0-9]{1,17}\Z")
