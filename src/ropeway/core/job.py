"""NewJob: what is asked for, valid by construction. Job: what is stored. Both frozen, no engine inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import force_setattr

from ropeway.core import fields, unique
from ropeway.core.errors import FieldError
from ropeway.core.lazily import MadeLazily
from ropeway.core.payload import JobError, check_flat_payload, check_payload
from ropeway.core.retry import RetryPolicy
from ropeway.core.states import CancelReason, DeadReason, State
from ropeway.core.unique import Unique

#: No setting allows a larger payload than this.
LARGEST_PAYLOAD = 16 * 1_048_576

DEFAULT_TENANT = "default"
DEFAULT_QUEUE = "default"
DEFAULT_PRIORITY = 5
DEFAULT_MAX_ATTEMPTS = 5
DEFAULT_TIMEOUT = 3_600.0

#: Headers that say which trace a job belongs to: another one each time, so they do not make another body.
TRACE_HEADERS = ("traceparent", "tracestate")

_NO_HEADERS: Mapping[str, str] = {}


class NewJob(msgspec.Struct, frozen=True):
    """A job to enqueue. Creating one checks every field; an invalid NewJob does not exist.

    `run_at` (a time with a zone; the past means now) and `delay` (seconds) exclude one another, as do
    `expires_at` and `expires_in`. `key_window` None takes the engine's setting; 0 is for ever. `fingerprint` is
    made from the fields unless the caller has the body as it came (the HTTP face does).
    """

    type: str
    payload: bytes = b"{}"
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    run_at: datetime | None = None
    delay: float | None = None
    idempotency_key: str | None = None
    key_window: float | None = None
    fingerprint: bytes | None = None
    unique: Unique | None = None
    retry: RetryPolicy | None = None
    timeout: float = DEFAULT_TIMEOUT
    expires_at: datetime | None = None
    expires_in: float | None = None
    tags: tuple[str, ...] = ()
    headers: Mapping[str, str] = _NO_HEADERS

    def __post_init__(self) -> None:
        fields.check_name(self.type, "type")
        fields.check_name(self.queue, "queue")
        if not isinstance(self.payload, bytes):
            raise FieldError("payload must be bytes of JSON", pointer="/payload", hint="encode the value first")
        # How large a payload may be is the engine's setting; here is only the bound that no setting passes.
        check_payload(self.payload, max_bytes=LARGEST_PAYLOAD)
        # The common values pass by one comparison each: this runs for every job that is enqueued.
        if type(self.priority) is not int or not 1 <= self.priority <= 9:
            fields.check_integer(self.priority, "priority", 1, 9)
        if type(self.max_attempts) is not int or not 1 <= self.max_attempts <= fields.MAX_ATTEMPTS_LIMIT:
            fields.check_integer(self.max_attempts, "max_attempts", 1, fields.MAX_ATTEMPTS_LIMIT)
        if self.run_at is not None or self.delay is not None:
            self._check_when()
        if self.expires_at is not None or self.expires_in is not None:
            self._check_expiry()
        if self.idempotency_key is not None:
            fields.check_key(self.idempotency_key, "idempotency_key")
        if self.key_window is not None:
            fields.check_seconds(self.key_window, "key_window", 0, fields.HORIZON_SECONDS)
        if self.unique is not None and not isinstance(self.unique, Unique):
            raise FieldError("unique must be a Unique", pointer="/unique")
        if self.retry is not None and not isinstance(self.retry, RetryPolicy):
            raise FieldError("retry must be a RetryPolicy", pointer="/retry", hint="see retry_policy()")
        if self.timeout != DEFAULT_TIMEOUT and (self.timeout != 0 or self.timeout is False):
            fields.check_seconds(self.timeout, "timeout", 1, fields.MAX_TIMEOUT)
        if self.tags:
            fields.check_tags(self.tags)
        if self.headers:
            fields.check_headers(self.headers)

    def with_payload(self, payload: bytes, *, flat: bool = False) -> NewJob:
        """This job with another payload, which alone is checked; `flat` as `check_flat_payload` has it.

        For the many calls of one task: 1 µs instead of 4.
        """
        (check_flat_payload if flat else check_payload)(payload, max_bytes=LARGEST_PAYLOAD)
        return self.holding(payload)

    def holding(self, payload: bytes) -> NewJob:
        """The same for a payload that was checked."""
        made = copy(self)
        force_setattr(made, "payload", payload)
        return made

    def _check_when(self) -> None:
        if self.run_at is not None and self.delay is not None:
            raise FieldError("give run_at or delay, not both", code="conflicting_fields", pointer="/run_at")
        if self.run_at is not None:
            fields.check_time(self.run_at, "run_at")
        if self.delay is not None:
            fields.check_seconds(self.delay, "delay", 0, fields.HORIZON_SECONDS)

    def _check_expiry(self) -> None:
        if self.expires_at is not None and self.expires_in is not None:
            raise FieldError(
                "give expires_at or expires_in, not both", code="conflicting_fields", pointer="/expires_at"
            )
        if self.expires_at is not None:
            fields.check_time(self.expires_at, "expires_at")
        if self.expires_in is not None:
            fields.check_seconds(self.expires_in, "expires_in", 0.001, fields.HORIZON_SECONDS)

    def body_fingerprint(self) -> bytes:
        """What tells a repeated request from another one under the same idempotency key."""
        return self.fields_fingerprint() if self.fingerprint is None else self.fingerprint

    def fields_fingerprint(self, *, timeless: bool = False) -> bytes:
        """The same, made from the fields whatever the caller says; `timeless`: without when it is to run. Values
        that are equal count as equal however they were given: 5 seconds and 5.0, a moment in any zone."""
        body: dict[str, object] = {"type": self.type, "queue": self.queue}
        for name, default in _FINGERPRINTED:
            if timeless and name in _WHEN:
                continue
            value = getattr(self, name)
            if name == "headers" and value:
                value = {header: text for header, text in value.items() if header not in TRACE_HEADERS}
            if value is not default and value != default:
                body[name] = _SAME_FORM[name](value) if name in _SAME_FORM else value
        if self.unique is not None:
            rule = self.unique
            within = None if rule.within is None else float(rule.within)
            body["unique"] = [rule.by, rule.key, within, sorted(rule.blocking_states)]
        return unique.fingerprint(body, self.payload)


class Alike(MadeLazily[NewJob]):
    """New jobs that differ in their payloads alone, as the many calls of one task do. The payloads were checked.

    Who knows it looks at `model` once for all of them.
    """

    __slots__ = ("model", "payloads")

    def __init__(self, model: NewJob, payloads: Sequence[bytes]) -> None:
        super().__init__()
        #: Any of them, but for the payload.
        self.model = model
        self.payloads = payloads

    def __len__(self) -> int:
        return len(self.payloads)

    def make(self) -> list[NewJob]:
        return [self.model.holding(payload) for payload in self.payloads]


_WHEN = frozenset({"run_at", "delay"})


def _in_utc(at: datetime) -> datetime:
    return at.astimezone(UTC)


def _in_floats(policy: RetryPolicy) -> dict[str, object]:
    """Without what is at its default by value. msgspec would leave out only the default object itself, which a
    policy that was read from JSON does not have: it would count as another one."""
    given = {name: getattr(policy, name) for name in RetryPolicy.__struct_fields__}
    return {
        name: value if name == "shape" else float(value)
        for name, value in given.items()
        if value != getattr(_DEFAULT_POLICY, name)
    }


_DEFAULT_POLICY = RetryPolicy()


_SAME_FORM: Mapping[str, Callable[[Any], object]] = {
    "delay": float,
    "timeout": float,
    "expires_in": float,
    "run_at": _in_utc,
    "expires_at": _in_utc,
    "retry": _in_floats,
}

_BODY_FIELDS = frozenset(
    {
        "priority",
        "max_attempts",
        "run_at",
        "delay",
        "retry",
        "timeout",
        "expires_at",
        "expires_in",
        "tags",
        "headers",
    }
)
#: What makes a body another one, beside type, queue, payload and unique; a field at its default is left out.
_FINGERPRINTED = tuple(
    # msgspec keeps an empty dict as a factory.
    (field.name, field.default_factory() if callable(field.default_factory) else field.default)
    for field in msgspec.structs.fields(NewJob)
    if field.name in _BODY_FIELDS
)


class Progress(msgspec.Struct, frozen=True):
    """How far a running job says it is."""

    done: float | None = None
    total: float | None = None
    message: str | None = None
    at: datetime | None = None


class Job(msgspec.Struct, frozen=True, gc=False):
    """A stored job, as it was when it was read. `attempt` is the fencing number, `attempts` the budget used."""

    id: UUID
    tenant: str
    type: str
    queue: str
    state: State
    priority: int
    payload: bytes | None
    attempt: int
    attempts: int
    max_attempts: int
    run_at: datetime
    created_at: datetime
    updated_at: datetime
    failures: int = 0
    lease_lost_count: int = 0
    timeout: float = DEFAULT_TIMEOUT
    retry: RetryPolicy | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    locked_by: str | None = None
    locked_until: datetime | None = None
    last_error: JobError | None = None
    result: bytes | None = None
    dead_reason: DeadReason | None = None
    cancel_reason: CancelReason | None = None
    idempotency_key: str | None = None
    expires_at: datetime | None = None
    tags: tuple[str, ...] = ()
    headers: Mapping[str, str] = _NO_HEADERS
    progress: Progress | None = None
    #: Set when the result could not be kept as it came (G14).
    result_sanitized: bool = False
    result_too_large: bool = False

    @property
    def dead_at(self) -> datetime | None:
        return self.finished_at if self.state is State.DEAD else None
