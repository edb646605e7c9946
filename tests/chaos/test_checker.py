"""The checker's own rules: for each a history that is legal, and one that is not (E39 i)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chaos.checker import RULES
from chaos.checker.timing import recovery_times, within
from chaos.facts import Call, Enqueue, EventFact, Facts, Fault, Final, Grant, Start

JOB = "job-1"


def event(seq: int, name: str, attempt: int = 0, at: float | None = None, **data: Any) -> EventFact:
    return EventFact(f"job.{name}", seq, attempt, float(seq) if at is None else at, data)


def grant(attempt: int, at: float, *, token: str | None = None, owner: str = "w1", seconds: float = 3.0) -> Grant:
    return Grant(JOB, attempt, token or f"t{attempt}", at, at + 0.01, seconds, owner, pid=attempt)


def start(attempt: int, at: float) -> Start:
    return Start(JOB, attempt, None, at, pid=attempt)


def call(
    verb: str, attempt: int, at: float, answer: str = "succeeded", *, token: str | None = None, **more: Any
) -> Call:
    facts = {"ended": at + 0.01, "phase": "ok", **more}
    return Call(verb, JOB, attempt, token or f"t{attempt}", at, answer=answer, **facts)


def once() -> Facts:
    """A job that was accepted, run and acked."""
    facts = Facts()
    facts.enqueues = [Enqueue("k1", "chaos.ok", 0.9, 1.0, "ok", JOB)]
    facts.events[JOB] = [event(1, "enqueued", at=0.95), event(2, "started", 1, 2.0), event(3, "completed", 1, 3.0)]
    facts.grants[JOB] = [grant(1, 1.995)]
    facts.starts[JOB] = [start(1, 2.1)]
    facts.calls[JOB] = [call("ack", 1, 2.995)]
    facts.finals[JOB] = Final(JOB, "chaos.ok", "succeeded", 1, 1, 5, 0, "k1")
    facts.counts = {"succeeded": 1}
    facts.seen = [(JOB, 1), (JOB, 2), (JOB, 3)]
    return facts


def twice() -> Facts:
    """A job whose first worker was killed; the second one, after the lease was over, acked it."""
    facts = once()
    facts.events[JOB] = [
        event(1, "enqueued", at=0.95),
        event(2, "started", 1, 2.0),
        event(3, "reclaimed", 1, 5.2, cause="expired"),
        event(4, "started", 2, 5.5),
        event(5, "completed", 2, 6.0),
    ]
    facts.grants[JOB] = [grant(1, 1.995), grant(2, 5.495, owner="w2")]
    facts.starts[JOB] = [start(1, 2.1), start(2, 5.6)]
    facts.calls[JOB] = [call("ack", 2, 5.995)]
    facts.finals[JOB] = replace(facts.finals[JOB], attempt=2, attempts=2, lost=1)
    facts.faults = [Fault("kill", 2.5, 2.5, pid=1)]
    facts.seen = [(JOB, seq) for seq in range(1, 6)]
    return facts


@pytest.mark.parametrize("legal", [once, twice])
@pytest.mark.parametrize("rule", RULES)
def test_a_legal_history_breaks_no_rule(rule: str, legal: Any) -> None:
    assert RULES[rule](legal()) == []


def lost() -> Facts:
    facts = once()
    del facts.finals[JOB]
    return facts


def unfinished() -> Facts:
    facts = once()
    facts.finals[JOB] = replace(facts.finals[JOB], state="running")
    return facts


def ended_twice() -> Facts:
    facts = once()
    facts.events[JOB].append(event(4, "dlq", 1, reason="max_attempts"))
    return facts


def goes_on_after_its_end() -> Facts:
    facts = once()
    facts.events[JOB].append(event(4, "started", 2))
    return facts


def nobody_asked() -> Facts:
    facts = once()
    facts.finals["job-2"] = replace(facts.finals[JOB], id="job-2", key="k2")
    return facts


def refused_and_there() -> Facts:
    facts = nobody_asked()
    facts.enqueues.append(Enqueue("k2", "chaos.ok", 0.9, 1.0, "fail", None))
    return facts


def started_without_a_lease() -> Facts:
    facts = once()
    facts.starts[JOB].append(start(2, 2.5))
    return facts


def started_before_its_lease() -> Facts:
    facts = once()
    facts.starts[JOB] = [start(1, 1.5)]
    return facts


def stale_ack() -> Facts:
    facts = twice()
    facts.calls[JOB].append(call("ack", 1, 5.7))
    return facts


def stale_beat() -> Facts:
    facts = twice()
    facts.calls[JOB].append(call("heartbeat", 1, 5.7, "beat"))
    return facts


def nack_after_the_end() -> Facts:
    facts = once()
    facts.calls[JOB].append(call("nack", 1, 4.0, "retrying"))
    return facts


def outcome_of_another_attempt() -> Facts:
    facts = twice()
    facts.events[JOB][-1] = event(5, "completed", 1, 6.0)
    return facts


def attempt_left_out() -> Facts:
    facts = twice()
    facts.events[JOB][3] = event(4, "started", 3, 5.5)
    return facts


def token_twice() -> Facts:
    facts = twice()
    facts.grants[JOB][1] = grant(2, 5.495, token="t1")
    return facts


def overdrawn() -> Facts:
    facts = twice()
    facts.finals[JOB] = replace(facts.finals[JOB], max_attempts=1)
    return facts


def miscounted() -> Facts:
    facts = twice()
    facts.finals[JOB] = replace(facts.finals[JOB], attempts=1)
    return facts


def taken_too_early() -> Facts:
    facts = twice()
    facts.beats["w1"] = [(4.0, 4.01)]
    return facts


def no_cause() -> Facts:
    facts = twice()
    del facts.events[JOB][2]
    return facts


def expired_for_no_reason() -> Facts:
    facts = twice()
    facts.faults = []
    return facts


def effect_missing() -> Facts:
    facts = once()
    facts.finals[JOB] = replace(facts.finals[JOB], type="chaos.effect")
    return facts


def effect_doubled() -> Facts:
    facts = effect_missing()
    facts.effects = {JOB: 2}
    return facts


def effect_of_a_dead_job() -> Facts:
    facts = effect_missing()
    facts.finals[JOB] = replace(facts.finals[JOB], state="dead")
    facts.effects = {JOB: 1}
    return facts


def key_with_two_jobs() -> Facts:
    facts = once()
    facts.enqueues.append(Enqueue("k1", "chaos.ok", 1.1, 1.2, "ok", "job-2"))
    return facts


def event_missing() -> Facts:
    facts = once()
    del facts.events[JOB][1]
    return facts


def last_event_is_another() -> Facts:
    facts = once()
    facts.finals[JOB] = replace(facts.finals[JOB], state="dead")
    return facts


def follower_missed_one() -> Facts:
    facts = once()
    facts.seen = [(JOB, 1), (JOB, 3)]
    return facts


def follower_missed_the_end() -> Facts:
    facts = once()
    facts.seen = [(JOB, 1), (JOB, 2)]
    return facts


def started_early() -> Facts:
    facts = once()
    facts.events[JOB][0] = event(1, "enqueued", at=0.95, run_at="1970-01-01T00:00:02.5Z")
    return facts


def retried_early() -> Facts:
    facts = twice()
    facts.events[JOB][2] = event(3, "failed", 1, 5.2, retry_in_ms=900)
    return facts


def counted_wrong() -> Facts:
    facts = once()
    facts.counts = {"succeeded": 2}
    return facts


def succeeded_without_a_run() -> Facts:
    facts = once()
    facts.starts[JOB] = []
    return facts


def succeeded_without_an_ack() -> Facts:
    facts = once()
    facts.calls[JOB] = [call("ack", 1, 2.995, "lease_lost")]
    return facts


def ack_undone() -> Facts:
    facts = once()
    facts.finals[JOB] = replace(facts.finals[JOB], state="dead")
    return facts


def fourth_life() -> Facts:
    facts = once()
    facts.events[JOB] = [event(1, "enqueued")] + [
        each
        for n in range(1, 5)
        for each in (event(2 * n, "started", n), event(2 * n + 1, "reclaimed", n, cause="crashed"))
    ]
    return facts


def dead_too_soon() -> Facts:
    facts = once()
    facts.events[JOB][2] = event(3, "dlq", 1, reason="crash_limit", cause="crashed")
    return facts


def second_lease_of_one_attempt() -> Facts:
    facts = twice()
    facts.grants[JOB].append(grant(2, 5.7, token="t9"))
    return facts


def refused_while_it_was_good() -> Facts:
    facts = once()
    facts.calls[JOB].insert(0, call("heartbeat", 1, 2.5, "lease_lost"))
    return facts


def cancelled_after_its_end() -> Facts:
    facts = once()
    facts.calls[JOB].append(replace(call("cancel", 0, 4.0, "cancelled"), token=""))
    return facts


ILLEGAL = [
    ("C1", lost),
    ("C1", unfinished),
    ("C2", ended_twice),
    ("C2", goes_on_after_its_end),
    ("C3", nobody_asked),
    ("C3", refused_and_there),
    ("C4", started_without_a_lease),
    ("C4", started_before_its_lease),
    ("C5", stale_ack),
    ("C5", stale_beat),
    ("C5", nack_after_the_end),
    ("C5", outcome_of_another_attempt),
    ("C6", attempt_left_out),
    ("C6", token_twice),
    ("C6", overdrawn),
    ("C6", miscounted),
    ("C6", second_lease_of_one_attempt),
    ("C7", taken_too_early),
    ("C8", no_cause),
    ("C8", expired_for_no_reason),
    ("C9", effect_missing),
    ("C9", effect_doubled),
    ("C9", effect_of_a_dead_job),
    ("C10", key_with_two_jobs),
    ("C11", event_missing),
    ("C11", last_event_is_another),
    ("C11", follower_missed_one),
    ("C11", follower_missed_the_end),
    ("C13", started_early),
    ("C13", retried_early),
    ("C16", counted_wrong),
    ("C17", succeeded_without_a_run),
    ("C17", succeeded_without_an_ack),
    ("C18", ack_undone),
    ("C19", fourth_life),
    ("C19", dead_too_soon),
    ("C20", stale_ack),
    ("C20", refused_while_it_was_good),
    ("C20", cancelled_after_its_end),
]


@pytest.mark.parametrize(("rule", "illegal"), ILLEGAL, ids=lambda value: getattr(value, "__name__", value))
def test_an_illegal_history_breaks_its_rule(rule: str, illegal: Any) -> None:
    found = RULES[rule](illegal())
    assert found
    assert {violation.rule for violation in found} == {rule}


def test_every_rule_has_an_illegal_history() -> None:
    assert {rule for rule, _ in ILLEGAL} == set(RULES)


# ── what is allowed and looks as if it were not ──


def test_an_answer_that_was_lost_may_stand_for_a_job_or_for_none() -> None:
    facts = once()
    facts.enqueues = [
        Enqueue("k1", "chaos.ok", 0.9, None, "info", None),
        Enqueue("k9", "x", 0.9, None, "info", None),
    ]
    assert all(RULES[rule](facts) == [] for rule in RULES)


def test_the_same_ack_again_is_answered_again() -> None:
    facts = once()
    facts.calls[JOB].append(call("ack", 1, 3.5, already=True))
    assert all(RULES[rule](facts) == [] for rule in RULES)


def test_an_ack_whose_answer_was_lost_explains_a_success() -> None:
    facts = once()
    facts.calls[JOB] = [call("ack", 1, 2.995, "", phase="info", ended=None)]
    assert all(RULES[rule](facts) == [] for rule in RULES)


def test_a_zombie_that_is_refused_is_as_it_should_be() -> None:
    facts = twice()
    facts.calls[JOB].append(call("ack", 1, 5.7, "lease_lost"))
    assert all(RULES[rule](facts) == [] for rule in RULES)


def test_recovery_counts_from_the_fault_to_the_next_start() -> None:
    facts = twice()
    assert recovery_times(facts) == pytest.approx([3.1])
    assert within(recovery_times(facts), 3.2) == []
    (violation,) = within(recovery_times(facts), 3.0)
    assert violation.rule == "C14"
