"""What comes back: one struct per reply, the schema of the OpenAPI document and the model of the SDK in one.

The server writes replies from `wire.objects`, which spells times the one way that is promised; a test holds the
two against each other. A field that the key may not see, or that does not apply, is absent: `UNSET` here.
`payload` and `result` are kept as the bytes that came (`msgspec.Raw`). What may be sent is in `wire.requests`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ropeway.core.access import Scope
from ropeway.core.fleet import WorkerState
from ropeway.core.retry import RetryPolicy
from ropeway.core.states import CancelReason, DeadReason, EventName, State

Status = Literal[
    "scheduled", "queued", "running", "retrying", "waiting", "succeeded", "dead", "cancelled", "pruned"
]


class Model(msgspec.Struct):
    """Base of all replies. A field that this version does not know is passed over: the server may be newer."""


class LastError(Model):
    """`traceback` and `sanitized` are there for workers, and where they are asked for."""

    type: str
    message: str
    truncated: bool = False
    traceback: str | UnsetType | None = UNSET
    sanitized: bool | UnsetType = UNSET


class ErrorDetail(Model):
    type: str
    message: str
    traceback: str | None = None


class ProgressModel(Model):
    done: float | None = None
    total: float | None = None
    message: str | None = None
    at: datetime | None = None


class Job(Model):
    """A job as it is now."""

    id: UUID
    type: str
    queue: str
    status: Status
    priority: int
    attempt: int
    attempts: int
    max_attempts: int
    run_at: datetime
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    locked_by: str | None = None
    locked_until: datetime | None = None
    lease_lost_count: int = 0
    last_error: LastError | None = None
    payload: Raw | UnsetType = UNSET
    # Not `Raw | None`: msgspec then takes nothing but null. null is a value like any other here.
    result: Raw | UnsetType = UNSET
    dead_at: datetime | None = None
    dead_reason: DeadReason | None = None
    cancel_reason: CancelReason | None = None
    idempotency_key: str | None = None
    timeout: float = 3_600.0
    expires_at: datetime | None = None
    tags: list[str] = []
    headers: dict[str, str] = {}
    progress: ProgressModel | None = None
    failures: int = 0
    retry: RetryPolicy | None = None
    result_sanitized: bool = False
    result_too_large: bool = False


class Attempt(Model):
    attempt: int
    started_at: datetime
    finished_at: datetime | None = None
    worker_id: str | None = None
    outcome: str | None = None
    error: ErrorDetail | None = None
    retry_in_ms: int | None = None
    exit_code: int | None = None
    signal: int | None = None


class Event(Model):
    """One transition of one job. Dedup by (`job_id`, `seq`)."""

    event: EventName
    job_id: UUID
    run_id: UUID
    seq: int
    at: datetime
    type: str
    queue: str
    status: State
    attempt: int
    worker_id: str | None = None
    data: dict[str, Any] = {}


class LogEntry(Model):
    n: int
    message: str
    level: str = "info"
    attempt: int = 0
    at: datetime | None = None


class JobDetail(Job):
    attempt_history: list[Attempt] = []
    events: list[Event] = []
    logs: list[LogEntry] = []


class EnqueuedJob(Job, kw_only=True):
    """The answer to an enqueue: the job, or the first one under the same key."""

    run_id: UUID
    deduplicated: bool
    durability: Literal["relaxed"] | UnsetType = UNSET


class EnqueuedBrief(Model):
    """The short answer to an enqueue. `pruned`: the key's job is gone. A batch also tells a new job's times."""

    id: UUID
    run_id: UUID
    status: Status
    deduplicated: bool
    durability: Literal["relaxed"] | UnsetType = UNSET
    created_at: datetime | UnsetType = UNSET
    run_at: datetime | UnsetType = UNSET


class EnqueuedBatch(Model):
    jobs: list[EnqueuedBrief]
    durability: Literal["relaxed"] | UnsetType = UNSET


class JobList(Model):
    jobs: list[Job]
    next_cursor: str | None = None


class JobsFound(Model):
    """In the order of the ids; null for one that is not there."""

    jobs: list[Job | None]


class JobCount(Model):
    count: int
    capped: bool = False


class EventsFound(Model):
    events: list[Event]


class EventList(Model):
    events: list[Event]
    next_after: str


class LogsFound(Model):
    logs: list[LogEntry]


class Reason(Model):
    code: str
    message: str
    until: datetime | UnsetType | None = UNSET


class Explanation(Model):
    id: UUID
    status: Status
    reasons: list[Reason]
    ahead: int | None = None
    expected_start: datetime | None = None


class Now(Model):
    """The store's clock, and whose jobs the key is for."""

    now: datetime
    tenant: str = "default"


class Place(Model):
    """How many due jobs of its queue are in line before a job; null unless it is queued."""

    ahead: int | None = None
    capped: bool = False


class ChangedItem(Model):
    """One answer of a call for several jobs: its status before and after (null: it is gone), or the problem."""

    id: UUID
    ok: bool
    before: State | UnsetType = UNSET
    status: State | UnsetType | None = UNSET
    error: dict[str, Any] | UnsetType = UNSET


class ChangedBatch(Model):
    results: list[ChangedItem]


class RetriedWhere(Model):
    """What a retry by filter did, or would do. Call again while `more`."""

    matched: int
    retried: list[UUID]
    more: bool = False
    dry_run: bool = False


class Rescheduled(Job, kw_only=True):
    """The job, and its status before."""

    before: State


# --- workers --------------------------------------------------------------------------------------


class LeasedJob(Model):
    job: Job
    attempt: int
    lease_token: str
    lease_seconds: float
    locked_until: datetime | None = None


class LeaseReply(Model):
    leases: list[LeasedJob]
    next_due_in: float | UnsetType = UNSET


class AckReply(Model):
    id: UUID
    status: Status
    already_acked: bool | UnsetType = UNSET
    sanitized: bool | UnsetType = UNSET
    result_too_large: bool | UnsetType = UNSET


class NackReply(Model):
    id: UUID
    status: Status
    attempts: int | None = None
    run_at: datetime | None = None
    retry_in_ms: int | None = None
    already_nacked: bool | UnsetType = UNSET
    sanitized: bool | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET


class HeartbeatReply(Model):
    """`revoked` names jobs of the same lease call that must be stopped."""

    id: UUID
    lease_seconds: float
    expires_in: float
    locked_until: datetime | None = None
    revoked: list[UUID] = []


class SnoozeReply(Model):
    id: UUID
    status: Status
    run_at: datetime | None = None
    attempts: int | None = None
    already_snoozed: bool | UnsetType = UNSET


class ReleaseReply(Model):
    id: UUID
    status: Status
    run_at: datetime | None = None
    attempts: int | None = None
    already_released: bool | UnsetType = UNSET


class ProgressReply(Model):
    id: UUID


class LoseReply(Model):
    id: UUID
    status: Status
    run_at: datetime | None = None
    attempts: int | None = None
    lease_lost_count: int | None = None
    already_lost: bool | UnsetType = UNSET


class ItemReply(Model):
    """One answer of a batch: the members of the single call's reply when `ok`, else the problem."""

    id: str
    ok: bool
    error: dict[str, Any] | UnsetType = UNSET
    status: Status | UnsetType = UNSET
    attempts: int | UnsetType | None = UNSET
    run_at: datetime | UnsetType | None = UNSET
    retry_in_ms: int | UnsetType | None = UNSET
    lease_seconds: float | UnsetType = UNSET
    expires_in: float | UnsetType = UNSET
    locked_until: datetime | UnsetType | None = UNSET
    revoked: list[UUID] | UnsetType = UNSET
    lease_lost_count: int | UnsetType | None = UNSET
    already_acked: bool | UnsetType = UNSET
    already_nacked: bool | UnsetType = UNSET
    already_snoozed: bool | UnsetType = UNSET
    already_released: bool | UnsetType = UNSET
    already_lost: bool | UnsetType = UNSET
    sanitized: bool | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET
    result_too_large: bool | UnsetType = UNSET


class BatchReply(Model):
    results: list[ItemReply]


class OwnerBeat(Model):
    expires_in: float
    revoked: list[UUID] = []


class OtherGrants(Model):
    grants: list[UUID]


class RescuedJob(Model):
    id: UUID
    status: Status


class OwnerEnded(Model):
    rescued: list[RescuedJob]


class WaitReply(Model):
    """Whether work may be there; `number` is given back as `after`."""

    signalled: bool
    number: int = 0


class WorkerOrders(Model):
    quiet: bool = False
    stop: bool = False


# --- operators ------------------------------------------------------------------------------------


class Queue(Model):
    queue: str
    paused: bool
    counts: dict[str, int]
    counts_capped: bool = False
    capped: list[str] = []
    oldest_age_seconds: float | None = None
    enqueued_per_minute: float = 0.0
    finished_per_minute: float = 0.0
    depth_limit: int | None = None
    require_key: bool = False
    lease_seconds: float | None = None


class QueueList(Model):
    queues: list[Queue]


class Stats(Model):
    counts: dict[str, int]
    queues: int
    workers: int


class Scaling(Model):
    queue: str
    backlog: int
    running: int
    oldest_age_seconds: float | None
    workers_wanted: int


class DeadGroup(Model):
    fingerprint: str
    type: str
    message: str
    count: int
    first_at: datetime | None
    last_at: datetime | None
    sample_id: UUID


class DeadGroups(Model):
    """The largest first. Not `complete`: only the newest `looked_at` dead jobs were looked at."""

    groups: list[DeadGroup]
    looked_at: int = 0
    complete: bool = True


class Skipped(Model):
    id: UUID
    code: str


class DeadRetryReply(Model):
    matched: int
    retried: int
    skipped: list[Skipped] = []
    more: bool = False
    dry_run: bool = False


class UniqueModel(Model):
    by: Literal["args", "key"] = "args"
    key: str | None = None
    within: float | None = None
    states: list[State] | None = None


class Schedule(Model):
    name: str
    cron: str
    tz: str
    type: str
    queue: str
    priority: int
    max_attempts: int
    missed: Literal["skip", "once", "all"]
    paused: bool
    source: Literal["code", "api"]
    next_run_at: datetime
    payload: Raw | UnsetType = UNSET
    last_run_at: datetime | None = None
    last_job_id: UUID | None = None
    timeout: float = 3_600.0
    retry: RetryPolicy | None = None
    unique: UniqueModel | None = None
    expires_in: float | None = None
    tags: list[str] = []
    headers: dict[str, str] = {}


class ScheduleList(Model):
    schedules: list[Schedule]


class Worker(Model):
    worker_id: str
    host: str
    pid: int
    version: str
    queues: list[str]
    types: list[str]
    slots: int
    running: int
    rss_bytes: int | None = None
    state: WorkerState = "running"
    started_at: datetime | None = None
    last_seen_at: datetime | None = None
    running_jobs: list[UUID] = []


class WorkerList(Model):
    workers: list[Worker]


class AuditEntry(Model):
    at: datetime
    actor: str
    action: str
    target: str
    count: int | None = None
    request_id: str | None = None


class AuditList(Model):
    entries: list[AuditEntry]
    next_cursor: str | None = None


class ApiKey(Model):
    """A key as it is listed: never its secret."""

    id: str
    name: str
    scopes: list[Scope]
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None


class NewApiKey(ApiKey, kw_only=True):
    """A key that was just made: `token` is shown this once only."""

    token: str


class KeyList(Model):
    keys: list[ApiKey]


class LimitsModel(Model):
    rate_per_second: float | None = None
    burst: int | None = None
    max_queued: int | None = None
    max_payload_bytes: int | None = None
    max_leases: int | None = None


class Tenant(Model):
    id: str
    name: str
    is_active: bool
    created_at: datetime
    limits: LimitsModel = msgspec.field(default_factory=LimitsModel)
    email: str | None = None
    last_seen_at: datetime | None = None


class TenantList(Model):
    tenants: list[Tenant]


class Ticket(Model):
    ticket: str
    expires_in: float
