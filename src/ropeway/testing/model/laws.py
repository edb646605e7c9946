"""What must hold of any job's event log, whatever was done to it: C2, C6, C7, C8, C11, C13, C17, C18, C19.

Read off the log alone, so that it says something about an engine even where the model and the engine agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from ropeway.core.events import Event
from ropeway.core.job import Job
from ropeway.core.states import DeadReason, EventName, State

_ENDS = {
    EventName.COMPLETED: State.SUCCEEDED,
    EventName.DLQ: State.DEAD,
    EventName.CANCELLED: State.CANCELLED,
}
#: What a running job may do next.
_AFTER_START = frozenset(
    {
        EventName.COMPLETED,
        EventName.FAILED,
        EventName.DLQ,
        EventName.SNOOZED,
        EventName.RELEASED,
        EventName.RECLAIMED,
        EventName.CANCELLED,
    }
)
#: What a job that waits may do next.
_WHILE_FREE = frozenset({EventName.STARTED, EventName.CANCELLED, EventName.RESCHEDULED})


def broken_law(log: Sequence[Event], *, max_attempts: int, crash_limit: int) -> str | None:
    """The first law that the whole log of one job breaks, with the event that breaks it; None if it is sound."""
    life = _Life(max_attempts, crash_limit)
    for position, event in enumerate(log, 1):
        complaint = life.next(position, event)
        if complaint is not None:
            return f"{complaint}: event {event.seq}, {event.event.value}"
    return None


def broken_end(log: Sequence[Event], job: Job | None) -> str | None:
    """C11: the last event of a job and the job itself tell the same."""
    if job is None or not log:
        return None
    last = log[-1]
    told = _ENDS.get(last.event)
    if told is not None and job.state is not told:
        return f"C11 the log ends with {last.event.value}, the job is {job.state.value}"
    if told is None and (job.state is State.RUNNING) != (last.event is EventName.STARTED):
        return f"C11 the log ends with {last.event.value}, the job is {job.state.value}"
    if told is None and job.state in _ENDS.values():
        return f"C11 the job is {job.state.value}, the log ends with {last.event.value}"
    if job.attempt != last.attempt:
        return f"C11 the log ends with attempt {last.attempt}, the job has {job.attempt}"
    return None


class _Life:
    """Follows one job through its events."""

    def __init__(self, max_attempts: int, crash_limit: int) -> None:
        self.max_attempts = max_attempts
        self.crash_limit = crash_limit
        self.last: Event | None = None
        self.running = False
        self.ended: EventName | None = None
        self.due: datetime | None = None
        self.attempt = 0
        self.budget = 0
        self.lost = 0

    def next(self, position: int, event: Event) -> str | None:
        complaint = self._order(position, event) or self._allowed(event) or self._counts(event)
        self._go_on(event)
        return complaint

    def _order(self, position: int, event: Event) -> str | None:
        if event.seq != position:
            return f"C11 seq must be {position}"
        if (event.event is EventName.ENQUEUED) != (position == 1):
            return "C11 enqueued comes first, and once"
        if self.last is not None and event.at < self.last.at:
            return "C11 time runs backwards"
        return None

    def _allowed(self, event: Event) -> str | None:
        if self.last is None:
            return None
        if self.ended is EventName.COMPLETED:
            return "C18 an ack was undone"
        if self.ended is not None:
            return None if event.event is EventName.RETRIED else "C2 something follows the end of a job"
        if self.running and event.event not in _AFTER_START:
            return "C7 C8 the run before has not ended"
        if not self.running and event.event not in _WHILE_FREE:
            return "C17 a run ended that had not started"
        return None

    def _counts(self, event: Event) -> str | None:
        if event.event is EventName.STARTED:
            if event.attempt != self.attempt + 1:
                return f"C6 attempt must be {self.attempt + 1}"
            if self.budget >= self.max_attempts:
                return f"C6 more than {self.max_attempts} attempts"
            if self.due is not None and event.at < self.due:
                return f"C13 started before {self.due}"
        elif event.attempt != self.attempt:
            return f"C6 attempt must be {self.attempt}"
        if event.event is EventName.RECLAIMED and self.lost + 1 >= self.crash_limit:
            return "C19 beyond the crash limit"
        if event.data.get("reason") == DeadReason.CRASH_LIMIT and self.lost + 1 != self.crash_limit:
            return f"C19 crash limit after {self.lost + 1} losses"
        return None

    def _go_on(self, event: Event) -> None:
        name = event.event
        if name is EventName.STARTED:
            self.attempt += 1
            self.budget += 1
        elif name in (EventName.RELEASED, EventName.SNOOZED):
            self.budget -= 1
        elif name is EventName.RECLAIMED:
            self.lost += 1
        elif name is EventName.RETRIED:
            self.budget = self.lost = 0
        self.running = name is EventName.STARTED
        self.ended = name if name in _ENDS else None
        if "run_at" in event.data:
            self.due = datetime.fromisoformat(event.data["run_at"])
        elif name is EventName.FAILED:
            self.due = event.at + timedelta(milliseconds=event.data["retry_in_ms"])
        elif name is EventName.RETRIED:
            self.due = event.at
        self.last = event
