"""Nothing starts early (C13), and what was interrupted starts again soon (C14)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from chaos.checker.ending import in_order
from chaos.checker.violation import Violation
from chaos.facts import Facts
from ropeway.core.states import EventName

#: Times go through text and back.
ROUNDING = 0.000_01

#: A retry's time counts from within the statement that writes it, its event's from the same statement's end. On a
#: busy machine that has been 57 ms later.
STATEMENT = 0.3


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
                due = event.at + float(event.data.get("retry_in_ms", 0)) / 1000 - STATEMENT
            elif event.name == EventName.RETRIED:
                due = 0.0
            elif event.name == EventName.STARTED:
                early = max(due, stored.get(event.attempt, 0.0)) - event.at
                if early > ROUNDING:
                    found.append(Violation("C13", id, f"attempt {event.attempt} started {early:.3f} s early"))
    return found


@dataclass(frozen=True, slots=True)
class Recovery:
    """How long jobs that a fault interrupted waited for their next start."""

    jobs: int
    p50: float
    p99: float
    longest: float


#: Faults that end or stop the process that runs a job.
INTERRUPTING = frozenset({"kill", "pause"})


def recovery_times(facts: Facts) -> list[float]:
    """Seconds from each fault to the next start of every job that the process was running."""
    times = []
    for fault in facts.faults:
        if fault.kind not in INTERRUPTING:
            continue
        for id, starts in facts.starts.items():
            for start in starts:
                if start.pid != fault.pid or start.at > fault.at or _over(facts, id, start.attempt, fault.at):
                    continue
                following = [other for other in starts if other.at > fault.at and other.attempt > start.attempt]
                if following:
                    next_start = min(following, key=lambda other: other.at)
                    times.append(
                        next_start.at - _interrupted(facts, id, start.attempt, next_start.attempt, fault.at)
                    )
    return sorted(times)


def _interrupted(facts: Facts, id: str, first: int, last: int, since: float) -> float:
    """When the job was interrupted for the last time before it started again.

    Who got it in between may have died before it could start it: that is another interruption, which came after
    the lease was given out.
    """
    between = [
        event.at - facts.epoch
        for event in facts.events.get(id, ())
        if event.name == EventName.STARTED and first < event.attempt < last
    ]
    return max([since, *between])


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


def within(times: Sequence[float], bar: float) -> list[Violation]:
    """C14: the 99th percentile is within the bar."""
    found = recovery(times)
    if found is None or found.p99 <= bar:
        return []
    return [
        Violation("C14", "-", f"recovery p99 {found.p99:.2f} s is over {bar:g} s (longest {found.longest:.2f} s)")
    ]
