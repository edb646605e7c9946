"""The laws of the event log are tested too (E39 i): a sound history passes, each broken one is named."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from ropeway.core.events import Event, rfc3339
from ropeway.core.job import Job
from ropeway.core.states import EventName, State
from ropeway.testing.model.laws import broken_end, broken_law

START = datetime(2026, 1, 1, 12, tzinfo=UTC)

Entry = tuple[str, int] | tuple[str, int, dict[str, Any]]


def history(*entries: Entry) -> list[Event]:
    """Events of one job, one second apart: name, attempt, data."""
    return [
        Event(
            event=EventName(f"job.{entry[0]}"),
            tenant="default",
            job_id=UUID(int=1),
            seq=seq,
            at=START + timedelta(seconds=seq),
            type="t",
            queue="q",
            state=State.QUEUED,
            attempt=entry[1],
            data=entry[2] if len(entry) == 3 else {},
        )
        for seq, entry in enumerate(entries, 1)
    ]


def law(log: list[Event]) -> str | None:
    return broken_law(log, max_attempts=3, crash_limit=3)


DUE = {"run_at": rfc3339(START)}
LATER = {"run_at": rfc3339(START + timedelta(hours=1))}
FAILED = {"retry_in_ms": 0}
LOST = {"cause": "expired"}
RUN: tuple[Entry, ...] = (("enqueued", 0, DUE), ("started", 1))

SOUND: dict[str, tuple[Entry, ...]] = {
    "acked": (*RUN, ("completed", 1)),
    "retried": (*RUN, ("failed", 1, FAILED), ("started", 2), ("completed", 2)),
    "out of attempts": (
        *RUN,
        ("failed", 1, FAILED),
        ("started", 2),
        ("failed", 2, FAILED),
        ("started", 3),
        ("dlq", 3, {"reason": "max_attempts"}),
    ),
    "given back": (
        *RUN,
        ("released", 1),
        ("started", 2),
        ("snoozed", 2, DUE),
        ("started", 3),
        ("released", 3),
        ("started", 4),
    ),
    "crashing": (
        *RUN,
        ("reclaimed", 1, LOST),
        ("started", 2),
        ("reclaimed", 2, LOST),
        ("started", 3),
        ("dlq", 3, {"reason": "crash_limit", **LOST}),
    ),
    "redriven": (*RUN, ("dlq", 1, {"reason": "rejected"}), ("retried", 1), ("started", 2), ("completed", 2)),
    "moved and cancelled": (("enqueued", 0, LATER), ("rescheduled", 0, DUE), ("cancelled", 0)),
    "cancelled while it ran": (*RUN, ("cancelled", 1), ("retried", 1)),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_history(name: str) -> None:
    assert law(history(*SOUND[name])) is None


BROKEN: dict[str, tuple[str, tuple[Entry, ...]]] = {
    "two ends": ("C2", (*RUN, ("dlq", 1, {"reason": "rejected"}), ("cancelled", 1))),
    "started after its end": ("C2", (("enqueued", 0, DUE), ("cancelled", 0), ("started", 1))),
    "attempt skipped": ("C6", (("enqueued", 0, DUE), ("started", 2))),
    "attempt not raised": ("C6", (*RUN, ("failed", 1, FAILED), ("started", 1))),
    "ended as another attempt": ("C6", (*RUN, ("completed", 2))),
    "one attempt too many": (
        "C6",
        (
            *RUN,
            ("failed", 1, FAILED),
            ("started", 2),
            ("failed", 2, FAILED),
            ("started", 3),
            ("failed", 3, FAILED),
            ("started", 4),
        ),
    ),
    "two runs at once": ("C7", (*RUN, ("started", 2))),
    "no cause": ("C8", (*RUN, ("rescheduled", 1, DUE))),
    "enqueued twice": ("C11", (("enqueued", 0, DUE), ("enqueued", 0, DUE))),
    "no beginning": ("C11", (("started", 1),)),
    "started early": ("C13", (("enqueued", 0, LATER), ("started", 1))),
    "retried early": ("C13", (*RUN, ("failed", 1, {"retry_in_ms": 60_000}), ("started", 2))),
    "succeeded without a run": ("C17", (("enqueued", 0, DUE), ("completed", 0))),
    "an ack undone": ("C18", (*RUN, ("completed", 1), ("retried", 1))),
    "reclaimed for ever": (
        "C19",
        (
            *RUN,
            ("reclaimed", 1, LOST),
            ("started", 2),
            ("reclaimed", 2, LOST),
            ("started", 3),
            ("reclaimed", 3, LOST),
        ),
    ),
    "crash limit too early": ("C19", (*RUN, ("dlq", 1, {"reason": "crash_limit", **LOST}))),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_history_is_named(name: str) -> None:
    number, entries = BROKEN[name]
    complaint = law(history(*entries))
    assert complaint is not None
    assert number in complaint.split(":")[0]


def test_a_gap_and_a_step_back_in_time() -> None:
    log = history(*SOUND["acked"])
    assert "C11" in (law([log[0], log[2]]) or "")
    assert "C11" in (law([*log[:2], msgspec.structs.replace(log[2], at=START)]) or "")


@pytest.mark.parametrize(
    ("entries", "state", "attempt", "sound"),
    [
        ((*RUN, ("completed", 1)), State.SUCCEEDED, 1, True),
        ((*RUN, ("completed", 1)), State.RUNNING, 1, False),
        (RUN, State.RUNNING, 1, True),
        (RUN, State.QUEUED, 1, False),
        (RUN, State.SUCCEEDED, 1, False),
        (RUN, State.RUNNING, 2, False),
        (RUN[:1], State.SCHEDULED, 0, True),
        (RUN[:1], State.RUNNING, 0, False),
        (RUN[:1], State.CANCELLED, 0, False),
    ],
)
def test_the_last_event_and_the_job_tell_the_same(
    entries: tuple[Entry, ...], state: State, attempt: int, sound: bool
) -> None:
    job = Job(
        id=UUID(int=1),
        tenant="default",
        type="t",
        queue="q",
        state=state,
        priority=5,
        payload=b"{}",
        attempt=attempt,
        attempts=attempt,
        max_attempts=3,
        run_at=START,
        created_at=START,
        updated_at=START,
    )
    assert (broken_end(history(*entries), job) is None) == sound
