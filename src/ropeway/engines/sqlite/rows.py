"""Rows to records and back: times, ids, jobs and events."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

import msgspec

from ropeway.core import retry
from ropeway.core.decide import JobFacts
from ropeway.core.events import Event, event_data
from ropeway.core.job import Job, Progress
from ropeway.core.lease import Lease
from ropeway.core.payload import JobError
from ropeway.core.states import CancelReason, DeadReason, EventName, State, live_state
from ropeway.runtime.ids import uuid_from_bytes

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

#: A JSON value or array as SQLite's JSON functions take it.
to_json = msgspec.json.Encoder().encode
_read_error = msgspec.json.Decoder(JobError).decode
_read_progress = msgspec.json.Decoder(Progress).decode
_read_tags = msgspec.json.Decoder(tuple[str, ...]).decode
_read_headers = msgspec.json.Decoder(dict[str, str]).decode
_read_detail = msgspec.json.Decoder(dict[str, Any]).decode

#: Many jobs share few policies.
_read_policy = lru_cache(maxsize=256)(retry.decode)

_FREE = "free"
_LEASED = "leased"


def micros(at: datetime) -> int:
    """A time as it is stored."""
    return (at - _EPOCH) // _MICROSECOND


def seconds(duration: float) -> int:
    """A number of seconds as microseconds, rounded as `datetime` rounds."""
    return timedelta(seconds=duration) // _MICROSECOND


def moment(stored: int) -> datetime:
    return _EPOCH + timedelta(0, 0, stored)


def optional_moment(stored: int | None) -> datetime | None:
    return None if stored is None else _EPOCH + timedelta(0, 0, stored)


def optional_micros(at: datetime | None) -> int | None:
    return None if at is None else (at - _EPOCH) // _MICROSECOND


def text(value: object) -> str:
    """A value as JSON text."""
    return to_json(value).decode()


def optional_text(value: object) -> str | None:
    """A value as JSON text; NULL for nothing."""
    return to_json(value).decode() if value else None


def state_of(stage: str, blockers: int, run_at: int, failures: int, now: int) -> State:
    """A job's state, from its row and the clock."""
    if stage not in (_FREE, _LEASED):
        return State(stage)
    return live_state(
        leased=stage == _LEASED,
        blockers=blockers,
        run_at=moment(run_at),
        failures=failures,
        now=moment(now),
    )


def packed(leases: Sequence[Lease]) -> dict[str, object]:
    """The parameters of the fence for a batch of leases."""
    return {
        "attempts": text([lease.attempt for lease in leases]),
        "ids": b"".join([lease.job_id.bytes for lease in leases]),
        "tokens": b"".join([lease.token.bytes for lease in leases]),
    }


def packed_ids(ids: Sequence[UUID]) -> dict[str, object]:
    """Ids end to end, and as many numbers to count through them."""
    return {"numbers": text([0] * len(ids)), "ids": b"".join([id.bytes for id in ids])}


def facts(attempts: int, max_attempts: int, failures: int, lost: int, policy: str | None) -> JobFacts:
    return JobFacts(attempts, max_attempts, failures, lost, None if policy is None else _read_policy(policy))


def leased_job(row: Sequence[Any], tenant: str, worker: str, now: datetime, until: datetime) -> Job:
    """A job as it was claimed (the columns of `claim`). Positions, not names: this runs for every lease."""
    return Job(
        uuid_from_bytes(row[1]),
        tenant,
        row[2],
        row[3],
        State.RUNNING,
        row[4],
        row[5],
        row[6] + 1,
        row[7] + 1,
        row[8],
        moment(row[9]),
        moment(row[10]),
        now,
        row[11],
        row[12],
        row[13],
        None if row[14] is None else _read_policy(row[14]),
        now,
        None,
        worker,
        until,
        None if row[15] is None else _read_error(row[15]),
        None,
        None,
        None,
        row[16],
        None if row[17] is None else moment(row[17]),
        () if row[18] is None else _read_tags(row[18]),
        {} if row[19] is None else _read_headers(row[19]),
    )


def stored_job(row: sqlite3.Row, now: int) -> Job:
    """A job as it is listed (the columns of `job_columns`)."""
    leased = row["stage"] == _LEASED
    return Job(
        id=uuid_from_bytes(row["id"]),
        tenant=row["tenant"],
        type=row["type"],
        queue=row["queue"],
        state=state_of(row["stage"], row["blockers"], row["run_at"], row["failures"], now),
        priority=row["priority"],
        payload=row["payload"],
        attempt=row["attempt"],
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        run_at=moment(row["run_at"]),
        created_at=moment(row["created_at"]),
        updated_at=moment(row["updated_at"]),
        failures=row["failures"],
        lease_lost_count=row["lost"],
        timeout=row["timeout"],
        retry=None if row["retry"] is None else _read_policy(row["retry"]),
        started_at=optional_moment(row["started_at"]),
        finished_at=optional_moment(row["finished_at"]),
        locked_by=row["worker"] if leased else None,
        locked_until=optional_moment(row["locked_until"]),
        last_error=None if row["last_error"] is None else _read_error(row["last_error"]),
        result=row["result"],
        dead_reason=None if row["dead_reason"] is None else DeadReason(row["dead_reason"]),
        cancel_reason=None if row["cancel_reason"] is None else CancelReason(row["cancel_reason"]),
        idempotency_key=row["idempotency_key"],
        expires_at=optional_moment(row["expires_at"]),
        tags=() if row["tags"] is None else _read_tags(row["tags"]),
        headers={} if row["headers"] is None else _read_headers(row["headers"]),
        progress=None if row["progress"] is None else _read_progress(row["progress"]),
        result_sanitized=bool(row["sanitized"]),
        result_too_large=bool(row["too_large"]),
    )


def stored_jobs(db: sqlite3.Connection, statement: str, parameters: dict[str, Any], now: int) -> list[Job]:
    """The jobs that a statement over `job_columns` finds."""
    return [stored_job(row, now) for row in named(db, statement, parameters)]


def named(db: sqlite3.Connection, statement: str, parameters: dict[str, Any]) -> list[sqlite3.Row]:
    """Rows whose columns have names."""
    cursor = db.cursor()
    cursor.row_factory = sqlite3.Row
    return cursor.execute(statement, parameters).fetchall()


def stored_events(rows: Iterable[Sequence[Any]]) -> list[Event]:
    """Events from the columns of `event_columns`."""
    return [_event(row) for row in rows]


def _event(row: Sequence[Any]) -> Event:
    (
        job_id,
        seq,
        name,
        state,
        tenant,
        type,
        queue,
        at,
        attempt,
        worker,
        run_at,
        priority,
        millis,
        error,
        detail,
    ) = row
    event = EventName(name)
    return Event(
        event,
        tenant,
        uuid_from_bytes(job_id),
        seq,
        moment(at),
        type,
        queue,
        State(state),
        attempt,
        worker,
        event_data(
            event,
            run_at=optional_moment(run_at),
            priority=priority,
            millis=millis,
            error=None if error is None else _read_error(error),
            detail={} if detail is None else _read_detail(detail),
        ),
    )
