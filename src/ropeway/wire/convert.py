"""Requests to the records of `core`. What a record's own rules refuse is refused here, by their words."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET

from ropeway.core import fields
from ropeway.core.access import Limits
from ropeway.core.errors import FieldError
from ropeway.core.fleet import WorkerInfo
from ropeway.core.job import DEFAULT_MAX_ATTEMPTS, TRACE_HEADERS, NewJob, Progress
from ropeway.core.joblog import LogLine
from ropeway.core.outcome import Failed, Lost, Snoozed
from ropeway.core.payload import JobError, canonical_json, clean_error
from ropeway.core.retry import RetryPolicy, retry_policy
from ropeway.core.schedule import NewSchedule
from ropeway.core.unique import Unique
from ropeway.wire import requests
from ropeway.wire.times import parse_time

_NO_PAYLOAD = b"{}"
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


def time_of(text: str | None, field: str) -> datetime | None:
    return None if text is None else parse_time(text, field)


# ── Producers ──


def new_job(
    body: requests.EnqueueBody,
    raw: bytes | Callable[[], bytes],
    *,
    key: str | None = None,
    trace: Mapping[str, str] | None = None,
) -> NewJob:
    """The job that a body asks for.

    `raw` is the body as it came, of which a keyed job's fingerprint is made; `key` is the request's header,
    `trace` what the request itself says of its trace.
    """
    if key is None:
        key = body.idempotency_key
    elif body.idempotency_key is not None and body.idempotency_key != key:
        raise _conflict("idempotency_key", "the header Idempotency-Key and the field idempotency_key differ")
    run_at = body.run_at
    if body.execute_at is not None:
        if run_at is not None:
            raise _conflict("execute_at", "run_at and execute_at are two names of one field")
        run_at = body.execute_at
    headers = body.headers
    if trace and not any(name in headers for name in trace):
        headers = _with_trace(headers, trace)
    if body.key_window is not None:
        _check_key_window(body.key_window)
    job = NewJob(
        type=body.type,
        payload=_NO_PAYLOAD if body.payload is UNSET else bytes(body.payload),
        queue=body.queue,
        priority=body.priority if type(body.priority) is int else fields.parse_priority(body.priority),
        max_attempts=_max_attempts(body),
        run_at=None if run_at is None else parse_time(run_at, "execute_at" if body.run_at is None else "run_at"),
        delay=body.delay,
        idempotency_key=key,
        key_window=body.key_window,
        fingerprint=None if key is None or body.fingerprint is not None else _fingerprint(raw),
        unique=None if body.unique is None else unique_of(body.unique),
        retry=None if body.retry is None else retry_of(body.retry),
        timeout=body.timeout,
        expires_at=None if body.expires_at is None else parse_time(body.expires_at, "expires_at"),
        expires_in=body.expires_in,
        tags=tuple(body.tags),
        headers=headers,
    )
    return job if body.fingerprint is None else _as_it_says(job, body.fingerprint)


def _check_key_window(seconds: float) -> None:
    """A key that holds for less than a day would break what is promised of keys."""
    if seconds != 0 and not requests.SHORTEST_WINDOW <= seconds <= fields.HORIZON_SECONDS:
        raise FieldError(
            f"key_window must be at least {requests.SHORTEST_WINDOW:,} seconds and at most "
            f"{fields.HORIZON_SECONDS:,.0f}, or 0 for ever",
            pointer="/key_window",
        )


def _fingerprint(raw: bytes | Callable[[], bytes]) -> bytes:
    return body_fingerprint(raw if isinstance(raw, bytes) else raw())


def _as_it_says(job: NewJob, fingerprint: str) -> NewJob:
    """The job under the fingerprint that it came with. It must be that of its own fields, or else any body could
    pass for the first one; only its time may be left out, which is not of the sender's choice when a task has a
    window."""
    if fingerprint == job.fields_fingerprint().hex():
        return job
    timeless = job.fields_fingerprint(timeless=True)
    if fingerprint != timeless.hex():
        raise FieldError(
            "this is not the fingerprint of the job's fields",
            pointer="/fingerprint",
            hint="leave it out: the server makes one from the body",
        )
    return msgspec.structs.replace(job, fingerprint=timeless)


def body_fingerprint(raw: bytes) -> bytes:
    """SHA-256 of a body as canonical JSON, without its key.

    Nor does it count what names the trace: a repeated request may be part of another one.
    """
    if b"idempotency_key" not in raw and b"trace" not in raw and b"\\u" not in raw:
        return hashlib.sha256(canonical_json(raw)).digest()
    members: dict[str, Any] = _decode_members(raw)
    members.pop("idempotency_key", None)
    headers = members.get("headers")
    if headers is not None and any(name.encode() in bytes(headers) for name in TRACE_HEADERS):
        kept = {
            name: value
            for name, value in msgspec.json.decode(headers, type=dict[str, str]).items()
            if name not in TRACE_HEADERS
        }
        if kept:
            members["headers"] = msgspec.Raw(_encode_sorted(kept))
        else:
            del members["headers"]
    canonical = {name: msgspec.Raw(canonical_json(bytes(value))) for name, value in members.items()}
    return hashlib.sha256(_encode_sorted(canonical)).digest()


def unique_of(body: requests.UniqueBody) -> Unique:
    states = None if body.statuses is None else frozenset(body.statuses)
    return Unique(by=body.by, key=body.key, within=body.within, states=states)


def retry_of(body: requests.RetryBody) -> RetryPolicy:
    return retry_policy(body.policy, base=body.base, factor=body.factor, cap=body.cap, jitter=body.jitter)


def _max_attempts(body: requests.EnqueueBody) -> int:
    if body.max_retries is UNSET:
        return DEFAULT_MAX_ATTEMPTS if body.max_attempts is UNSET else body.max_attempts
    if body.max_attempts is not UNSET:
        raise _conflict("max_retries", "max_attempts and max_retries are two names of one field")
    return body.max_retries + 1


def _with_trace(headers: dict[str, str], trace: Mapping[str, str]) -> dict[str, str]:
    """The sender's headers and the trace's; its own alone when there is no room for both."""
    joined = {**headers, **trace}
    try:
        fields.check_headers(joined)
    except FieldError:
        return headers
    return joined


def _conflict(field: str, message: str) -> FieldError:
    return FieldError(message, code="conflicting_fields", pointer=f"/{field}", hint="send one of them")


# ── Workers ──


def failed_of(body: requests.NackBody, *, sanitized: bool = False) -> Failed:
    """`sanitized`: the text was repaired on the way here already."""
    error, is_text = _error_of(body.error)
    sanitized = sanitized or is_text
    cleaned = (
        clean_error("Error", error)
        if isinstance(error, str)
        else clean_error(error.type, error.message, error.traceback)
    )
    if not isinstance(error, str):
        # Whoever cut or cleaned it before it was sent says so.
        sanitized = sanitized or error.sanitized
        cleaned = msgspec.structs.replace(cleaned, truncated=cleaned.truncated or error.truncated)
    if sanitized:
        cleaned = msgspec.structs.replace(cleaned, sanitized=True)
    return Failed(cleaned, retry=body.retry, retry_after=retry_after_of(body.retry_after), reason=body.reason)


def _error_of(said: Any) -> tuple[str | requests.ErrorBody, bool]:
    """What a run said of its failure; True when it had to be made a text first."""
    if isinstance(said, str):
        return said, False
    try:
        return msgspec.convert(said, requests.ErrorBody), False
    except msgspec.ValidationError:
        return msgspec.json.encode(said).decode(), True


def retry_after_of(seconds: float | None) -> float | None:
    return None if seconds is None else fields.check_seconds(seconds, "retry_after", 0, fields.HORIZON_SECONDS)


def snoozed_of(body: requests.SnoozeBody) -> Snoozed:
    if body.delay is not None and body.run_at is not None:
        raise _conflict("run_at", "give run_at or delay, not both")
    if body.delay is None and body.run_at is None:
        raise FieldError("a snooze needs delay or run_at", pointer="/delay")
    if body.delay is not None:
        return Snoozed(delay=fields.check_seconds(body.delay, "delay", 0, fields.HORIZON_SECONDS))
    return Snoozed(run_at=time_of(body.run_at, "run_at"))


def lost_of(body: requests.LoseBody | requests.EndOwnerBody) -> Lost:
    return Lost(cause=body.cause, exit_code=body.exit_code, signal=body.signal, peak_rss_bytes=body.peak_rss_bytes)


def progress_of(body: requests.ProgressBody) -> Progress | None:
    """None when the call brings only log lines."""
    if body.done is None and body.total is None and body.message is None:
        return None
    return Progress(body.done, body.total, body.message)


def lines_of(body: requests.ProgressBody) -> list[LogLine]:
    return [LogLine(line.message, line.level) for line in body.logs or ()]


def worker_of(worker_id: str, body: requests.WorkerBody) -> WorkerInfo:
    return WorkerInfo(
        id=worker_id,
        host=body.host,
        pid=body.pid,
        version=body.version,
        queues=tuple(body.queues),
        types=tuple(body.types),
        slots=body.slots,
        running=body.running,
        rss_bytes=body.rss_bytes,
        state=body.state,
    )


# ── Operators ──


def schedule_of(body: requests.ScheduleBody) -> NewSchedule:
    return NewSchedule(
        name=body.name,
        cron=body.cron,
        type=body.type,
        tz=body.tz,
        queue=body.queue,
        payload=_NO_PAYLOAD if body.payload is UNSET else bytes(body.payload),
        priority=fields.parse_priority(body.priority),
        max_attempts=body.max_attempts,
        missed=body.missed,
        paused=body.paused,
        timeout=body.timeout,
        retry=None if body.retry is None else retry_of(body.retry),
        unique=None if body.unique is None else unique_of(body.unique),
        expires_in=body.expires_in,
        tags=tuple(body.tags),
        headers=body.headers,
    )


_CHANGES: Mapping[str, Callable[[Any], Any]] = {
    "payload": bytes,
    "priority": fields.parse_priority,
    "retry": lambda body: None if body is None else retry_of(body),
    "unique": lambda body: None if body is None else unique_of(body),
    "tags": tuple,
}


def changed_schedule(spec: NewSchedule, change: requests.ScheduleChange) -> NewSchedule:
    """The schedule with what was given put in its place; checked like a new one. An operator's, from now on."""
    given = {name: value for name, value in msgspec.structs.asdict(change).items() if value is not UNSET}
    made = {name: _CHANGES.get(name, _same)(value) for name, value in given.items()}
    return msgspec.structs.replace(spec, source="api", **made)


def _same(value: Any) -> Any:
    return value


def limits_of(body: requests.LimitsBody) -> Limits:
    return Limits(**msgspec.structs.asdict(body))


def error_text(error: JobError) -> str:
    """One line of text for faces that have one field for an error."""
    return f"{error.type}: {error.message}" if error.message else error.type
