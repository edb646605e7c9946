"""Rows to records."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import asyncpg
import msgspec

from ropeway.core import retry
from ropeway.core.errors import FieldError
from ropeway.core.events import Event, event_data, event_state
from ropeway.core.job import DEFAULT_TIMEOUT, Job, Progress
from ropeway.core.payload import JobError
from ropeway.core.query import QueueSettings
from ropeway.core.retry import RetryPolicy
from ropeway.core.states import CancelReason, DeadReason, EventName, State

_NO_HEADERS: Mapping[str, str] = {}
_read_error = msgspec.json.Decoder(JobError).decode
_read_progress = msgspec.json.Decoder(Progress).decode
_read_headers = msgspec.json.Decoder(dict[str, str]).decode
_read_detail = msgspec.json.Decoder(dict[str, Any]).decode
_moment = datetime.fromtimestamp


@lru_cache(maxsize=256)
def read_policy(text: str) -> RetryPolicy:
    """A stored retry policy; a few distinct ones serve very many jobs."""
    return retry.decode(text)


def known_policy(text: str | None) -> RetryPolicy | None:
    """A stored retry policy; None, the default, for one that only Python can see to be none (SQL function)."""
    try:
        return None if text is None else read_policy(text)
    except (FieldError, msgspec.MsgspecError):
        return None


class Holder(NamedTuple):
    """What the jobs of one claim have in common."""

    tenant: str
    worker: str
    started_at: datetime
    locked_until: datetime


def moment(epoch: float) -> datetime:
    """A time that came as seconds since 1970, exact to the microsecond: a double can say that until 2242."""
    return datetime.fromtimestamp(epoch, UTC)


def claimed_job(row: asyncpg.Record, holder: Holder) -> Job:
    """A job from a row of the statement `claim`, in the order of its columns."""
    (
        id, type_, queue, priority, payload, attempt, attempts, max_attempts, run_at, _, created_at, _,
        failures, lost, timeout, policy, expires_at, tags, headers, idempotency_key, last_error, _, _,
    ) = row  # fmt: skip
    tenant, worker, started_at, locked_until = holder
    return Job(
        id,
        tenant,
        type_,
        queue,
        State.RUNNING,
        priority,
        payload.encode(),
        attempt,
        attempts,
        max_attempts,
        _moment(run_at, UTC),
        _moment(created_at, UTC),
        started_at,
        failures,
        lost,
        DEFAULT_TIMEOUT if timeout is None else timeout,
        None if policy is None else read_policy(policy),
        started_at,
        None,
        worker,
        locked_until,
        None if last_error is None else _read_error(last_error),
        None,
        None,
        None,
        idempotency_key,
        expires_at,
        () if tags is None else tuple(tags),
        _NO_HEADERS if headers is None else _read_headers(headers),
    )


def stored_job(row: asyncpg.Record) -> Job:
    """A job from a row of the `live` or `ended` select (sql/inspecting.sql)."""
    state = State(row["state"])
    reason = row["reason"]
    return Job(
        id=row["id"],
        tenant=row["tenant"],
        type=row["type"],
        queue=row["queue"],
        state=state,
        priority=row["priority"],
        payload=row["payload"].encode(),
        attempt=row["attempt"],
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        run_at=row["run_at"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        failures=row["failures"],
        lease_lost_count=row["lost"],
        timeout=DEFAULT_TIMEOUT if row["timeout"] is None else row["timeout"],
        retry=known_policy(row["retry"]),
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        locked_by=row["worker"],
        locked_until=row["locked_until"],
        last_error=None if row["last_error"] is None else _read_error(row["last_error"]),
        result=None if row["result"] is None else row["result"].encode(),
        dead_reason=DeadReason(reason) if state is State.DEAD else None,
        cancel_reason=CancelReason(reason) if state is State.CANCELLED else None,
        idempotency_key=row["idempotency_key"],
        expires_at=row["expires_at"],
        tags=() if row["tags"] is None else tuple(row["tags"]),
        headers=_NO_HEADERS if row["headers"] is None else _read_headers(row["headers"]),
        progress=None if row["progress"] is None else _read_progress(row["progress"]),
        result_sanitized=row["result_sanitized"],
        result_too_large=row["result_too_large"],
    )


def stored_settings(row: asyncpg.Record) -> QueueSettings:
    """What a queue was set to."""
    return QueueSettings(row["depth_limit"], row["require_key"], row["lease_seconds"])


def stored_event(row: asyncpg.Record) -> Event:
    """An event from a row of the log."""
    name = EventName(row["event"])
    return Event(
        event=name,
        tenant=row["tenant"],
        job_id=row["job_id"],
        seq=row["seq"],
        at=row["at"],
        type=row["type"],
        queue=row["queue"],
        state=event_state(name, at=row["at"], run_at=row["run_at"], failed=bool(row["failed"])),
        attempt=row["attempt"],
        worker_id=row["worker"],
        data=event_data(
            name,
            run_at=row["run_at"],
            priority=row["priority"],
            millis=row["millis"],
            error=None if row["error"] is None else _read_error(row["error"]),
            detail={} if row["detail"] is None else _read_detail(row["detail"]),
        ),
    )
