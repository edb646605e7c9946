"""decide: the fate of a run, for every outcome."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeway.core.decide import DONE, JobFacts, Rules, Transition, decide
from ropeway.core.outcome import Done, Failed, Lost, Outcome, Released, Snoozed
from ropeway.core.payload import JobError
from ropeway.core.retry import MAX_DELAY, RetryPolicy
from ropeway.core.states import TABLE, DeadReason, EventName, State, Verb

ERROR = JobError("E", "boom")
STEADY = RetryPolicy(base=10.0, factor=2.0, cap=100.0, jitter=0.0)
RULES = Rules(retry=STEADY)


def facts(**known: int | RetryPolicy) -> JobFacts:
    return JobFacts(**{"attempts": 1, "max_attempts": 5, "failures": 0, "lost": 0, **known})  # type: ignore[arg-type]


def test_done_is_done_whatever_the_job() -> None:
    assert decide(facts(attempts=5, lost=2), Done(b"1"), 0.5, RULES) is DONE
    assert (DONE.verb, DONE.target, DONE.event) == (Verb.ACK, State.SUCCEEDED, EventName.COMPLETED)
    assert (DONE.refund, DONE.failed, DONE.lost) == (False, False, False)


@pytest.mark.parametrize(("attempts", "delay"), [(1, 10), (2, 20), (3, 40), (4, 80)])
def test_a_failure_is_retried_after_a_growing_delay(attempts: int, delay: float) -> None:
    assert decide(facts(attempts=attempts), Failed(ERROR), 0.5, RULES) == Transition(
        Verb.NACK, State.RETRYING, EventName.FAILED, delay=delay, failed=True, error=ERROR
    )


def test_the_jobs_own_policy_goes_before_the_rules() -> None:
    own = facts(retry=RetryPolicy(base=3.0, jitter=0.0))
    assert decide(own, Failed(ERROR), 0.5, RULES).delay == 3.0


def test_jitter_spreads_the_delay() -> None:
    rules = Rules(retry=RetryPolicy(base=100.0, jitter=0.25))
    low, high = (decide(facts(), Failed(ERROR), jitter, rules).delay for jitter in (0.0, 0.999999))
    assert low == 75.0
    assert high == pytest.approx(125.0, abs=0.01)


@pytest.mark.parametrize(
    ("asked", "delay"),
    [(7.0, 7.0), (0.0, 0.0), (-1.0, 0.0), (1e308, MAX_DELAY), (math.inf, MAX_DELAY), (math.nan, 10)],
)
def test_retry_after_goes_before_every_policy(asked: float, delay: float) -> None:
    assert decide(facts(), Failed(ERROR, retry_after=asked), 0.5, RULES).delay == delay


def test_no_attempts_left_is_dead() -> None:
    assert decide(facts(attempts=5), Failed(ERROR, retry_after=1.0), 0.5, RULES) == Transition(
        Verb.NACK,
        State.DEAD,
        EventName.DLQ,
        failed=True,
        dead_reason=DeadReason.MAX_ATTEMPTS,
        error=ERROR,
    )


@pytest.mark.parametrize("reason", [DeadReason.REJECTED, DeadReason.BAD_PAYLOAD])
def test_a_refused_retry_is_dead_at_once(reason: DeadReason) -> None:
    transition = decide(facts(), Failed(ERROR, retry=False, reason=reason), 0.5, RULES)
    assert (transition.target, transition.dead_reason, transition.delay) == (State.DEAD, reason, None)
    assert transition.detail() == {"reason": reason.value}


def test_a_rejection_is_called_so_even_with_the_last_attempt() -> None:
    transition = decide(facts(attempts=5), Failed(ERROR, retry=False), 0.5, RULES)
    assert transition.dead_reason is DeadReason.REJECTED


@pytest.mark.parametrize(("failures", "state"), [(0, State.SCHEDULED), (2, State.RETRYING)])
def test_a_snooze_gives_the_attempt_back(failures: int, state: State) -> None:
    then = datetime(2026, 1, 1, tzinfo=UTC)
    assert decide(facts(failures=failures), Snoozed(delay=5.0), 0.5, RULES) == Transition(
        Verb.SNOOZE, state, EventName.SNOOZED, delay=5.0, refund=True
    )
    assert decide(facts(failures=failures), Snoozed(run_at=then), 0.5, RULES) == Transition(
        Verb.SNOOZE, state, EventName.SNOOZED, run_at=then, refund=True
    )


def test_a_release_gives_attempt_and_place_back() -> None:
    assert decide(facts(attempts=5), Released(), 0.5, RULES) == Transition(
        Verb.RELEASE, State.QUEUED, EventName.RELEASED, refund=True
    )


def test_a_loss_keeps_the_place_and_uses_the_attempt() -> None:
    lost = Lost("crashed", exit_code=137, signal=9, peak_rss_bytes=1_000)
    transition = decide(facts(lost=1), lost, 0.5, RULES)
    assert transition == Transition(Verb.LOSE, State.QUEUED, EventName.RECLAIMED, lost=True, lost_as=lost)
    assert transition.detail() == {"cause": "crashed", "exit_code": 137, "signal": 9, "peak_rss_bytes": 1_000}


def test_the_third_loss_is_the_crash_limit_whatever_the_budget() -> None:
    transition = decide(facts(attempts=3, max_attempts=25, lost=2), Lost("expired"), 0.5, RULES)
    assert (transition.target, transition.dead_reason) == (State.DEAD, DeadReason.CRASH_LIMIT)
    assert transition.detail() == {"reason": "crash_limit", "cause": "expired"}


def test_a_loss_of_the_last_attempt_is_dead() -> None:
    transition = decide(facts(attempts=5), Lost("expired"), 0.5, RULES)
    assert (transition.target, transition.dead_reason) == (State.DEAD, DeadReason.MAX_ATTEMPTS)


outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Done, st.none() | st.binary()),
    st.builds(Failed, st.just(ERROR), st.booleans(), st.none() | st.floats(), st.sampled_from(DeadReason)),
    st.builds(Snoozed, delay=st.floats(0, 1e8)),
    st.builds(Released),
    st.builds(Lost, st.sampled_from(["expired", "crashed"]), st.none() | st.integers()),
)
policies = st.builds(
    RetryPolicy,
    base=st.floats(0, 100),
    factor=st.floats(1, 100),
    cap=st.floats(100, MAX_DELAY),
    jitter=st.floats(0, 1),
    shape=st.sampled_from(["around", "within", "above", "below", "seconds"]),
)


@given(
    attempts=st.integers(1, 25),
    max_attempts=st.integers(1, 25),
    failures=st.integers(0, 25),
    lost=st.integers(0, 25),
    policy=st.none() | policies,
    outcome=outcomes,
    jitter=st.floats(0, 1, exclude_max=True),
    limit=st.integers(1, 5),
)
def test_whatever_happens_the_decision_can_be_written(
    attempts: int,
    max_attempts: int,
    failures: int,
    lost: int,
    policy: RetryPolicy | None,
    outcome: Outcome,
    jitter: float,
    limit: int,
) -> None:
    job = JobFacts(attempts, max_attempts, failures, lost, policy)
    transition = decide(job, outcome, jitter, Rules(crash_limit=limit))
    arrows = {(arrow.target, arrow.event) for arrow in TABLE[State.RUNNING, outcome.verb].arrows}
    assert (transition.target, transition.event) in arrows
    if isinstance(outcome, Failed) and transition.delay is not None:
        assert 0 <= transition.delay <= MAX_DELAY
    assert transition.refund == isinstance(outcome, Snoozed | Released)
    assert (transition.dead_reason is not None) == (transition.target is State.DEAD)
    if transition.target is State.DEAD:
        assert transition.delay is None
    # A job never has more runs than its budget, nor more losses than the limit (C6, C19).
    if transition.target in (State.RETRYING, State.QUEUED) and not transition.refund:
        assert attempts < max_attempts
    if isinstance(outcome, Lost) and transition.target is State.QUEUED:
        assert lost + 1 < limit
