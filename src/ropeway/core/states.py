"""The life of a job as data: `state × verb → state`, who may do it, and which event it writes.

Everything that could drift from this table is checked against it: the diagram in ARCHITECTURE.md is generated
from it, the constraints of the SQL schemas are compared with it, and the conformance suite walks every cell of
it on every engine, the empty ones too.

A live job's state is not stored but derived (`live_state`), so becoming due is not a transition: no verb, no
event, nothing to promote.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


class State(StrEnum):
    """Where a job is. Called `status` on every face."""

    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    RETRYING = "retrying"
    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"


LIVE_STATES = frozenset(
    {State.SCHEDULED, State.QUEUED, State.RUNNING, State.RETRYING, State.WAITING},
)
TERMINAL_STATES = frozenset({State.SUCCEEDED, State.DEAD, State.CANCELLED})

#: What a key answers when the job it points to has been pruned: not a state, there is no job any more.
PRUNED = "pruned"


class Verb(StrEnum):
    """What can be done to a job."""

    ENQUEUE = "enqueue"
    LEASE = "lease"
    ACK = "ack"
    NACK = "nack"
    SNOOZE = "snooze"
    RELEASE = "release"
    LOSE = "lose"
    CANCEL = "cancel"
    EXPIRE = "expire"
    REDRIVE = "redrive"
    RESCHEDULE = "reschedule"
    PRUNE = "prune"


class Actor(StrEnum):
    """Who may use a verb."""

    PRODUCER = "producer"
    WORKER = "worker"
    OPERATOR = "operator"
    UPKEEP = "upkeep"


class EventName(StrEnum):
    """The event that a transition writes, in the same transaction."""

    ENQUEUED = "job.enqueued"
    STARTED = "job.started"
    COMPLETED = "job.completed"
    FAILED = "job.failed"
    DLQ = "job.dlq"
    SNOOZED = "job.snoozed"
    RELEASED = "job.released"
    RECLAIMED = "job.reclaimed"
    CANCELLED = "job.cancelled"
    RETRIED = "job.retried"
    RESCHEDULED = "job.rescheduled"


class DeadReason(StrEnum):
    """Why a job is dead."""

    MAX_ATTEMPTS = "max_attempts"
    REJECTED = "rejected"
    CRASH_LIMIT = "crash_limit"
    BAD_PAYLOAD = "bad_payload"


class CancelReason(StrEnum):
    """Why a job is cancelled."""

    REQUESTED = "requested"
    EXPIRED = "expired"


class Arrow(NamedTuple):
    """One way a verb may go. `target` None: the job is gone. `event` None: nothing is written."""

    target: State | None
    event: EventName | None
    when: str = ""


class Cell(NamedTuple):
    """What a verb does in one state: the ways it may go, and who may use it."""

    arrows: tuple[Arrow, ...]
    by: frozenset[Actor]

    @property
    def targets(self) -> frozenset[State | None]:
        return frozenset(arrow.target for arrow in self.arrows)


def _cell(by: Actor | tuple[Actor, ...], *arrows: Arrow) -> Cell:
    return Cell(arrows, frozenset((by,) if isinstance(by, Actor) else by))


_CANCEL = _cell((Actor.PRODUCER, Actor.OPERATOR), Arrow(State.CANCELLED, EventName.CANCELLED))
_EXPIRE = _cell(Actor.UPKEEP, Arrow(State.CANCELLED, EventName.CANCELLED, "not started by expires_at"))
_TO_SCHEDULED = Arrow(State.SCHEDULED, EventName.RESCHEDULED, "new time ahead, never failed")
_TO_RETRYING = Arrow(State.RETRYING, EventName.RESCHEDULED, "new time ahead, failed before")
_TO_QUEUED = Arrow(State.QUEUED, EventName.RESCHEDULED, "new time is now")
_REDRIVE = _cell(Actor.OPERATOR, Arrow(State.QUEUED, EventName.RETRIED))
_PRUNE = _cell((Actor.UPKEEP, Actor.OPERATOR), Arrow(None, None, "retention is over, or deleted"))

#: state × verb → cell. `None` is the state of a job that does not exist yet. A pair that is absent is refused.
TABLE: Mapping[tuple[State | None, Verb], Cell] = {
    (None, Verb.ENQUEUE): _cell(
        (Actor.PRODUCER, Actor.UPKEEP),
        Arrow(State.QUEUED, EventName.ENQUEUED, "due now"),
        Arrow(State.SCHEDULED, EventName.ENQUEUED, "run_at ahead"),
    ),
    (State.QUEUED, Verb.LEASE): _cell(Actor.WORKER, Arrow(State.RUNNING, EventName.STARTED)),
    (State.RUNNING, Verb.ACK): _cell(Actor.WORKER, Arrow(State.SUCCEEDED, EventName.COMPLETED)),
    (State.RUNNING, Verb.NACK): _cell(
        Actor.WORKER,
        Arrow(State.RETRYING, EventName.FAILED, "attempts left"),
        Arrow(State.DEAD, EventName.DLQ, "no attempts left, or retry refused"),
    ),
    (State.RUNNING, Verb.SNOOZE): _cell(
        Actor.WORKER,
        Arrow(State.SCHEDULED, EventName.SNOOZED, "never failed"),
        Arrow(State.RETRYING, EventName.SNOOZED, "failed before"),
    ),
    (State.RUNNING, Verb.RELEASE): _cell(Actor.WORKER, Arrow(State.QUEUED, EventName.RELEASED)),
    (State.RUNNING, Verb.LOSE): _cell(
        (Actor.WORKER, Actor.UPKEEP),
        Arrow(State.QUEUED, EventName.RECLAIMED, "attempts left"),
        Arrow(State.DEAD, EventName.DLQ, "crash limit, or no attempts left"),
    ),
    (State.SCHEDULED, Verb.CANCEL): _CANCEL,
    (State.QUEUED, Verb.CANCEL): _CANCEL,
    (State.RUNNING, Verb.CANCEL): _CANCEL,
    (State.RETRYING, Verb.CANCEL): _CANCEL,
    (State.WAITING, Verb.CANCEL): _CANCEL,
    (State.SCHEDULED, Verb.EXPIRE): _EXPIRE,
    (State.QUEUED, Verb.EXPIRE): _EXPIRE,
    (State.WAITING, Verb.EXPIRE): _EXPIRE,
    (State.SCHEDULED, Verb.RESCHEDULE): _cell(Actor.OPERATOR, _TO_SCHEDULED, _TO_QUEUED),
    (State.QUEUED, Verb.RESCHEDULE): _cell(Actor.OPERATOR, _TO_SCHEDULED, _TO_RETRYING, _TO_QUEUED),
    (State.RETRYING, Verb.RESCHEDULE): _cell(Actor.OPERATOR, _TO_RETRYING, _TO_QUEUED),
    (State.DEAD, Verb.REDRIVE): _REDRIVE,
    (State.CANCELLED, Verb.REDRIVE): _REDRIVE,
    (State.SUCCEEDED, Verb.PRUNE): _PRUNE,
    (State.DEAD, Verb.PRUNE): _PRUNE,
    (State.CANCELLED, Verb.PRUNE): _PRUNE,
}


def may(state: State | None, verb: Verb) -> bool:
    """Whether `verb` applies to a job in `state`."""
    return (state, verb) in TABLE


def live_state(*, leased: bool, blockers: int, run_at: datetime, failures: int, now: datetime) -> State:
    """The state of a job that has not ended, from the facts on its row and the engine's clock."""
    if leased:
        return State.RUNNING
    if blockers > 0:
        return State.WAITING
    if run_at > now:
        return State.RETRYING if failures > 0 else State.SCHEDULED
    return State.QUEUED


def mermaid() -> str:
    """The table as a Mermaid state diagram, one arrow per line, in the table's own order."""
    lines = ["stateDiagram-v2"]
    for (state, verb), cell in TABLE.items():
        for arrow in cell.arrows:
            source = "[*]" if state is None else state.value
            target = "[*]" if arrow.target is None else arrow.target.value
            label = f"{verb.value} ({arrow.when})" if arrow.when else verb.value
            lines.append(f"    {source} --> {target}: {label}")
    return "\n".join(lines) + "\n"
