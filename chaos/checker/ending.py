"""Jobs end once, for a reason, and stay ended: C2, C9, C17, C18, C19."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chaos.checker.violation import Violation
from chaos.facts import EventFact, Facts
from ropeway.core.states import DeadReason, EventName, State, Verb

ENDS = frozenset({EventName.COMPLETED, EventName.DLQ, EventName.CANCELLED})

#: The type of jobs whose handler writes one row in the transaction that completes the job.
TRANSACTIONAL = "chaos.effect"


def generations(events: Sequence[EventFact]) -> Iterator[list[EventFact]]:
    """The events of one job, cut where an operator made it run again."""
    part: list[EventFact] = []
    for event in events:
        if event.name == EventName.RETRIED:
            yield part
            part = []
        part.append(event)
    yield part


def in_order(facts: Facts) -> Iterator[tuple[str, list[EventFact]]]:
    for id, events in facts.events.items():
        yield id, sorted(events, key=lambda event: event.seq)


def one_end(facts: Facts) -> list[Violation]:
    """C2: one end per generation, and nothing after it."""
    found = []
    for id, events in in_order(facts):
        for part in generations(events):
            ends = [place for place, event in enumerate(part) if event.name in ENDS]
            if len(ends) > 1:
                found.append(Violation("C2", id, f"ended {len(ends)} times: {[part[i].name for i in ends]}"))
            elif ends and ends[0] != len(part) - 1:
                found.append(Violation("C2", id, f"{part[ends[0] + 1].name} after {part[ends[0]].name}"))
    return found


def effects_once(facts: Facts) -> list[Violation]:
    """C9: a transactional handler's row is there once when its job succeeded, and otherwise not."""
    found = []
    for id, final in facts.finals.items():
        if final.type != TRANSACTIONAL:
            continue
        expected, there = int(final.state == State.SUCCEEDED), facts.effects.get(id, 0)
        if there != expected:
            found.append(Violation("C9", id, f"{there} effects of a job that is {final.state}"))
    gone = facts.effects.keys() - facts.finals.keys()
    return found + [Violation("C9", id, f"{facts.effects[id]} effects of a job that is not there") for id in gone]


def effects_looked_for(facts: Facts) -> int:
    """How many jobs succeeded whose row C9 looks for."""
    return sum(final.type == TRANSACTIONAL and final.state == State.SUCCEEDED for final in facts.finals.values())


def succeeded_was_run(facts: Facts) -> list[Violation]:
    """C17: a job that succeeded was run, and whoever ran that attempt said so."""
    found = []
    for id, events in in_order(facts):
        for event in events:
            if event.name != EventName.COMPLETED:
                continue
            if not any(start.attempt == event.attempt for start in facts.starts.get(id, ())):
                found.append(Violation("C17", id, f"attempt {event.attempt} succeeded and never started"))
            elif not any(
                call.verb == Verb.ACK
                and call.attempt == event.attempt
                and (call.accepted or call.already or call.unknown)
                for call in facts.calls.get(id, ())
            ):
                found.append(Violation("C17", id, f"attempt {event.attempt} succeeded and nobody acked it"))
    return found


def acks_stay(facts: Facts) -> list[Violation]:
    """C18: an ack that was accepted is never undone."""
    found = []
    for id, calls in facts.calls.items():
        acked = any(call.verb == Verb.ACK and call.accepted for call in calls)
        final = facts.finals.get(id)
        if acked and (final is None or final.state != State.SUCCEEDED):
            found.append(Violation("C18", id, f"was acked and is {'gone' if final is None else final.state}"))
    return found


def crash_limit_kept(facts: Facts) -> list[Violation]:
    """C19: after as many deaths as the limit allows a job is dead, and for that reason."""
    found = []
    for id, events in in_order(facts):
        for part in generations(events):
            back = sum(event.name == EventName.RECLAIMED for event in part)
            if back >= facts.crash_limit:
                found.append(Violation("C19", id, f"was given out again after {back} deaths"))
            found += [Violation("C19", id, words) for words in _wrong_deaths(part, back + 1, facts.crash_limit)]
    return found


def _wrong_deaths(part: Sequence[EventFact], deaths: int, limit: int) -> Iterator[str]:
    """Ends by the death of a worker, the last of so many deaths, that say another reason than is due."""
    for event in part:
        reason = event.data.get("reason")
        if event.name != EventName.DLQ or ("cause" not in event.data and reason != DeadReason.CRASH_LIMIT):
            continue
        if (reason == DeadReason.CRASH_LIMIT) != (deaths >= limit):
            yield f"dead by {reason} after {deaths} deaths"
        elif deaths > limit:
            yield f"dead after {deaths} deaths"
