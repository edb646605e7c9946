"""Every error Ropeway raises on purpose, with the code that names it on every face.

    RopewayError
    ├─ InputError              what was sent cannot be accepted; nothing changed
    │  ├─ PayloadError         malformed_json invalid_utf8 duplicate_key number_range too_deep
    │  │                       nul_character invalid_unicode payload_too_large
    │  ├─ FieldError           invalid_field unknown_field invalid_id timezone_required invalid_time
    │  │                       conflicting_fields key_required
    │  ├─ BadArguments         bad_arguments: the payload does not fit the task's parameters
    │  ├─ BatchTooLarge        batch_too_large
    │  ├─ BadCursor            bad_cursor
    │  └─ IdempotencyMismatch  idempotency_mismatch
    ├─ ConflictError           the request was fine, the state of things forbids it
    │  ├─ LeaseLost            lease_lost
    │  ├─ JobEnded             terminal
    │  ├─ InvalidState         invalid_state
    │  ├─ KeyInFlight          key_in_flight
    │  └─ NameTaken            name_taken
    ├─ AccessError             who asks, or what their key allows; nothing changed
    │  ├─ Unauthenticated      unauthenticated: no key, or none that is good
    │  └─ MissingScope         missing_scope: the key is good, but not for this
    ├─ LimitError              more than may be used now; nothing changed, a later try may pass
    │  ├─ RateLimited          rate_limited
    │  ├─ QuotaExceeded        quota_exceeded
    │  └─ QueueFull            queue_full
    ├─ NotFound                not_found
    ├─ UnknownTask             unknown_task: no task of that name is declared here
    ├─ UsageError              usage: a call that cannot work where it was made
    ├─ JobFailed               job_failed: the awaited job is dead
    ├─ JobCancelled            job_cancelled: the awaited job was cancelled
    ├─ ResultUnavailable       result_unavailable: the awaited job succeeded, its result is not to be had
    ├─ PositionExpired         position_expired
    ├─ NotSupported            not_supported
    └─ EngineError             the store, not the request
       ├─ Unavailable          unavailable: nothing was stored
       ├─ Indeterminate        indeterminate: it may have been stored, repeat with the same key
       └─ ConfigurationError   configuration: a setting, URL, schema or version that must be put right first

The codes are promised (they are the `code` of HTTP problems); the class names are what Python code catches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ropeway.core.job import Job


class RopewayError(Exception):
    """Base of the tree. `code` is stable; `message` says what happened; `hint` says what to do."""

    code = "error"

    def __init__(self, message: str, *, hint: str | None = None, index: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        #: Position of the refused item when the call was a batch.
        self.index = index

    def __str__(self) -> str:
        where = "" if self.index is None else f"item {self.index}: "
        return f"{where}{self.message}" + (f" ({self.hint})" if self.hint else "")


class InputError(RopewayError):
    """What was sent cannot be accepted. Nothing changed."""

    code = "invalid_field"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        pointer: str | None = None,
        hint: str | None = None,
        index: int | None = None,
    ) -> None:
        super().__init__(message, hint=hint, index=index)
        if code is not None:
            self.code = code
        #: JSON pointer (RFC 6901) to the offending part: of the payload in a PayloadError, of the job otherwise.
        self.pointer = pointer


class PayloadError(InputError):
    """The bytes are not JSON that every engine can keep exactly."""

    code = "malformed_json"


class FieldError(InputError):
    """A field of a job, schedule or request breaks its rule."""


class BadArguments(InputError):
    """The payload cannot be turned into the arguments that the task's function takes."""

    code = "bad_arguments"


class BatchTooLarge(InputError):
    """More items in one call than a batch may have."""

    code = "batch_too_large"


class BadCursor(InputError):
    """A page cursor that was not made by this engine for this tenant and question."""

    code = "bad_cursor"


class IdempotencyMismatch(InputError):
    """The key was used before with another body."""

    code = "idempotency_mismatch"


class ConflictError(RopewayError):
    """The request was well formed, but the state of things forbids it. Nothing changed."""

    code = "conflict"


class LeaseLost(ConflictError):
    """The ticket is not the job's current one: stop working on it, its outcome is not yours to write."""

    code = "lease_lost"


class JobEnded(ConflictError):
    """The job has already ended."""

    code = "terminal"

    def __init__(self, message: str, *, status: str, hint: str | None = None, index: int | None = None) -> None:
        super().__init__(message, hint=hint, index=index)
        self.status = status


class InvalidState(ConflictError):
    """The verb does not apply to a job in this state."""

    code = "invalid_state"


class KeyInFlight(ConflictError):
    """Another transaction holds the same key and has not committed yet."""

    code = "key_in_flight"


class NameTaken(ConflictError):
    """Something else already has that name."""

    code = "name_taken"


class AccessError(RopewayError):
    """The caller may not do this. Nothing changed."""

    code = "missing_scope"


class Unauthenticated(AccessError):
    """No key was given, or none that is good. It never says which: that would help whoever guesses."""

    code = "unauthenticated"

    def __init__(
        self,
        message: str = "this needs an API key that is good",
        *,
        hint: str | None = "send `Authorization: Bearer <token>`; `ropeway keys create` makes one",
        index: int | None = None,
    ) -> None:
        super().__init__(message, hint=hint, index=index)


class MissingScope(AccessError):
    """The key is good, but it was not given the scope that this needs."""

    code = "missing_scope"


class LimitError(RopewayError):
    """More than the tenant may use now. Nothing changed.

    `retry_in` is in how many seconds another try may pass; None when waiting alone does not help.
    """

    code = "quota_exceeded"

    def __init__(
        self, message: str, *, retry_in: float | None = None, hint: str | None = None, index: int | None = None
    ) -> None:
        super().__init__(message, hint=hint, index=index)
        self.retry_in = retry_in


class RateLimited(LimitError):
    """Too many requests in too short a time."""

    code = "rate_limited"


class QuotaExceeded(LimitError):
    """The tenant holds as much as it may: queued jobs or leases."""

    code = "quota_exceeded"


class QueueFull(LimitError):
    """The queue holds as many jobs as it was set to take."""

    code = "queue_full"


class NotFound(RopewayError):
    """No such thing for this tenant."""

    code = "not_found"


class UnknownTask(RopewayError):
    """No task of that name is declared in this program."""

    code = "unknown_task"


class UsageError(RopewayError):
    """The call cannot work where it was made: inside an event loop, after a fork, outside a transaction."""

    code = "usage"


class JobFailed(RopewayError):
    """The job whose result was awaited is dead. `job` is all of it, `job.last_error` what its last run said."""

    code = "job_failed"

    def __init__(self, message: str, *, job: Job, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.job = job


class JobCancelled(RopewayError):
    """The job whose result was awaited was cancelled, or expired before it was started."""

    code = "job_cancelled"

    def __init__(self, message: str, *, job: Job, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.job = job


class ResultUnavailable(RopewayError):
    """The job succeeded, but its result was too large to keep or is not of the type that the task announces."""

    code = "result_unavailable"

    def __init__(self, message: str, *, job: Job, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.job = job


class PositionExpired(RopewayError):
    """The event log no longer reaches back that far."""

    code = "position_expired"


class NotSupported(RopewayError):
    """This engine declares that it lacks the capability."""

    code = "not_supported"


class EngineError(RopewayError):
    """The store could not do its part."""

    code = "unavailable"


class Unavailable(EngineError):
    """The store cannot be reached or refuses work. Nothing was stored."""

    code = "unavailable"


class Indeterminate(EngineError):
    """The connection broke after the request was sent: it may have been stored. Repeat with the same key."""

    code = "indeterminate"

    #: The idempotency keys that the jobs went out with, in their order, also those that nobody gave: repeated with
    #: them it happens once. Only where the HTTP clients enqueue.
    keys: tuple[str, ...] = ()


class ConfigurationError(EngineError):
    """A setting, URL, schema or version is not usable as it is; the message says what to change."""

    code = "configuration"
