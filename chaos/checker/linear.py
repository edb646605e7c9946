"""Each job by itself behaves as if its calls had happened one at a time: C20.

A search in the manner of Wing and Gong: an order of the calls in which each lies between its question and its
answer, and in which a small model of one job gives every answer that was given. What nobody was answered may have
happened at any later time or never; what upkeep does (taking a job back, cancelling it unstarted) happens whenever
the log says that it did as often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from chaos.checker.violation import Violation
from chaos.facts import REFUSALS, Call, Enqueue, Facts
from chaos.history import FAIL, INFO, OK
from ropeway.core.states import TERMINAL_STATES, EventName, Verb

#: The token of a lease whose answer was lost: any may be it.
ANY_TOKEN = "?"

#: Steps of a search after which it is given up, and the job counted as undecided.
MOST_STEPS = 20_000


class Op(NamedTuple):
    """A call, or a step of upkeep, whose name is no call's. `optional` ones may never have happened."""

    verb: str
    asked: float
    ended: float
    optional: bool = False
    attempt: int = 0
    token: str = ""
    answer: str = ""
    already: bool = False


class Model(NamedTuple):
    """One job. `status` is none, free, running or an end; `spent` is the newest ticket that was used up."""

    status: str = "none"
    attempt: int = 0
    token: str = ""
    spent: tuple[int, str, str] = (0, "", "")


def linearizable(facts: Facts) -> list[Violation]:
    """C20."""
    asked = _asked_for(facts)
    return [
        Violation("C20", id, "its answers fit no order of its calls")
        for id in facts.finals
        if _search(operations(facts, id, asked.get(id, []))) is False
    ]


def undecided(facts: Facts) -> int:
    """Jobs whose search was given up."""
    asked = _asked_for(facts)
    return sum(_search(operations(facts, id, asked.get(id, []))) is None for id in facts.finals)


def _asked_for(facts: Facts) -> dict[str, list[Enqueue]]:
    """The calls that may have made each job: those that were told its id, and those with its key."""
    by_key = {final.key: id for id, final in facts.finals.items() if final.key is not None}
    found: dict[str, list[Enqueue]] = {}
    for each in facts.enqueues:
        id = each.id or by_key.get(each.key or "")
        if id is not None and each.phase != FAIL:
            found.setdefault(id, []).append(each)
    return found


def operations(facts: Facts, id: str, asked: Sequence[Enqueue]) -> list[Op]:
    """All that is known to have happened to one job, and what may have."""
    began = min((each.asked for each in asked), default=-inf)
    ops = [Op("enqueue", began, min((each.ended for each in asked if each.ended is not None), default=inf))]
    events = facts.events.get(id, [])
    known = {grant.attempt for grant in facts.grants.get(id, ())}
    ops += [
        Op("lease", grant.asked, grant.told, attempt=grant.attempt, token=grant.token)
        for grant in facts.grants.get(id, ())
    ]
    for event in events:
        if event.name == EventName.STARTED and event.attempt not in known:
            # Its answer was lost: nobody knows the token, or only by what it was used for later.
            ops.append(Op("lease", began, inf, attempt=event.attempt, token=ANY_TOKEN))
        elif event.name == EventName.RECLAIMED or (event.name == EventName.DLQ and "cause" in event.data):
            if _called_for(facts, id, Verb.LOSE, event.attempt):
                continue
            dead = event.name == EventName.DLQ
            ops.append(Op("take_back", began, inf, attempt=event.attempt, answer="dead" if dead else "queued"))
        elif event.name == EventName.CANCELLED and event.data.get("reason") == "expired":
            ops.append(Op("expire", began, inf))
        elif event.name == EventName.RELEASED and not _called_for(facts, id, Verb.RELEASE, event.attempt):
            ops.append(Op("give_back", began, inf, attempt=event.attempt))
    calls = facts.calls.get(id, ())
    known_redrives = sum(call.verb == Verb.REDRIVE and (call.accepted or call.unknown) for call in calls)
    redriven = sum(event.name == EventName.RETRIED for event in events)
    # By a filter, that is by somebody who did not name this job.
    ops += [Op(Verb.REDRIVE, began, inf, answer="queued")] * max(0, redriven - known_redrives)
    died = {event.attempt for event in events if event.name == EventName.DLQ and "cause" not in event.data}
    ops += [_called(call, died) for call in calls if call.phase != "fail"]
    # It may be its own first try, whose answer was lost, that made the last one come too late.
    too_late = [call for call in calls if call.repeats and (call.already or call.answer in REFUSALS)]
    ops += [_called(replace(call, phase=INFO, ended=None, already=False), died) for call in too_late]
    return ops


def _called_for(facts: Facts, id: str, verb: Verb, attempt: int) -> bool:
    """Whether a call with the ticket itself is known to have done it. Of one without an answer nobody knows: the
    whole grant may have ended before it arrived."""
    calls = facts.calls.get(id, ())
    return any(c.verb == verb and c.attempt == attempt and c.accepted for c in calls)


def _called(call: Call, died: set[int]) -> Op:
    """As an operation. What an unanswered nack came to is told by the log: `died` are the attempts after which the
    job was dead."""
    answered = call.phase == OK and call.ended is not None
    unanswered = "dead" if call.attempt in died else ""
    return Op(
        call.verb,
        call.asked,
        call.ended if answered and call.ended is not None else inf,
        optional=not answered,
        attempt=call.attempt,
        token=call.token,
        answer=call.answer if answered else unanswered,
        already=call.already,
    )


@dataclass
class _Search:
    ops: list[Op]
    steps: int = 0

    def run(self) -> bool | None:
        """Whether there is such an order; None when it was not found out."""
        seen: set[tuple[int, Model]] = set()
        waiting = [(0, Model())]
        done_mask = sum(1 << i for i, op in enumerate(self.ops) if not op.optional)
        while waiting:
            mask, model = waiting.pop()
            if mask & done_mask == done_mask:
                return True
            self.steps += 1
            if self.steps > MOST_STEPS:
                return None
            left = [i for i in range(len(self.ops)) if not mask >> i & 1]
            first_end = min(self.ops[i].ended for i in left)
            for i in left:
                op = self.ops[i]
                if op.asked > first_end:
                    continue
                after = _step(model, op)
                if after is not None:
                    reached = (mask | 1 << i, after)
                    if reached not in seen:
                        seen.add(reached)
                        waiting.append(reached)
        return False


def _search(ops: list[Op]) -> bool | None:
    return _Search(sorted(ops, key=lambda op: op.asked, reverse=True)).run()


def _step(model: Model, op: Op) -> Model | None:
    """The job after it, if this is a possible answer now."""
    match op.verb:
        case "enqueue":
            return model._replace(status="free") if model.status == "none" else None
        case "lease":
            fits = model.status == "free" and op.attempt == model.attempt + 1
            return Model("running", op.attempt, op.token) if fits else None
        case "take_back" | "give_back":
            if model.status != "running" or model.attempt != op.attempt:
                return None
            status = "dead" if op.answer == "dead" else "free"
            # The ticket's own call for the same is answered as done from here on, as after itself.
            verb = Verb.LOSE if op.verb == "take_back" else Verb.RELEASE
            return Model(status, model.attempt, spent=(model.attempt, model.token, verb))
        case "expire":
            return model._replace(status="cancelled") if model.status == "free" else None
        case Verb.CANCEL:
            return _cancelled(model, op)
        case Verb.REDRIVE:
            return _redriven(model, op)
        case "heartbeat":
            return _beaten(model, op)
        case _:
            return _settled(model, op)


def _current(model: Model, op: Op) -> bool:
    return model.status == "running" and model.attempt == op.attempt and model.token in (op.token, ANY_TOKEN)


def _settled(model: Model, op: Op) -> Model | None:
    current = _current(model, op)
    if op.optional:
        # Nobody knows what it was told: it took effect, or it found its ticket void.
        if not current:
            return model
        status = "succeeded" if op.verb == Verb.ACK else op.answer or "free"
        return Model(status, model.attempt, spent=(op.attempt, op.token, op.verb))
    if op.already:
        return _answered_again(model, op)
    if op.answer in ("lease_lost", "terminal"):
        return None if current else model
    if not current:
        return None
    status = op.answer if op.answer in TERMINAL_STATES else "free"
    return Model(status, model.attempt, spent=(op.attempt, op.token, op.verb))


def _answered_again(model: Model, op: Op) -> Model | None:
    """The ticket was spent by the same verb. Whoever is told so has shown the ticket."""
    attempt, token, verb = model.spent
    if model.status == "running" or (attempt, verb) != (op.attempt, op.verb) or token not in (op.token, ANY_TOKEN):
        return None
    return model._replace(spent=(op.attempt, op.token, op.verb))


def _beaten(model: Model, op: Op) -> Model | None:
    if op.optional:
        return model
    return model if _current(model, op) == (op.answer == "beat") else None


def _cancelled(model: Model, op: Op) -> Model | None:
    live = model.status in ("free", "running")
    if op.optional:
        return Model("cancelled", model.attempt) if live else model
    if op.answer == "cancelled":
        return Model("cancelled", model.attempt) if live else None
    return None if live else model


def _redriven(model: Model, op: Op) -> Model | None:
    ended = model.status in ("dead", "cancelled")
    if op.optional:
        return Model("free", model.attempt) if ended else model
    if op.answer in ("queued", "scheduled", "retrying"):
        return Model("free", model.attempt) if ended else None
    return None if ended else model
