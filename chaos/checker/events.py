"""The event log is whole: C11."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from chaos.checker.ending import in_order
from chaos.checker.violation import Violation
from chaos.facts import EventFact, Facts
from ropeway.core.states import EventName, State

#: The state that an event leaves a job in, where that is one state only.
_STATE_AFTER = {
    EventName.COMPLETED: {State.SUCCEEDED},
    EventName.DLQ: {State.DEAD},
    EventName.CANCELLED: {State.CANCELLED},
    EventName.STARTED: {State.RUNNING},
}
_WAITING = {State.QUEUED, State.SCHEDULED, State.RETRYING}


def complete_and_in_order(facts: Facts) -> list[Violation]:
    """C11: `seq` is 1..n, the first is the enqueue, the last tells the final state, and a follower saw it so."""
    found = [Violation("C11", id, "has no event at all") for id in facts.finals if not facts.events.get(id)]
    for id, events in in_order(facts):
        numbers = [event.seq for event in events]
        if numbers != list(range(1, len(numbers) + 1)):
            found.append(Violation("C11", id, f"its events are numbered {numbers}"))
            continue
        if events[0].name != EventName.ENQUEUED:
            found.append(Violation("C11", id, f"its first event is {events[0].name}"))
        if _disordered(facts, events):
            found.append(Violation("C11", id, "its events are not in the order of their times"))
        final = facts.finals.get(id)
        last = EventName(events[-1].name)
        if final is not None and final.state not in _STATE_AFTER.get(last, _WAITING):
            found.append(Violation("C11", id, f"is {final.state} and its last event is {last}"))
    return found + _follower(facts)


def _disordered(facts: Facts, events: Sequence[EventFact]) -> int:
    """How many events are older than the one before them."""
    return sum(facts.when(later.at) < facts.when(earlier.at) for earlier, later in pairwise(events))


def lost_and_disordered(facts: Facts) -> tuple[int, int]:
    """Events that the log or a follower has not, and those that came before one that was to come first."""
    lost = disordered = 0
    for _, events in in_order(facts):
        numbers = {event.seq for event in events}
        lost += max(numbers) - len(numbers)
        disordered += _disordered(facts, events)
    if facts.seen is not None:
        there = {(job, event.seq) for job, events in facts.events.items() for event in events}
        lost += len(there - set(facts.seen))
        disordered += sum("saw event" in violation.words for violation in _follower(facts))
    return lost, disordered


def _follower(facts: Facts) -> list[Violation]:
    if facts.seen is None:
        return []
    found = []
    newest: dict[str, int] = {}
    for job, seq in facts.seen:
        # At least once: what comes again is allowed, what comes too soon is not.
        if seq > newest.get(job, 0) + 1:
            found.append(Violation("C11", job, f"a follower saw event {seq} after {newest.get(job, 0)}"))
        newest[job] = max(seq, newest.get(job, 0))
    for job, events in facts.events.items():
        missing = max(event.seq for event in events) - newest.get(job, 0)
        if missing > 0:
            found.append(Violation("C11", job, f"a follower missed its last {missing} events"))
    return found
