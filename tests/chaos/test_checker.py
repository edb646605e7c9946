"""The checker's own rules: for each a history that is legal, and one that is not (E39 i)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chaos.checker import RULES
from chaos.checker.timing import recovery_times, within
from chaos.facts import Call, Enqueue, EventFact, Facts, Fault, Final, Grant, LostLease, Start

JOB = "job-1"


def event(seq: int, name: str, attempt: int = 0, at: float | None = None, **data: Any) -> EventFact:
    return EventFact(f"job.{name}", seq, attempt, float(seq) if at is None else at, data)


def grant(attempt: int, at: float, *, token: str | None = None, owner: str = "w1", seconds: float = 3.0) -> Grant:
    return Grant(JOB, attempt, token or f"t{attempt}", at, at + 0.01, seconds, owner, pid=attempt)


def start(attempt: int, at: float, *, token: str | None = None) -> Start:
    return Start(JOB, attempt, token or f"t{attempt}", at, pid=attempt)


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
    facts.faults = [Fault("kill", 2.5, 2.5, pid=1, whole=True)]
    facts.seen = [(JOB, seq) for seq in range(1, 6)]
    return facts


def crashed() -> Facts:
    """The same, but only the process that ran the handler died, and its supervisor said so."""
    facts = twice()
    facts.events[JOB][2] = event(3, "reclaimed", 1, 2.6, cause="crashed")
    facts.events[JOB][3:] = [event(4, "started", 2, 3.0), event(5, "completed", 2, 3.5)]
    facts.grants[JOB][1] = grant(2, 2.995, owner="w2")
    facts.starts[JOB][1] = start(2, 3.1)
    facts.calls[JOB] = [call("ack", 2, 3.495)]
    facts.faults = [Fault("kill", 2.5, 2.5, pid=1)]
    facts.names = {1: "worker0", 2: "worker1"}
    return facts


def pill() -> Facts:
    """The same, and it was the job itself that ended the process."""
    facts = crashed()
    facts.faults = [Fault("pill", 2.5, 2.5, pid=1)]
    return facts


def supervisor_stopped() -> Facts:
    """Whoever beat for the worker stood still for longer than the lease."""
    facts = twice()
    facts.beaters["w1"] = {50}
    facts.beats["w1"] = [(2.1, 2.11)]
    facts.faults = [Fault("pause", 2.0, 6.0, pid=50, whole=True)]
    return facts


def beat_unanswered() -> Facts:
    facts = twice()
    facts.faults = []
    facts.unanswered["w1"] = [3.0]
    return facts


def lease_never_told() -> Facts:
    """Who asked for the lease was killed before it heard of it: nobody knows the ticket, and nobody started."""
    facts = twice()
    del facts.grants[JOB][0], facts.starts[JOB][0]
    facts.lost_leases = [LostLease(1.99, pid=1)]
    return facts


def served() -> Facts:
    facts = once()
    facts.served = {"enqueued": 1, "deduplicated": 0}
    return facts


LEGAL = [once, twice, crashed, pill, supervisor_stopped, beat_unanswered, lease_never_told, served]


@pytest.mark.parametrize("legal", LEGAL)
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


def started_with_another_ticket() -> Facts:
    facts = twice()
    facts.starts[JOB][1] = start(2, 5.6, token="t1")
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


def given_up_too_soon() -> Facts:
    facts = once()
    facts.events[JOB][2] = event(3, "dlq", 1, 3.0, reason="max_attempts")
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


def another_worker_was_killed() -> Facts:
    facts = twice()
    facts.beaters["w1"] = {50}
    facts.faults = [Fault("kill", 2.5, 2.5, pid=99, whole=True)]
    return facts


def it_was_well_again() -> Facts:
    """The holder had stood still, but has been heard since: that does not explain what came a lease later."""
    facts = twice()
    facts.beats["w1"] = [(2.15, 2.16)]
    facts.faults = [Fault("pause", 2.0, 2.1, pid=1, whole=True)]
    return facts


def expired_by_a_wrong_clock() -> Facts:
    facts = twice()
    facts.faults = [Fault("clock", 2.5, 9.0)]
    return facts


def leased_by_nobody() -> Facts:
    facts = lease_never_told()
    facts.lost_leases = [LostLease(2.5, pid=1)]
    return facts


def crashed_alive() -> Facts:
    facts = crashed()
    facts.faults = [Fault("pause", 2.5, 4.0, pid=1), Fault("kill", 2.5, 2.5, pid=2)]
    return facts


def died_later() -> Facts:
    facts = crashed()
    facts.faults = [Fault("kill", 2.7, 2.7, pid=1)]
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


def effect_of_no_job() -> Facts:
    facts = once()
    facts.effects = {"job-9": 1}
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


def accepted_and_not_counted() -> Facts:
    facts = once()
    facts.enqueues.append(Enqueue("k2", "chaos.ok", 0.9, 1.0, "ok", "job-2"))
    return facts


def server_counts_too_few() -> Facts:
    facts = once()
    facts.served = {"enqueued": 0, "deduplicated": 0}
    return facts


def server_counts_too_many() -> Facts:
    facts = once()
    facts.served = {"enqueued": 2, "deduplicated": 0}
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


def third_death_for_another_reason() -> Facts:
    facts = once()
    facts.events[JOB] = [event(1, "enqueued")] + [
        each
        for n in range(1, 4)
        for each in (event(2 * n, "started", n), event(2 * n + 1, "reclaimed", n, cause="crashed"))
    ]
    facts.events[JOB][-1] = event(7, "dlq", 3, reason="max_attempts", cause="crashed")
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
    ("C4", started_with_another_ticket),
    ("C5", stale_ack),
    ("C5", stale_beat),
    ("C5", nack_after_the_end),
    ("C5", outcome_of_another_attempt),
    ("C6", attempt_left_out),
    ("C6", token_twice),
    ("C6", overdrawn),
    ("C6", given_up_too_soon),
    ("C6", miscounted),
    ("C6", second_lease_of_one_attempt),
    ("C7", taken_too_early),
    ("C8", no_cause),
    ("C8", expired_for_no_reason),
    ("C8", another_worker_was_killed),
    ("C8", it_was_well_again),
    ("C8", expired_by_a_wrong_clock),
    ("C8", leased_by_nobody),
    ("C8", crashed_alive),
    ("C8", died_later),
    ("C9", effect_missing),
    ("C9", effect_doubled),
    ("C9", effect_of_a_dead_job),
    ("C9", effect_of_no_job),
    ("C10", key_with_two_jobs),
    ("C11", event_missing),
    ("C11", last_event_is_another),
    ("C11", follower_missed_one),
    ("C11", follower_missed_the_end),
    ("C13", started_early),
    ("C13", retried_early),
    ("C16", counted_wrong),
    ("C16", accepted_and_not_counted),
    ("C16", server_counts_too_few),
    ("C16", server_counts_too_many),
    ("C17", succeeded_without_a_run),
    ("C17", succeeded_without_an_ack),
    ("C18", ack_undone),
    ("C19", fourth_life),
    ("C19", dead_too_soon),
    ("C19", third_death_for_another_reason),
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


def test_a_retry_counts_from_within_the_report_of_its_failure() -> None:
    """A statement with very many of them takes long, and writes its events when it is done."""
    facts = retried_early()
    facts.calls[JOB].append(call("nack", 1, 4.5, "retrying"))
    assert RULES["C13"](facts) == []
    facts.calls[JOB][-1] = call("nack", 1, 4.7, "retrying")
    assert [violation.rule for violation in RULES["C13"](facts)] == ["C13"]


def test_the_same_ack_again_is_answered_again() -> None:
    facts = once()
    facts.calls[JOB].append(call("ack", 1, 3.5, already=True))
    assert all(RULES[rule](facts) == [] for rule in RULES)


def test_an_ack_whose_answer_was_lost_explains_a_success() -> None:
    facts = once()
    facts.calls[JOB] = [call("ack", 1, 2.995, "", phase="info", ended=None)]
    assert all(RULES[rule](facts) == [] for rule in RULES)


def test_who_asks_again_by_itself_may_hear_of_its_own_first_try() -> None:
    """A client of a server does, when an answer is lost; its history has one call."""
    facts = once()
    facts.calls[JOB] = [call("ack", 1, 2.995, already=True, repeats=True)]
    assert all(RULES[rule](facts) == [] for rule in RULES)
    facts.calls[JOB] = [call("ack", 1, 2.995, "terminal", repeats=True)]
    assert RULES["C20"](facts) == []


@pytest.mark.parametrize("answer", [{"already": True}, {"answer": "terminal"}], ids=["already", "refused"])
def test_who_asks_once_hears_of_nothing_before(answer: dict[str, Any]) -> None:
    facts = once()
    facts.calls[JOB] = [replace(call("ack", 1, 2.995), **answer)]
    assert [violation.rule for violation in RULES["C20"](facts)] == ["C20"]


def given_back() -> Facts:
    """The answer to a claim was lost, and its worker ended the grant by name (`end_grants`), which released the
    job. Another worker acked it."""
    facts = once()
    facts.events[JOB] = [
        event(1, "enqueued", at=0.95),
        event(2, "started", 1, 2.0),
        event(3, "released", 1, 3.0),
        event(4, "started", 2, 5.5),
        event(5, "completed", 2, 6.0),
    ]
    facts.grants[JOB] = [grant(2, 5.495, owner="w2")]
    facts.starts[JOB] = [start(2, 5.6)]
    facts.calls[JOB] = [call("ack", 2, 5.995)]
    facts.finals[JOB] = Final(JOB, "chaos.ok", "succeeded", 2, 1, 5, 0, "k1")
    facts.seen = [(JOB, seq) for seq in range(1, 6)]
    return facts


def test_a_release_after_the_end_of_its_grant_is_answered_as_done() -> None:
    """A client that missed a claim's answer gives back each ticket of it. Its worker may have been first."""
    facts = given_back()
    facts.calls[JOB].append(call("release", 1, 3.2, "queued", already=True))
    assert all(RULES[rule](facts) == [] for rule in RULES)
    facts.grants[JOB].insert(0, grant(1, 1.995))
    assert RULES["C20"](facts) == [], "also when the ticket is known"


def test_a_loss_that_upkeep_saw_first_is_answered_as_done() -> None:
    facts = twice()
    facts.calls[JOB].append(call("lose", 1, 5.3, "queued", already=True))
    assert RULES["C20"](facts) == []
    facts.grants[JOB] = [grant(2, 5.495, owner="w2")]
    assert RULES["C20"](facts) == [], "also when the ticket is not known"


@pytest.mark.parametrize(
    "calls",
    [
        [call("ack", 1, 3.2, already=True)],
        [call("lose", 1, 3.2, "queued", already=True)],
        [call("release", 1, 5.7, "queued", already=True)],
        [call("release", 1, at, "queued", token=token, already=True) for at, token in ((3.2, "t1"), (3.3, "x"))],
        [call("release", 1, 3.2, "queued"), call("release", 1, 3.3, "queued")],
    ],
    ids=["another verb", "a loss", "after a newer claim", "two tickets", "two releases"],
)
def test_what_ended_with_its_grant_is_answered_as_nothing_else(calls: list[Call]) -> None:
    facts = given_back()
    facts.calls[JOB] += calls
    assert [violation.rule for violation in RULES["C20"](facts)] == ["C20"]


def test_a_release_without_an_answer_need_not_be_the_one_that_happened() -> None:
    """It was asked for when the grant had ended and the job was somebody else's."""
    facts = given_back()
    facts.calls[JOB].append(call("release", 1, 5.7, "", phase="info", ended=None))
    assert RULES["C20"](facts) == []


def test_a_loss_that_is_told_too_late_is_refused() -> None:
    facts = twice()
    facts.calls[JOB].append(call("lose", 1, 5.7, "lease_lost"))
    assert RULES["C20"](facts) == []


def test_a_loss_is_told_with_the_right_ticket() -> None:
    facts = twice()
    facts.calls[JOB].append(call("lose", 1, 5.195, "queued", token="x"))
    assert [violation.rule for violation in RULES["C20"](facts)] == ["C20"]
    facts.calls[JOB][-1] = call("lose", 1, 5.195, "queued")
    assert RULES["C20"](facts) == []


def test_a_loss_without_an_answer_need_not_be_the_one_that_happened() -> None:
    facts = twice()
    facts.calls[JOB].append(call("lose", 1, 5.7, "", phase="info", ended=None))
    assert RULES["C20"](facts) == []


def test_a_zombie_that_is_refused_is_as_it_should_be() -> None:
    facts = twice()
    facts.calls[JOB].append(call("ack", 1, 5.7, "lease_lost"))
    assert all(RULES[rule](facts) == [] for rule in RULES)


# ── a database whose clock is stepped ──

HOUR = 3_600.0


def stepped(by: float) -> Facts:
    """As `twice`, but what took the lease away is a step of the clock, at 3.0."""
    facts = twice()
    facts.span, facts.steps = (0.0, 10.0), [(3.0, by)]
    facts.faults = [Fault("database clock", 3.0, 3.0)]
    facts.events[JOB][2:] = [
        event(3, "reclaimed", 1, 3.2 + by, cause="expired"),
        event(4, "started", 2, 5.5 + by),
        event(5, "completed", 2, 6.0 + by),
    ]
    return facts


def test_a_step_forward_may_end_a_lease() -> None:
    facts = stepped(HOUR)
    assert all(RULES[rule](facts) == [] for rule in RULES)


def test_a_step_back_ends_none() -> None:
    facts = stepped(-HOUR)
    assert RULES["C11"](facts) == []
    assert [violation.rule for violation in RULES["C7"](facts)] == ["C7"]


def test_a_start_that_looked_at_the_clock_before_it_was_put_back_is_not_early() -> None:
    facts = once()
    facts.span, facts.steps = (0.0, 10.0), [(1.9, -HOUR)]
    facts.events[JOB][1:] = [event(2, "started", 1, 2.0 - HOUR), event(3, "completed", 1, 3.0 - HOUR)]
    facts.grants[JOB] = [replace(grant(1, 1.995), due=1.8)]
    assert RULES["C13"](facts) == []
    facts.steps = [(0.96, -HOUR)]
    assert [violation.rule for violation in RULES["C13"](facts)] == ["C13"]


def test_a_time_is_of_the_moment_at_which_the_clock_showed_it() -> None:
    facts = Facts(epoch=1_000.0, span=(0.0, 40.0), steps=[(10.0, HOUR), (20.0, 0.0), (30.0, -HOUR)])
    shown = {5.0: 0.0, 15.0: HOUR, 25.0: 0.0, 35.0: -HOUR}
    assert [facts.when(1_000.0 + at + error) for at, error in shown.items()] == pytest.approx(list(shown))
    # Written down a moment after it was done.
    assert facts.when(1_000.0 + 9.99 + HOUR) == pytest.approx(9.99)


# ── C14 ──


def test_recovery_counts_from_the_fault_to_the_next_start() -> None:
    times = recovery_times(twice())
    assert (times.whole, times.child) == (pytest.approx([3.1]), [])
    assert within(times.whole, 3.2, "a worker") == []
    (violation,) = within(times.whole, 3.0, "a worker")
    assert violation.rule == "C14"


@pytest.mark.parametrize("legal", [crashed, pill])
def test_who_dies_under_a_supervisor_is_counted_apart(legal: Any) -> None:
    times = recovery_times(legal())
    assert (times.whole, times.child) == ([], pytest.approx([0.6]))


def killed_again_before_it_started(*, whole: bool) -> Facts:
    """The second worker was killed too, at 2.8: it had the job and had not begun it. A third one did."""
    facts = crashed()
    cause = {"cause": "expired"} if whole else {}
    facts.events[JOB][3:] = [
        event(4, "started", 2, 2.7),
        event(5, "reclaimed" if whole else "released", 2, 5.8 if whole else 2.9, **cause),
        event(6, "started", 3, 6.0),
        event(7, "completed", 3, 6.5),
    ]
    facts.grants[JOB][1:] = [grant(2, 2.695, owner="w2"), grant(3, 5.995, owner="w3")]
    facts.starts[JOB][1] = start(3, 6.1)
    facts.faults.append(Fault("kill", 2.8, 2.8, pid=2, whole=whole, worker="worker1"))
    return facts


@pytest.mark.parametrize("whole", [True, False])
def test_recovery_counts_from_the_last_interruption(whole: bool) -> None:
    times = recovery_times(killed_again_before_it_started(whole=whole))
    assert (times.whole if whole else times.child) == pytest.approx([3.3])
    assert len(times.whole) + len(times.child) == 1


def test_who_only_gives_it_back_does_not_begin_the_wait_anew() -> None:
    facts = killed_again_before_it_started(whole=False)
    facts.faults.pop()
    assert recovery_times(facts).child == pytest.approx([3.6])


def test_when_a_pill_was_ended_by_another_is_not_known() -> None:
    facts = pill()
    facts.faults = [Fault("pill", 2.5, 30.0, pid=1)]
    assert recovery_times(facts) == ([], [])
    assert RULES["C8"](facts) == []


@pytest.mark.parametrize(
    ("more", "supervised"),
    [
        (Fault("kill", 2.55, 2.55, pid=50, whole=True, worker="worker0"), False),
        (Fault("kill", 2.55, 2.55, pid=50), False),
        (Fault("kill", 2.9, 2.9, pid=50, whole=True, worker="worker0"), True),
        (Fault("kill", 2.55, 2.55, pid=60, whole=True, worker="worker1"), True),
        (Fault("kill", 2.55, 2.55, pid=51), True),
    ],
    ids=["all of it is killed", "so is its supervisor", "too late", "another worker", "its next child"],
)
def test_a_child_whose_supervisor_is_lost_too_has_none(more: Fault, supervised: bool) -> None:
    """The supervisor had not yet said that the child is dead: the lease has to end."""
    facts = crashed()
    facts.beaters["w1"] = {50}
    facts.names |= {50: "worker0", 51: "worker0", 60: "worker1"}
    facts.faults.append(more)
    times = recovery_times(facts)
    assert (len(times.child), len(times.whole)) == ((1, 0) if supervised else (0, 1))


def test_where_nobody_had_to_recover_nothing_is_shown() -> None:
    (violation,) = within([], 5.0, "a worker")
    assert (violation.rule, "proves nothing" in violation.words) == ("C14", True)
