"""Leases are exclusive, fenced, counted, and follow one another for a reason: C4 to C8."""

from __future__ import annotations

from collections.abc import Iterator

from chaos.checker.ending import ENDS, generations, in_order
from chaos.checker.violation import Violation
from chaos.facts import DEADLY, OF_ONE_PROCESS, Call, EventFact, Facts, Fault, Grant
from ropeway.core.states import DeadReason, EventName

#: What lets a job be leased once more.
CAUSES = frozenset(
    {EventName.FAILED, EventName.SNOOZED, EventName.RELEASED, EventName.RECLAIMED, EventName.RETRIED}
)

#: An attempt that ends so is given back to the budget.
REFUNDED = frozenset({EventName.SNOOZED, EventName.RELEASED})

#: Seconds by which a clock that others share may differ from itself.
WAVER = 0.005

#: Faults that take nobody's lease: whoever loses one meanwhile has lost it for another reason.
HARMLESS = frozenset({"clock", "deaf", "downstream", "elsewhere", "timeout"})

#: A question for leases is done with after so many seconds, whether or not anybody hears of it.
LATEST = 30.0


def starts_have_leases(facts: Facts) -> list[Violation]:
    """C4: whoever started an attempt had been given it, with that token, before."""
    return [
        Violation("C4", id, f"attempt {start.attempt} started without a lease")
        for id, starts in facts.starts.items()
        for start in starts
        if not any(
            grant.attempt == start.attempt
            and (start.token is None or grant.token == start.token)
            and grant.asked <= start.at
            for grant in facts.grants.get(id, ())
        )
    ]


def stale_calls_refused(facts: Facts) -> list[Violation]:
    """C5: no call was accepted after a newer lease had been given out or the job had ended."""
    found = []
    for id, calls in facts.calls.items():
        for call in calls:
            if not call.accepted or call.attempt == 0:
                continue
            if any(g.attempt > call.attempt and g.told < call.asked for g in facts.grants.get(id, ())):
                found.append(Violation("C5", id, f"{call.verb} of attempt {call.attempt} after a newer lease"))
            elif not _redriven(facts, id) and _ended_before(calls, call):
                found.append(Violation("C5", id, f"{call.verb} of attempt {call.attempt} after the end"))
    for id, events in in_order(facts):
        found += [Violation("C5", id, words) for words in _misplaced_outcomes(events)]
    return found


def _ended_before(calls: list[Call], call: Call) -> bool:
    """Whether an answer had told of the job's end before this was asked."""
    return any(
        other is not call
        and other.accepted
        and other.ended is not None
        and other.ended < call.asked
        and other.answer in ("succeeded", "dead", "cancelled")
        for other in calls
    )


def _redriven(facts: Facts, id: str) -> bool:
    """Whether an operator undid an end: then only C20 can tell what came when."""
    return any(event.name == EventName.RETRIED for event in facts.events.get(id, ()))


def _misplaced_outcomes(events: list[EventFact]) -> Iterator[str]:
    """Outcomes in the log that do not belong to the attempt that is running there."""
    running: int | None = None
    for event in events:
        if event.name == EventName.STARTED:
            running = event.attempt
        elif event.name in (EventName.CANCELLED, EventName.RETRIED, EventName.ENQUEUED, EventName.RESCHEDULED):
            running = None
        else:
            if running != event.attempt:
                yield f"{event.name} of attempt {event.attempt} while {running or 'none'} runs"
            running = None


def attempts_and_tokens(facts: Facts) -> list[Violation]:
    """C6: attempts are 1, 2, 3...; no token comes twice; no budget is overdrawn, and it is counted right."""
    found = []
    for id, events in in_order(facts):
        attempts = [event.attempt for event in events if event.name == EventName.STARTED]
        if attempts != list(range(1, len(attempts) + 1)):
            found.append(Violation("C6", id, f"its attempts are {attempts}"))
        final = facts.finals.get(id)
        if final is None:
            continue
        for part in generations(events):
            spent = _spent(part)
            if spent > final.max_attempts:
                found.append(Violation("C6", id, f"{spent} attempts of {final.max_attempts}"))
            elif spent < final.max_attempts and _given_up(part):
                found.append(Violation("C6", id, f"given up after {spent} attempts of {final.max_attempts}"))
        if spent != final.attempts:
            found.append(Violation("C6", id, f"{spent} attempts were spent, {final.attempts} are counted"))
    for id, grants in facts.grants.items():
        by_token: dict[str, set[int]] = {}
        for grant in grants:
            by_token.setdefault(grant.token, set()).add(grant.attempt)
        found += [
            Violation("C6", id, f"one token for the attempts {sorted(used)}")
            for used in by_token.values()
            if len(used) > 1
        ]
        if len({(grant.attempt, grant.token) for grant in grants}) != len({grant.attempt for grant in grants}):
            found.append(Violation("C6", id, "one attempt was given out twice"))
    return found


def _given_up(part: list[EventFact]) -> bool:
    """Whether the job is said to have no attempts left."""
    return any(event.data.get("reason") == DeadReason.MAX_ATTEMPTS for event in part)


def _spent(part: list[EventFact]) -> int:
    """Attempts of one generation that count against the budget."""
    started = sum(event.name == EventName.STARTED for event in part)
    return started - sum(event.name in REFUNDED for event in part)


def leases_do_not_overlap(facts: Facts) -> list[Violation]:
    """C7: no lease is taken away as expired while it has time left.

    Judged in favour of the engine: a lease lasts from when it was asked for, and a beat counts from when it was
    asked for, if it had been answered before. That two leases follow one another without a reason is C8's matter.
    """
    found = []
    for id, events in in_order(facts):
        for event in events:
            if event.data.get("cause") != "expired":
                continue
            at = facts.when(event.at)
            for grant in facts.grants.get(id, ()):
                early = _lasts_until(facts, grant, at) - at
                if grant.attempt == event.attempt and early > WAVER and not _stepped_over(facts, grant, at):
                    found.append(Violation("C7", id, f"attempt {event.attempt} expired {early:.3f} s too early"))
    return found


def _stepped_over(facts: Facts, grant: Grant, at: float) -> bool:
    """Whether the engine's clock went forward in the lease's time: by that clock it was over."""
    return any(forward and grant.asked <= step <= at + WAVER for step, forward in facts.directions)


def _lasts_until(facts: Facts, grant: Grant, by: float) -> float:
    """When the lease ends, by the beats that were answered by then."""
    beats = [asked for asked, told in facts.beats.get(grant.owner, ()) if grant.told <= asked and told <= by]
    beats += [
        call.asked
        for call in facts.calls.get(grant.job, ())
        if call.verb == "heartbeat" and call.token == grant.token and call.accepted and (call.ended or by) < by
    ]
    return max([grant.asked, *beats]) + grant.seconds


def second_leases_have_causes(facts: Facts) -> list[Violation]:
    """C8: between two leases of a job stands a reason. That a lease expired needs a fault of whoever held it or
    beat for it, or of all; that its process died needs its death."""
    found = []
    for id, events in in_order(facts):
        running = False
        for event in events:
            if event.name == EventName.STARTED:
                if running:
                    found.append(Violation("C8", id, f"attempt {event.attempt} has no cause"))
                running = True
            elif event.name in CAUSES or event.name in ENDS:
                running = False
                if words := _unexplained(facts, id, event):
                    found.append(Violation("C8", id, f"attempt {event.attempt} {words}"))
    return found


def _unexplained(facts: Facts, id: str, event: EventFact) -> str:
    """What is strange about how an attempt was taken back; nothing if there is a reason for it."""
    match event.data.get("cause"):
        case "expired" if not _may_expire(facts, id, event):
            return "expired although nothing was wrong with whoever held it"
        case "crashed" if not _died(facts, id, event):
            return "crashed although nobody died"
        case _:
            return ""


def _may_expire(facts: Facts, id: str, expired: EventFact) -> bool:
    """Whether a fault, or a beat without an answer, came between the last beat that was heard and the expiry; or
    nobody ever heard of the lease."""
    at = facts.when(expired.at)
    grant = _grant(facts, id, expired.attempt)
    if grant is None:
        return bool(_askers(facts, id, expired.attempt))
    heard = _lasts_until(facts, grant, at) - grant.seconds
    beats = facts.unanswered.get(grant.owner, []) + [
        call.asked
        for call in facts.calls.get(id, ())
        if call.verb == "heartbeat" and call.token == grant.token and call.phase != "ok"
    ]
    if any(heard <= asked <= at for asked in beats):
        return True
    holders = {grant.pid} | facts.beaters.get(grant.owner, set())
    return any(_excuses(fault, holders, heard, at) for fault in facts.faults)


def _excuses(fault: Fault, holders: set[int], since: float, by: float) -> bool:
    """Whether a fault kept these processes from being heard in that time."""
    if fault.kind in HARMLESS or (fault.kind in OF_ONE_PROCESS and fault.pid not in holders):
        return False
    return fault.at <= by + WAVER and (fault.kind in DEADLY or fault.until >= since)


def _died(facts: Facts, id: str, crashed: EventFact) -> bool:
    """Whether a process that held or ran the attempt had been killed, or had killed itself, by then."""
    at = facts.when(crashed.at)
    holders = {start.pid for start in facts.starts.get(id, ()) if start.attempt == crashed.attempt}
    holders |= holders_of(facts, id, crashed.attempt)
    return any(fault.kind in DEADLY and fault.pid in holders and fault.at <= at + WAVER for fault in facts.faults)


def holders_of(facts: Facts, id: str, attempt: int) -> set[int]:
    """The process that was given an attempt; those that may have been, where nobody was told of it."""
    grant = _grant(facts, id, attempt)
    return _askers(facts, id, attempt) if grant is None else {grant.pid}


def _grant(facts: Facts, id: str, attempt: int) -> Grant | None:
    return next((grant for grant in facts.grants.get(id, ()) if grant.attempt == attempt), None)


def _askers(facts: Facts, id: str, attempt: int) -> set[int]:
    """Who may have been given an attempt that nobody was told of: those whose question was never answered."""
    given = next(
        (e.at for e in facts.events.get(id, ()) if e.name == EventName.STARTED and e.attempt == attempt), None
    )
    if given is None:
        return set()
    at = facts.when(given)
    return {lost.pid for lost in facts.lost_leases if lost.asked - WAVER <= at <= lost.asked + LATEST}


def duplicates(facts: Facts) -> tuple[int, int]:
    """Second starts of a job with and without a cause in the log."""
    explained = sum(max(0, len({start.attempt for start in starts}) - 1) for starts in facts.starts.values())
    unexplained = sum(
        len(starts) - len({start.attempt for start in starts}) for starts in facts.starts.values()
    ) + len(second_leases_have_causes(facts))
    return explained, unexplained


def stale_calls(facts: Facts) -> tuple[int, int]:
    """Calls that were made with a ticket that was surely void, and how many of them were accepted."""
    sent = 0
    for id, calls in facts.calls.items():
        for call in calls:
            newer = any(g.attempt > call.attempt > 0 and g.told < call.asked for g in facts.grants.get(id, ()))
            sent += newer and call.phase == "ok"
    return sent, sum("after a newer lease" in violation.words for violation in stale_calls_refused(facts))
