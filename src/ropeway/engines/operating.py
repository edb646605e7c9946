"""Operator verbs, the same refusals on every engine."""

from __future__ import annotations

from datetime import datetime

import msgspec

from ropeway.core import fields
from ropeway.core.errors import FieldError, InvalidState, JobEnded, RopewayError
from ropeway.core.query import JobFilter
from ropeway.core.states import TERMINAL_STATES, State, Verb, may

_REDRIVABLE = frozenset({State.DEAD, State.CANCELLED})


def refusal(state: State, verb: Verb) -> RopewayError | None:
    """Why `verb` does not apply to a job in `state`; None when it does."""
    if may(state, verb):
        return None
    if verb is Verb.CANCEL:
        return JobEnded(f"the job has already ended: {state.value}", status=state.value)
    return InvalidState(f"a job that is {state.value} cannot be {_PAST[verb]}")


def deletion_refusal(state: State) -> RopewayError | None:
    """A running job is cancelled before it is deleted; everything else may go."""
    return running_not_deleted() if state is State.RUNNING else None


def running_not_deleted() -> InvalidState:
    return InvalidState("a running job cannot be deleted", hint="cancel it first")


def redrivable(where: JobFilter) -> JobFilter:
    """A filter narrowed to what can be redriven: the dead, unless it asks for the cancelled itself."""
    states = (where.states or frozenset({State.DEAD})) & _REDRIVABLE
    if not states:
        raise FieldError("only dead and cancelled jobs can be retried", pointer="/filter/status")
    return msgspec.structs.replace(where, states=states)


def check_reschedule(
    run_at: datetime | None,
    delay: float | None,
    priority: int | None,
    queue: str | None,
    now: datetime,
) -> None:
    """The rules of a reschedule that no store needs to see."""
    if run_at is not None and delay is not None:
        raise FieldError("give run_at or delay, not both", code="conflicting_fields", pointer="/run_at")
    if run_at is None and delay is None and priority is None and queue is None:
        raise FieldError("say what to change: run_at, delay, priority or queue")
    if run_at is not None:
        fields.check_horizon(fields.check_time(run_at, "run_at"), "run_at", now)
    if delay is not None:
        fields.check_seconds(delay, "delay", 0, fields.HORIZON_SECONDS)
    if priority is not None:
        fields.check_integer(priority, "priority", 1, 9)
    if queue is not None:
        fields.check_name(queue, "queue")


_PAST = {Verb.REDRIVE: "retried", Verb.RESCHEDULE: "rescheduled", Verb.PRUNE: "pruned"}
assert TERMINAL_STATES >= _REDRIVABLE  # noqa: S101 - a state that can be redriven has ended
