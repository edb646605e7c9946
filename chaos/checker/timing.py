"""Nothing starts early (C13), and what was interrupted starts again soon (C14)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from chaos.checker.ending import in_order
from chaos.checker.leasing import WAVER, holders_of
from chaos.checker.violation import Violation
from chaos.facts import DEADLY, EventFact, Facts, Fault, Start
from ropeway.core.states import EventName, Verb

#: Times go through text and back.
ROUNDING = 0.000_01

#: A retry's time counts from within the statement that writes it, its event's from the same statement's end. On a
#: busy machine that has been 57 ms later, and with five hundred failures in one statement 436 ms.
STATEMENT = 0.3

#: Seconds that a statement may go on for after it has looked at the clock.
JUST_NOW = 1.0


def not_early(facts: Facts) -> list[Violation]:
    """C13: by the engine's own clock no attempt starts before its job is due."""
    found = []
    for id, events in in_order(facts):
        # What the lease itself says is exact; what the log says of a retry is near it, and there without a lease.
        stored = {grant.attempt: grant.due for grant in facts.grants.get(id, ()) if grant.due}
        due = 0.0
        for event in events:
            if "run_at" in event.data:
                due = datetime.fromisoformat(str(event.data["run_at"])).timestamp()
            elif event.name == EventName.FAILED:
                due = event.at + float(event.data.get("retry_in_ms", 0)) / 1000 - _written_after(facts, id, event)
            elif event.name == EventName.RETRIED:
                due = 0.0
            elif event.name == EventName.STARTED:
                early = max(due, stored.get(event.attempt, 0.0)) - event.at
                if early > ROUNDING and not _just_put_back(facts, event.at):
                    found.append(Violation("C13", id, f"attempt {event.attempt} started {early:.3f} s early"))
    return found


def _written_after(facts: Facts, id: str, failed: EventFact) -> float:
    """Seconds by which a failure's event may be younger than the look at the clock that its retry counts from: no
    more than since it was reported."""
    reported = [
        facts.when(failed.at) - call.asked
        for call in facts.calls.get(id, ())
        if call.verb == Verb.NACK and call.attempt == failed.attempt
    ]
    return max([STATEMENT, *reported])


def _just_put_back(facts: Facts, at: float) -> bool:
    """Whether the engine's clock was put back a moment before: the statement may have looked at it before that."""
    now = facts.when(at)
    return any(not forward and 0.0 <= now - step <= JUST_NOW for step, forward in facts.directions)


@dataclass(frozen=True, slots=True)
class Recovery:
    """How long jobs that a fault interrupted waited for their next start."""

    jobs: int
    p50: float
    p99: float
    longest: float


class Recoveries(NamedTuple):
    """Seconds from each fault to the next start of every job that the process was running: where the whole worker
    was met and only its leases' end tells of it, and where a process died under a supervisor that lived."""

    whole: list[float]
    child: list[float]


#: Faults that end or stop the process that runs a job.
INTERRUPTING = DEADLY | {"pause"}


def recovery_times(facts: Facts) -> Recoveries:
    found = Recoveries([], [])
    by_process: defaultdict[int, list[tuple[str, Start]]] = defaultdict(list)
    for id, starts in facts.starts.items():
        for start in starts:
            by_process[start.pid].append((id, start))
    for fault in facts.faults:
        if fault.kind not in INTERRUPTING or (fault.kind in DEADLY and fault.until > fault.at):
            continue  # a pill that somebody else ends: nobody knows when
        for id, start in by_process[fault.pid]:
            following = [
                other for other in facts.starts[id] if other.at > fault.at and other.attempt > start.attempt
            ]
            if start.at > fault.at or not following or _over(facts, id, start.attempt, fault.at):
                continue
            again = min(following, key=lambda other: other.at)
            last, attempt = _last_interruption(facts, id, fault, start.attempt, again)
            times = found.child if _was_supervised(facts, id, last, attempt, again.at) else found.whole
            times.append(again.at - last.at)
    return Recoveries(sorted(found.whole), sorted(found.child))


def _last_interruption(facts: Facts, id: str, first: Fault, attempt: int, again: Start) -> tuple[Fault, int]:
    """The fault that the job was waiting after when it started again, and the attempt that this one ended.

    Who got it in between may have died before it could start it.
    """
    found = first, attempt
    given = {e.attempt: facts.when(e.at) for e in facts.events.get(id, ()) if e.name == EventName.STARTED}
    for between in range(attempt + 1, again.attempt):
        holders = holders_of(facts, id, between)
        later = [
            fault
            for fault in facts.faults
            if fault.kind in INTERRUPTING
            and fault.pid in holders
            and given.get(between, again.at) - WAVER <= fault.at <= again.at
        ]
        if later:
            found = min(later, key=lambda fault: fault.at), between
    return found


def _was_supervised(facts: Facts, id: str, fault: Fault, attempt: int, again: float) -> bool:
    """Whether somebody who lived saw the process die, and could say so at once."""
    if fault.whole or fault.kind not in DEADLY:
        return False
    taken_back = min(
        (
            facts.when(event.at)
            for event in facts.events.get(id, ())
            if event.attempt == attempt and event.name in (EventName.RECLAIMED, EventName.RELEASED)
        ),
        default=again,
    )
    worker = facts.names.get(fault.pid, fault.worker)
    supervisors = {pid for pids in facts.beaters.values() for pid in pids}
    return not any(
        other.pid != fault.pid
        and other.kind in INTERRUPTING
        and other.at <= taken_back
        and other.until >= fault.at
        and (other.worker or facts.names.get(other.pid)) == worker
        and (other.whole or other.pid in supervisors)
        for other in facts.faults
    )


def _over(facts: Facts, id: str, attempt: int, by: float) -> bool:
    """Whether the run's outcome was on its way already."""
    return any(
        call.attempt == attempt and call.verb != "heartbeat" and call.asked <= by for call in facts.calls[id]
    )


def recovery(times: Sequence[float]) -> Recovery | None:
    if not times:
        return None

    def at(share: float) -> float:
        return times[min(len(times) - 1, int(share * len(times)))]

    return Recovery(len(times), at(0.50), at(0.99), times[-1])


def within(times: Sequence[float], bar: float, whose: str) -> list[Violation]:
    """C14: the 99th percentile is within the bar; where nothing was measured, nothing is shown."""
    found = recovery(times)
    if found is None:
        return [Violation("C14", "-", f"nobody had to recover from the death of {whose}: the run proves nothing")]
    if found.p99 <= bar:
        return []
    words = f"recovery from the death of {whose}: p99 {found.p99:.2f} s is over {bar:g} s"
    return [Violation("C14", "-", f"{words} (longest {found.longest:.2f} s)")]
