"""The event log: what each event says, and the attempts that are read back from it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeway.core.events import (
    Attempt,
    Event,
    attempt_history,
    event_data,
    event_state,
    milliseconds,
    rfc3339,
)
from ropeway.core.payload import JobError
from ropeway.core.states import TABLE, EventName, State

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
#: Fixed offsets: the rules of a real zone know hours that happen twice, or never.
zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
BOOM = JobError("ValueError", "boom", "Traceback ...")


def log(*entries: tuple[EventName, int, dict[str, Any]]) -> list[Event]:
    """Events of one job, one second apart."""
    return [
        Event(
            event=name,
            tenant="default",
            job_id=UUID(int=1),
            seq=seq,
            at=START + timedelta(seconds=seq),
            type="t",
            queue="q",
            state=State.QUEUED,
            attempt=attempt,
            worker_id=f"w{attempt}",
            data=data,
        )
        for seq, (name, attempt, data) in enumerate(entries, 1)
    ]


ENQUEUED = (EventName.ENQUEUED, 0, {"run_at": rfc3339(START)})


def started(attempt: int) -> tuple[EventName, int, dict[str, Any]]:
    return EventName.STARTED, attempt, {}


# ── attempts ──


def test_a_job_that_never_ran_has_no_attempts() -> None:
    assert attempt_history(log(ENQUEUED, (EventName.CANCELLED, 0, {"reason": "requested"}))) == []


def test_a_running_attempt_has_no_end() -> None:
    assert attempt_history(log(ENQUEUED, started(1))) == [Attempt(1, START + timedelta(seconds=2), "w1")]


@pytest.mark.parametrize(
    ("name", "data", "outcome"),
    [
        (EventName.COMPLETED, {"duration_ms": 1_000}, "succeeded"),
        (EventName.FAILED, {"error": msgspec.to_builtins(BOOM), "retry_in_ms": 5_000}, "failed"),
        (EventName.DLQ, {"error": msgspec.to_builtins(BOOM), "reason": "max_attempts"}, "failed"),
        (EventName.DLQ, {"cause": "crashed", "reason": "crash_limit", "signal": 9}, "crashed"),
        (EventName.DLQ, {"cause": "expired", "reason": "crash_limit"}, "lost"),
        (EventName.RECLAIMED, {"cause": "crashed", "exit_code": 1}, "crashed"),
        (EventName.RECLAIMED, {"cause": "expired"}, "lost"),
        (EventName.RELEASED, {}, "released"),
        (EventName.SNOOZED, {"run_at": rfc3339(START)}, "snoozed"),
        (EventName.CANCELLED, {"reason": "requested"}, "cancelled"),
    ],
)
def test_how_an_attempt_ended(name: EventName, data: dict[str, Any], outcome: str) -> None:
    (attempt,) = attempt_history(log(ENQUEUED, started(1), (name, 1, data)))
    assert attempt == Attempt(
        attempt=1,
        started_at=START + timedelta(seconds=2),
        worker_id="w1",
        finished_at=START + timedelta(seconds=3),
        outcome=outcome,
        error=BOOM if "error" in data else None,
        retry_in_ms=data.get("retry_in_ms"),
        exit_code=data.get("exit_code"),
        signal=data.get("signal"),
    )


def test_every_way_out_of_running_has_an_outcome() -> None:
    ways = {
        arrow.event
        for (state, _), cell in TABLE.items()
        if state is State.RUNNING
        for arrow in cell.arrows
        if arrow.event is not None
    }
    for name in ways:
        (attempt,) = attempt_history(log(ENQUEUED, started(1), (name, 1, {"cause": "expired"})))
        assert attempt.outcome is not None, name


def test_attempts_go_on_across_a_redrive() -> None:
    events = log(
        ENQUEUED,
        started(1),
        (EventName.FAILED, 1, {"retry_in_ms": 5}),
        (EventName.RESCHEDULED, 1, {"run_at": rfc3339(START)}),
        started(2),
        (EventName.DLQ, 2, {"reason": "max_attempts"}),
        (EventName.RETRIED, 2, {"by": "ann"}),
        started(3),
        (EventName.COMPLETED, 3, {}),
    )
    assert [(a.attempt, a.outcome, a.worker_id) for a in attempt_history(events)] == [
        (1, "failed", "w1"),
        (2, "failed", "w2"),
        (3, "succeeded", "w3"),
    ]


def test_the_end_of_a_job_that_waits_is_no_attempt() -> None:
    events = log(
        ENQUEUED, started(1), (EventName.RELEASED, 1, {}), (EventName.CANCELLED, 1, {"reason": "expired"})
    )
    assert [a.outcome for a in attempt_history(events)] == ["released"]


def test_a_log_whose_beginning_was_pruned_tells_what_is_left() -> None:
    events = log((EventName.FAILED, 1, {}), started(2), (EventName.COMPLETED, 2, {}))
    assert [(a.attempt, a.outcome) for a in attempt_history(events)] == [(2, "succeeded")]


# ── what an event says ──

LATER = START + timedelta(seconds=1)
FIXED = {
    EventName.STARTED: State.RUNNING,
    EventName.COMPLETED: State.SUCCEEDED,
    EventName.FAILED: State.RETRYING,
    EventName.DLQ: State.DEAD,
    EventName.RELEASED: State.QUEUED,
    EventName.RECLAIMED: State.QUEUED,
    EventName.CANCELLED: State.CANCELLED,
    EventName.RETRIED: State.QUEUED,
}


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("run_at", [None, START, LATER])
@pytest.mark.parametrize("name", EventName)
def test_the_state_of_an_event(name: EventName, run_at: datetime | None, failed: bool) -> None:
    told = event_state(name, at=START, run_at=run_at, failed=failed)
    waiting = State.RETRYING if failed else State.SCHEDULED
    if name in FIXED:
        assert told is FIXED[name]
    elif name is EventName.SNOOZED:
        assert told is waiting
    else:
        assert told is (waiting if run_at == LATER else State.QUEUED)


def test_the_state_of_an_event_is_one_that_its_verbs_lead_to() -> None:
    targets: dict[EventName, set[State | None]] = {}
    for cell in TABLE.values():
        for arrow in cell.arrows:
            if arrow.event is not None:
                targets.setdefault(arrow.event, set()).add(arrow.target)
    assert set(targets) == set(EventName)
    for name, states in targets.items():
        for run_at in (START, LATER):
            for failed in (False, True):
                if name is EventName.ENQUEUED and failed:
                    continue
                assert event_state(name, at=START, run_at=run_at, failed=failed) in states, name


def test_data_holds_what_is_known_and_nothing_else() -> None:
    assert event_data(EventName.STARTED) == {}
    assert event_data(EventName.ENQUEUED, run_at=START, priority=5) == {
        "run_at": "2026-01-01T12:00:00.000000Z",
        "priority": 5,
    }
    assert event_data(EventName.COMPLETED, millis=7) == {"duration_ms": 7}
    assert event_data(EventName.FAILED, millis=0, error=BOOM) == {
        "retry_in_ms": 0,
        "error": msgspec.to_builtins(BOOM),
    }
    assert event_data(EventName.DLQ, detail={"reason": "rejected"}) == {"reason": "rejected"}


def test_data_is_ready_for_json() -> None:
    data = event_data(EventName.DLQ, run_at=START, error=BOOM, detail={"reason": "rejected", "signal": 9})
    assert msgspec.json.decode(msgspec.json.encode(data)) == data


@given(st.datetimes(timezones=zones, min_value=datetime(1970, 1, 2), max_value=datetime(2200, 1, 1)))  # noqa: DTZ001 - Hypothesis wants bounds without a zone
def test_times_are_written_in_utc_and_read_back_exactly(at: datetime) -> None:
    text = rfc3339(at)
    assert text.endswith("Z")
    assert datetime.fromisoformat(text) == at


def test_times_of_other_zones() -> None:
    assert rfc3339(datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=2)))) == "2025-12-31T23:00:00.000000Z"


@pytest.mark.parametrize(("seconds", "whole"), [(0, 0), (0.0004, 0), (1.2345, 1234), (1.2346, 1235), (-3, 0)])
def test_durations_are_whole_milliseconds(seconds: float, whole: int) -> None:
    assert milliseconds(seconds) == whole
