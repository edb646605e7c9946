"""The event log: one frozen record per transition, and the attempt history read back from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from ropeway.core.payload import JobError
from ropeway.core.states import EventName, State

_NO_DATA: Mapping[str, Any] = {}


class Event(msgspec.Struct, frozen=True):
    """One transition of one job. `(job_id, seq)` tells repeats; `seq` is 1, 2, 3 ... per job without gaps.

    `data` holds what the transition adds, as JSON-ready values under promised names: `run_at`, `priority`,
    `duration_ms`, `error`, `retry_in_ms`, `reason`, `cause`, `exit_code`, `signal`, `by`.
    """

    event: EventName
    tenant: str
    job_id: UUID
    seq: int
    at: datetime
    type: str
    queue: str
    state: State
    attempt: int
    worker_id: str | None = None
    data: Mapping[str, Any] = _NO_DATA


_STATES = {
    EventName.STARTED: State.RUNNING,
    EventName.COMPLETED: State.SUCCEEDED,
    EventName.FAILED: State.RETRYING,
    EventName.DLQ: State.DEAD,
    EventName.RELEASED: State.QUEUED,
    EventName.RECLAIMED: State.QUEUED,
    EventName.CANCELLED: State.CANCELLED,
    EventName.RETRIED: State.QUEUED,
}


def event_state(event: EventName, *, at: datetime, run_at: datetime | None, failed: bool) -> State:
    """The state a transition led to, as its event tells it."""
    if event in _STATES:
        return _STATES[event]
    # A snooze that is due at once was still a snooze: becoming due has no event of its own.
    if event is EventName.SNOOZED or (run_at is not None and run_at > at):
        return State.RETRYING if failed else State.SCHEDULED
    return State.QUEUED


def rfc3339(at: datetime) -> str:
    """A time as it is written on every face: UTC, microseconds, `Z`."""
    # isoformat takes a third of the time of strftime; what it ends with here is always +00:00.
    return (at if at.tzinfo is UTC else at.astimezone(UTC)).isoformat(timespec="microseconds")[:-6] + "Z"


def milliseconds(seconds: float) -> int:
    """A duration as events write it."""
    return max(0, round(seconds * 1000))


def event_data(
    event: EventName,
    *,
    run_at: datetime | None = None,
    priority: int | None = None,
    millis: int | None = None,
    error: JobError | None = None,
    detail: Mapping[str, Any] = _NO_DATA,
) -> dict[str, Any]:
    """`Event.data` from what engines store: the common facts in columns, the rare ones in `detail`."""
    data: dict[str, Any] = {}
    if run_at is not None:
        data["run_at"] = rfc3339(run_at)
    if priority is not None:
        data["priority"] = priority
    if millis is not None:
        data["duration_ms" if event is EventName.COMPLETED else "retry_in_ms"] = millis
    if error is not None:
        data["error"] = msgspec.to_builtins(error)
    data.update(detail)
    return data


class EventPage(msgspec.Struct, frozen=True):
    """Events of the tail, and the position to go on from.

    `whole` False: the search broke off, so fewer events than asked for, or none, do not mean the end of the log.
    """

    events: list[Event]
    position: str
    whole: bool = True


class Attempt(msgspec.Struct, frozen=True):
    """One run of a job, put together from its events."""

    attempt: int
    started_at: datetime
    worker_id: str | None
    finished_at: datetime | None = None
    outcome: str | None = None
    error: JobError | None = None
    retry_in_ms: int | None = None
    exit_code: int | None = None
    signal: int | None = None


_OUTCOMES = {
    EventName.COMPLETED: "succeeded",
    EventName.FAILED: "failed",
    EventName.RELEASED: "released",
    EventName.SNOOZED: "snoozed",
    EventName.CANCELLED: "cancelled",
}


def attempt_history(events: Iterable[Event]) -> list[Attempt]:
    """Every run of one job, oldest first, from its events in `seq` order."""
    history: list[Attempt] = []
    running: Attempt | None = None
    for event in events:
        if event.event is EventName.STARTED:
            running = Attempt(event.attempt, event.at, event.worker_id)
            history.append(running)
        elif running is not None and (outcome := _outcome(event)) is not None:
            history[-1] = msgspec.structs.replace(
                running,
                finished_at=event.at,
                outcome=outcome,
                error=_error(event),
                retry_in_ms=event.data.get("retry_in_ms"),
                exit_code=event.data.get("exit_code"),
                signal=event.data.get("signal"),
            )
            running = None
    return history


def _outcome(event: Event) -> str | None:
    cause = event.data.get("cause")
    if event.event in (EventName.RECLAIMED, EventName.DLQ) and cause is not None:
        return {"crashed": "crashed", "timeout": "timed out"}.get(cause, "lost")
    if event.event is EventName.DLQ:
        return "failed"
    return _OUTCOMES.get(event.event)


def _error(event: Event) -> JobError | None:
    raw = event.data.get("error")
    return None if raw is None else msgspec.convert(raw, JobError)
