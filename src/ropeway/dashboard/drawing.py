"""Pictures made of numbers: a queue's states as a bar, a job's life as a line of time. Geometry, no markup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from ropeway.core.events import Event
from ropeway.core.job import Job
from ropeway.core.states import TERMINAL_STATES, EventName, State
from ropeway.dashboard import words

#: In this order from left to right.
BAR = (State.RUNNING, State.QUEUED, State.SCHEDULED, State.RETRYING, State.WAITING, State.DEAD)

#: The width of every picture, in its own units.
WIDTH = 1_000.0
#: Nothing is drawn thinner: a run of a millisecond in a day of waiting is still to be seen.
THINNEST = 4.0


class Piece(msgspec.Struct, frozen=True):
    """A stretch of a bar."""

    kind: str
    x: float
    width: float
    label: str


def bar(counts: Mapping[State, int]) -> list[Piece]:
    """How a queue's jobs divide among the states that somebody waits for."""
    shown = [(state, counts.get(state, 0)) for state in BAR if counts.get(state, 0)]
    total = sum(count for _, count in shown)
    return _laid_out([(state.value, count / total, f"{count:,} {state.value}") for state, count in shown])


def timeline(job: Job, events: Sequence[Event], now: datetime) -> list[Piece]:
    """What a job was doing and for how long, to scale, from its first event to its end or to now."""
    spans = list(_spans(job, events, now))
    total = sum((end - start).total_seconds() for _, start, end in spans)
    if total <= 0:
        return []
    return _laid_out(
        [
            (
                kind,
                (end - start).total_seconds() / total,
                f"{kind} for {words.seconds((end - start).total_seconds())}",
            )
            for kind, start, end in spans
        ]
    )


def _spans(job: Job, events: Sequence[Event], now: datetime) -> list[tuple[str, datetime, datetime]]:
    spans: list[tuple[str, datetime, datetime]] = []
    for place, event in enumerate(events):
        last = place == len(events) - 1
        if last and event.state in TERMINAL_STATES:
            # Its life is over. After any other end it was retried, and the time between is part of its life.
            break
        end = (job.finished_at or now) if last else events[place + 1].at
        due = _due(event)
        if event.state in (State.SCHEDULED, State.RETRYING) and due is not None and event.at <= due < end:
            # Becoming due is no event: what follows it is waiting in line.
            spans += [(event.state.value, event.at, due), (State.QUEUED.value, due, end)]
        else:
            spans.append((event.state.value, event.at, end))
    return [(kind, start, end) for kind, start, end in spans if end > start]


def _due(event: Event) -> datetime | None:
    text = event.data.get("run_at")
    if isinstance(text, str):
        return datetime.fromisoformat(text)
    delay = event.data.get("retry_in_ms")
    if event.event is EventName.FAILED and isinstance(delay, int):
        return datetime.fromtimestamp(event.at.timestamp() + delay / 1000, event.at.tzinfo)
    return None


def _laid_out(shares: Sequence[tuple[str, float, str]]) -> list[Piece]:
    """Shares of the whole width, side by side; what would be too thin takes its room from the others."""
    widths = [max(THINNEST, share * WIDTH) for _, share, _ in shares]
    shrink = WIDTH / sum(widths) if widths else 1.0
    pieces, x = [], 0.0
    for (kind, _, label), width in zip(shares, widths, strict=True):
        pieces.append(Piece(kind, round(x, 2), round(width * shrink, 2), label))
        x += width * shrink
    return pieces
