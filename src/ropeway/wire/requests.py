"""What may be sent: one struct per request body, the validator of the server and the writer's guide in one.

Strict: no field beyond these, no text for a number. Names, keys and times are written here as text with their rule
beside them for the OpenAPI document; the rule itself is kept by the records of `core` that `wire.convert` makes of
them, so that it is the same on every face. Times are RFC 3339 with a zone, durations are seconds.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from ropeway.core import fields
from ropeway.core.access import MAX_EMAIL, MAX_NAME, Scope
from ropeway.core.fleet import WorkerState
from ropeway.core.retry import MAX_DELAY, MAX_FACTOR
from ropeway.core.states import DeadReason, State

#: Seconds that a long poll may wait; more is cut to this.
MAX_WAIT = 30.0

#: Seconds that an idempotency key holds at least.
SHORTEST_WINDOW = 86_400

#: Characters of whoever is told to have retried a job.
MAX_BY = 256

#: Log lines that one call may bring.
MAX_LOG_LINES = 1_000

_FULL = Meta(extra_json_schema={"minItems": 1, "maxItems": fields.MAX_BATCH})
_PRINTABLE = r"^[^\u0000-\u001f\u007f]*$"


#: Queues or types that a worker may say it takes.
MOST_NAMES = 1_000


def text_of(limit: int, *, least: int = 1) -> Meta:
    return Meta(extra_json_schema={"minLength": least, "maxLength": limit, "pattern": _PRINTABLE})


def _seconds(low: float, high: float) -> Meta:
    return Meta(extra_json_schema={"minimum": low, "maximum": high})


Cron = Annotated[str, Meta(examples=["*/5 * * * *", "0 3 * * mon-fri", "@hourly"])]
Name = Annotated[str, Meta(extra_json_schema={"pattern": r"^[A-Za-z0-9._:-]{1,128}$"})]
JobId = Annotated[str, Meta(extra_json_schema={"format": "uuid"})]
Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
Key = Annotated[str, text_of(fields.MAX_KEY_BYTES)]
WorkerId = Annotated[str, text_of(128)]
#: 0 is for ever.
KeyWindow = Annotated[
    float,
    Meta(
        extra_json_schema={
            "anyOf": [{"const": 0}, {"minimum": SHORTEST_WINDOW, "maximum": fields.HORIZON_SECONDS}]
        }
    ),
]
#: What tells a keyed body from another for Ropeway's own clients, which make it from the fields: 64 hex digits.
#: One that is not of these fields is refused.
Fingerprint = Annotated[str, Meta(extra_json_schema={"pattern": "^[0-9a-f]{64}$"})]
#: Any JSON value, kept byte for byte; an absent one is `{}`.
Payload = Annotated[Raw, Meta(extra_json_schema={"default": {}})]
PriorityName = Literal["critical", "high", "default", "low", "bulk"]
Priority = Annotated[int, Meta(ge=1, le=9)]
Attempts = Annotated[int, Meta(ge=1, le=fields.MAX_ATTEMPTS_LIMIT)]
Retries = Annotated[int, Meta(ge=0, le=fields.MAX_ATTEMPTS_LIMIT - 1)]
Delay = Annotated[float, _seconds(0, fields.HORIZON_SECONDS)]
Expiry = Annotated[float, _seconds(0.001, fields.HORIZON_SECONDS)]
Timeout = Annotated[float, Meta(description="1 to 86,400 seconds, 0 for none"), _seconds(0, fields.MAX_TIMEOUT)]
LeaseSeconds = Annotated[float, _seconds(1, fields.MAX_LEASE_SECONDS)]
Tag = Annotated[str, text_of(fields.MAX_TAG_LENGTH)]
Tags = Annotated[list[Tag], Meta(extra_json_schema={"maxItems": fields.MAX_TAGS})]
Headers = Annotated[
    dict[str, str],
    Meta(extra_json_schema={"maxProperties": fields.MAX_HEADERS, "propertyNames": {"minLength": 1}}),
]


class Body(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all request bodies."""


class NoBody(Body):
    """An empty object; no body at all says the same."""


# --- producers ------------------------------------------------------------------------------------


class UniqueBody(Body):
    """Only one such job at a time."""

    by: Literal["args", "key"] = "args"
    key: Key | None = None
    within: Expiry | None = None
    statuses: list[State] | None = None


class RetryBody(Body):
    """A preset, with some of its numbers replaced."""

    policy: Literal["default", "atlas", "dispatch", "openqueue", "article", "full_jitter"] = "default"
    base: Annotated[float, _seconds(0, MAX_DELAY)] | None = None
    factor: Annotated[float, _seconds(1, MAX_FACTOR)] | None = None
    cap: Annotated[float, _seconds(0, MAX_DELAY)] | None = None
    jitter: Annotated[float, _seconds(0, 1)] | None = None


class EnqueueBody(Body):
    """A job to enqueue; only `type` is required."""

    type: Name
    payload: Payload | UnsetType = UNSET
    queue: Name = "default"
    priority: Priority | PriorityName = 5
    max_attempts: Attempts | UnsetType = UNSET
    max_retries: Retries | UnsetType = UNSET
    run_at: Time | None = None
    execute_at: Time | None = None
    delay: Delay | None = None
    idempotency_key: Key | None = None
    key_window: KeyWindow | None = None
    fingerprint: Fingerprint | None = None
    unique: UniqueBody | None = None
    retry: RetryBody | None = None
    timeout: Timeout = 3_600.0
    expires_at: Time | None = None
    expires_in: Expiry | None = None
    tags: Tags = []
    headers: Headers = {}


class BatchBody(Body):
    """Up to 1,000 jobs, all or none."""

    jobs: Annotated[list[EnqueueBody], _FULL]


class CancelBody(Body):
    reason: Annotated[str, text_of(256, least=0)] | None = None


class RescheduleBody(Body):
    run_at: Time | None = None
    delay: Delay | None = None
    priority: Priority | PriorityName | None = None
    queue: Name | None = None


class LookupBody(Body):
    ids: Annotated[list[JobId], _FULL]


# --- workers --------------------------------------------------------------------------------------


class WeightedQueue(Body):
    queue: Name
    weight: Annotated[int, Meta(ge=1, le=1_000_000)] = 1


class LeaseBody(Body):
    """Ask for up to `count` jobs. `owner` is a secret of the worker process; without it a call has its own."""

    worker_id: WorkerId
    count: Annotated[int, Meta(ge=1, le=fields.MAX_LEASE_COUNT)] = 1
    lease_seconds: LeaseSeconds | None = None
    wait: Annotated[float, Meta(ge=0, description="seconds to wait for a job; more than 30 is cut to 30")] = 0.0
    owner: UUID | None = None


class LeaseManyBody(LeaseBody, kw_only=True):
    queues: Annotated[list[Name | WeightedQueue], Meta(min_length=1, max_length=100)]


class WaitBody(Body):
    """`after` is the `number` of the last reply: no signal between two calls is missed."""

    queues: Annotated[list[Name], Meta(min_length=1, max_length=100)]
    wait: Annotated[float, Meta(ge=0)] = MAX_WAIT
    after: Annotated[int, Meta(ge=0)] | None = None


class OwnerBody(Body):
    owner: UUID


class OtherGrantsBody(Body):
    """Which grants of this owner hold jobs, but for those that it knows?"""

    owner: UUID
    known: Annotated[list[UUID], Meta(max_length=100_000)] = []


class EndOwnerBody(Body):
    """The owner is gone. The jobs in `started` (absent: all) are lost, the rest is released. An owner that lives
    names in `only` those of its grants that it knows nothing of."""

    owner: UUID
    only: Annotated[list[UUID], Meta(max_length=100_000)] | None = None
    started: Annotated[list[JobId], Meta(max_length=100_000)] | None = None
    exit_code: int | None = None
    signal: int | None = None
    peak_rss_bytes: int | None = None
    cause: Literal["expired", "crashed", "timeout"] = "crashed"


class TokenBody(Body):
    """Base of all that needs a lease."""

    lease_token: str


class AckBody(TokenBody):
    """A result that is no JSON may come as `result_base64`; of one too large to send, only that there was one."""

    result: Raw | UnsetType = UNSET
    result_base64: str | None = None
    result_too_large: bool = False


class ErrorBody(Body):
    """What went wrong. Who had to cut or clean the text already says so."""

    type: str = "Error"
    message: str = ""
    traceback: str | None = None
    truncated: bool = False
    sanitized: bool = False


class NackBody(TokenBody):
    #: A text or an ErrorBody; anything else becomes a text, for an attempt that failed must be able to end (G14).
    error: Annotated[
        Any,
        Meta(description="a text, or an object with type, message and traceback; anything else is kept as text"),
    ] = ""
    retry: bool = True
    retry_after: Delay | None = None
    reason: DeadReason = DeadReason.REJECTED


class HeartbeatBody(TokenBody):
    lease_seconds: LeaseSeconds | None = None


class SnoozeBody(TokenBody):
    delay: Delay | None = None
    run_at: Time | None = None


class ReleaseBody(TokenBody):
    pass


class LogLineBody(Body):
    """A line of a job's log. Its time is the store's: `at` is taken and not kept."""

    message: str
    level: str = "info"
    at: str | None = None


class ProgressBody(TokenBody):
    done: float | None = None
    total: float | None = None
    message: str | None = None
    logs: Annotated[list[LogLineBody], Meta(max_length=MAX_LOG_LINES)] | None = None


class LoseBody(TokenBody):
    exit_code: int | None = None
    signal: int | None = None
    peak_rss_bytes: int | None = None
    cause: Literal["expired", "crashed", "timeout"] = "crashed"


class AckItem(AckBody, kw_only=True):
    id: JobId


class NackItem(NackBody, kw_only=True):
    id: JobId


class HeartbeatItem(HeartbeatBody, kw_only=True):
    id: JobId


class SnoozeItem(SnoozeBody, kw_only=True):
    id: JobId


class ReleaseItem(ReleaseBody, kw_only=True):
    id: JobId


class ProgressItem(ProgressBody, kw_only=True):
    id: JobId


class LoseItem(LoseBody, kw_only=True):
    id: JobId


class AckBatch(Body):
    items: Annotated[list[AckItem], _FULL]


class NackBatch(Body):
    items: Annotated[list[NackItem], _FULL]


class HeartbeatBatch(Body):
    items: Annotated[list[HeartbeatItem], _FULL]


class SnoozeBatch(Body):
    items: Annotated[list[SnoozeItem], _FULL]


class ReleaseBatch(Body):
    items: Annotated[list[ReleaseItem], _FULL]


class ProgressBatch(Body):
    items: Annotated[list[ProgressItem], _FULL]


class LoseBatch(Body):
    items: Annotated[list[LoseItem], _FULL]


class WorkerBody(Body):
    """What a worker tells of itself, every ten seconds."""

    host: Annotated[str, text_of(256)]
    pid: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    version: Annotated[str, text_of(64)]
    queues: Annotated[list[Name], Meta(max_length=MOST_NAMES)] = []
    types: Annotated[list[Name], Meta(max_length=MOST_NAMES)] = []
    slots: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 1
    running: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    rss_bytes: Annotated[int, Meta(ge=0)] | None = None
    state: WorkerState = "running"


# --- operators ------------------------------------------------------------------------------------


class QueueBody(Body):
    """What to set of a queue: a field that is absent stays as it is, null takes the setting away."""

    depth_limit: Annotated[int, Meta(ge=1)] | UnsetType | None = UNSET
    require_key: bool | UnsetType = UNSET
    lease_seconds: LeaseSeconds | UnsetType | None = UNSET


class DeadFilterBody(Body):
    queue: Name | None = None
    type: Name | None = None
    reason: DeadReason | None = None
    fingerprint: Annotated[str, text_of(64)] | None = None
    dead_after: Time | None = None
    dead_before: Time | None = None


class ManyBody(Body):
    """Up to 1,000 jobs."""

    ids: Annotated[list[JobId], Meta(extra_json_schema={"minItems": 1, "maxItems": fields.MAX_BATCH})]


class RetryManyBody(ManyBody, kw_only=True):
    """`by` is told in the events of the jobs; the key's name unless it is given, nothing if it is null."""

    by: Annotated[str, text_of(MAX_BY)] | UnsetType | None = UNSET


class FilterBody(Body):
    """Which jobs: the filters of the list, by the same names. `status` may be several, with commas between."""

    queue: Name | None = None
    type: Name | None = None
    status: str | None = None
    idempotency_key: Key | None = None
    worker_id: WorkerId | None = None
    error: Annotated[str, text_of(256)] | None = None
    reason: DeadReason | None = None
    tag: Tag | None = None
    priority: Priority | None = None
    created_after: Time | None = None
    created_before: Time | None = None
    finished_after: Time | None = None
    finished_before: Time | None = None


class RetryWhereBody(Body):
    """Retry what a filter finds among the dead and cancelled; only the dead unless its `status` says otherwise."""

    filter: FilterBody
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    dry_run: bool = False
    by: Annotated[str, text_of(MAX_BY)] | UnsetType | None = UNSET


class DeadRetryBody(Body):
    """Exactly one of `id`, `ids` and `filter`."""

    id: JobId | None = None
    ids: Annotated[list[JobId], _FULL] | None = None
    filter: DeadFilterBody | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    dry_run: bool = False


class ScheduleBody(Body):
    name: Name
    cron: Cron
    type: Name
    tz: str = "UTC"
    queue: Name = "default"
    payload: Payload | UnsetType = UNSET
    priority: Priority | PriorityName = 5
    max_attempts: Attempts = 5
    timeout: Timeout = 3_600.0
    retry: RetryBody | None = None
    unique: UniqueBody | None = None
    expires_in: Expiry | None = None
    tags: Tags = []
    headers: Headers = {}
    missed: Literal["skip", "once", "all"] = "once"
    paused: bool = False


class PutScheduleBody(ScheduleBody, kw_only=True):
    """A schedule as it shall be. What code declares keeps what an operator changed, until the code changes."""

    source: Literal["code", "api"] = "api"


class ScheduleChange(Body):
    """What to change of a schedule; the rest stays as it is."""

    cron: Cron | UnsetType = UNSET
    tz: str | UnsetType = UNSET
    type: Name | UnsetType = UNSET
    queue: Name | UnsetType = UNSET
    payload: Raw | UnsetType = UNSET
    priority: Priority | PriorityName | UnsetType = UNSET
    max_attempts: Attempts | UnsetType = UNSET
    timeout: Timeout | UnsetType = UNSET
    retry: RetryBody | UnsetType | None = UNSET
    unique: UniqueBody | UnsetType | None = UNSET
    expires_in: Expiry | UnsetType | None = UNSET
    tags: Tags | UnsetType = UNSET
    headers: Headers | UnsetType = UNSET
    missed: Literal["skip", "once", "all"] | UnsetType = UNSET
    paused: bool | UnsetType = UNSET


class KeyBody(Body):
    name: Annotated[str, text_of(MAX_NAME)]
    scopes: Annotated[list[Scope], Meta(min_length=1)] = msgspec.field(default_factory=lambda: [Scope.ENQUEUE])
    expires_at: Time | None = None


class RotateBody(Body):
    overlap_seconds: Annotated[float, Meta(ge=0, le=31_536_000)] = 86_400.0


class LimitsBody(Body):
    """What a tenant may use; null takes the server's default."""

    rate_per_second: Annotated[float, Meta(ge=0.001, le=1e9)] | None = None
    burst: Annotated[int, Meta(ge=1)] | None = None
    max_queued: Annotated[int, Meta(ge=1)] | None = None
    max_payload_bytes: Annotated[int, Meta(ge=1)] | None = None
    max_leases: Annotated[int, Meta(ge=1)] | None = None


class TenantBody(Body):
    """`id` is made from the name when it is absent."""

    name: Annotated[str, text_of(MAX_NAME)]
    id: Name | None = None
    email: Annotated[str, text_of(MAX_EMAIL)] | None = None
    is_active: bool = True
    limits: LimitsBody = msgspec.field(default_factory=LimitsBody)


class TenantChange(Body):
    """What to change of a tenant; `limits` replaces all of them, an `email` of null removes it."""

    name: Annotated[str, text_of(MAX_NAME)] | UnsetType = UNSET
    email: Annotated[str, text_of(MAX_EMAIL)] | UnsetType | None = UNSET
    is_active: bool | UnsetType = UNSET
    limits: LimitsBody | UnsetType = UNSET
