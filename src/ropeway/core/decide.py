"""(job, outcome, jitter) → Transition: the only place where the fate of a run is decided.

Engines apply a transition under the fence and decide nothing themselves, so every engine keeps the same promises.
Decisions are delays, never times: only the engine's clock says what is due.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

import msgspec

from ropeway.core import retry
from ropeway.core.outcome import Done, Failed, Lost, Outcome, Released, Snoozed
from ropeway.core.payload import JobError
from ropeway.core.retry import RetryPolicy
from ropeway.core.states import DeadReason, EventName, State, Verb


class JobFacts(msgspec.Struct, frozen=True):
    """What a decision needs to know of a running job; none of it changes while its lease is current."""

    attempts: int
    max_attempts: int
    failures: int
    lost: int
    retry: RetryPolicy | None = None


class Rules(msgspec.Struct, frozen=True):
    """The settings that decisions depend on."""

    crash_limit: int = 3
    retry: RetryPolicy = RetryPolicy()


class Transition(msgspec.Struct, frozen=True):
    """What an engine has to write, if job, attempt and token still match.

    Where the job goes in line: `delay` (seconds from the engine's now), `run_at` (a given time, never before the
    engine's now), or neither: it keeps the place it had.
    """

    verb: Verb
    target: State
    event: EventName
    delay: float | None = None
    run_at: datetime | None = None
    #: The attempt does not count: give it back to the budget.
    refund: bool = False
    failed: bool = False
    lost: bool = False
    dead_reason: DeadReason | None = None
    error: JobError | None = None
    lost_as: Lost | None = None

    def detail(self) -> dict[str, Any]:
        """What the transition's event says besides times and the error."""
        detail: dict[str, Any] = {}
        if self.dead_reason is not None:
            detail["reason"] = self.dead_reason.value
        if self.lost_as is not None:
            detail["cause"] = self.lost_as.cause
            for name in ("exit_code", "signal", "peak_rss_bytes"):
                if (value := getattr(self.lost_as, name)) is not None:
                    detail[name] = value
        return detail


def decide(job: JobFacts, outcome: Outcome, jitter: float, rules: Rules) -> Transition:
    """The transition for `outcome`; `jitter` is a uniform draw in [0, 1). `Done` needs no facts (see `DONE`)."""
    match outcome:
        case Done():
            return DONE
        case Failed():
            return _failed(job, outcome, jitter, rules)
        case Snoozed():
            state = State.RETRYING if job.failures else State.SCHEDULED
            return Transition(
                Verb.SNOOZE,
                state,
                EventName.SNOOZED,
                delay=outcome.delay,
                run_at=outcome.run_at,
                refund=True,
            )
        case Released():
            return Transition(Verb.RELEASE, State.QUEUED, EventName.RELEASED, refund=True)
        case Lost():
            return _lost(job, outcome, rules)


#: The transition of every ack: it depends on nothing but the fence.
DONE = Transition(Verb.ACK, State.SUCCEEDED, EventName.COMPLETED)


def _failed(job: JobFacts, outcome: Failed, jitter: float, rules: Rules) -> Transition:
    if not outcome.retry:
        return _dead(Verb.NACK, outcome.reason, error=outcome.error)
    if job.attempts >= job.max_attempts:
        return _dead(Verb.NACK, DeadReason.MAX_ATTEMPTS, error=outcome.error)
    # NaN is no answer to "when": the policy decides.
    if outcome.retry_after is not None and not math.isnan(outcome.retry_after):
        delay = min(max(outcome.retry_after, 0.0), retry.MAX_DELAY)
    else:
        delay = retry.delay(job.retry or rules.retry, max(job.attempts, 1), jitter)
    return Transition(Verb.NACK, State.RETRYING, EventName.FAILED, delay=delay, failed=True, error=outcome.error)


def _lost(job: JobFacts, outcome: Lost, rules: Rules) -> Transition:
    if job.lost + 1 >= rules.crash_limit:
        return _dead(Verb.LOSE, DeadReason.CRASH_LIMIT, lost_as=outcome)
    if job.attempts >= job.max_attempts:
        return _dead(Verb.LOSE, DeadReason.MAX_ATTEMPTS, lost_as=outcome)
    return Transition(Verb.LOSE, State.QUEUED, EventName.RECLAIMED, lost=True, lost_as=outcome)


def _dead(
    verb: Verb, reason: DeadReason, *, error: JobError | None = None, lost_as: Lost | None = None
) -> Transition:
    return Transition(
        verb,
        State.DEAD,
        EventName.DLQ,
        failed=verb is Verb.NACK,
        lost=verb is Verb.LOSE,
        dead_reason=reason,
        error=error,
        lost_as=lost_as,
    )
