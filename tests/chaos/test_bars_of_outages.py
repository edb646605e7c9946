"""The bars of experiments in which the database is away, is replaced, or lives by a wrong clock."""

from __future__ import annotations

from typing import cast

import pytest

from chaos.checker import Violation
from chaos.experiment import Run, Size
from chaos.experiments.clocks import STEP, only_steps_forward_take_leases
from chaos.experiments.databases import back_in_time
from chaos.experiments.failover import LAG, loss_is_told, lost_with_the_primary
from chaos.facts import CLOCK_STEP, Call, Enqueue, EventFact, Facts, Fault, Final, Grant, Start
from chaos.stage import Stage

JOB = "job-1"


def _run() -> Run:
    return Run(cast("Stage", None), Size(1, 1), lambda: False)


# ── E04, E05: back to what it was ──


def _load(*spans: tuple[float, float], rate: float = 40.0, until: float = 60.0) -> Facts:
    """Starts at that rate in each of the spans; jobs are asked for until then."""
    facts = Facts()
    for begin, end in spans:
        number = int((end - begin) * rate)
        facts.starts[f"{begin}"] += [
            Start("x", 1, None, begin + (end - begin) * place / number, 7) for place in range(number)
        ]
    facts.enqueues = [Enqueue("k", "chaos.ok", until, until, "ok", "x")]
    facts.faults = [Fault("database", 20.0, 22.0)]
    return facts


def _judged(facts: Facts) -> tuple[list[str], dict[str, float]]:
    run = _run()
    return [violation.words for violation in back_in_time(facts, run)], run.notes


def test_starts_are_soon_as_frequent_as_before() -> None:
    assert _judged(_load((10.0, 20.0), (24.0, 60.0))) == (
        [],
        {"outages measured": 1, "back to 90 %, longest, s": 2.0},
    )


def test_starts_that_come_back_late() -> None:
    ((words,), notes) = _judged(_load((10.0, 20.0), (34.0, 60.0)))
    assert words == "12.0 s until 90 % of 40 starts/s were back"
    assert notes["outages measured"] == 1


def test_starts_that_never_come_back_while_jobs_are_asked_for() -> None:
    ((words,), _) = _judged(_load((10.0, 20.0)))
    assert words == "38.0 s until 90 % of 40 starts/s were back"


@pytest.mark.parametrize(
    "facts",
    [
        # The load is over before anything can be told.
        _load((10.0, 20.0), until=25.0),
        # There was hardly any before.
        _load((10.0, 20.0), (24.0, 60.0), rate=10.0),
        Facts(),
    ],
)
def test_outages_of_which_nothing_can_be_told_prove_nothing(facts: Facts) -> None:
    ((words,), notes) = _judged(facts)
    assert "proves nothing" in words
    assert notes["outages measured"] == 0


# ── E06A: what is lost with the primary ──


def _failed_over(accepted: float) -> Facts:
    """A job that was accepted then and is gone; the standby heard its last at 10, and took over at 12."""
    facts = Facts(faults=[Fault("failover", 10.0, 12.0)])
    facts.enqueues = [Enqueue("k", "chaos.ok", accepted - 0.1, accepted, "ok", JOB)]
    return facts


GONE = Violation("C1", JOB, "was accepted and is gone")


@pytest.mark.parametrize(("accepted", "forgiven"), [(10.5, True), (10.0 - LAG - 0.1, False), (12.1, False)])
def test_what_was_accepted_in_the_last_moments_may_be_lost(accepted: float, forgiven: bool) -> None:
    assert lost_with_the_primary(_failed_over(accepted), GONE) is forgiven


def test_what_does_not_follow_from_a_loss_is_not_forgiven() -> None:
    facts = _failed_over(10.5)
    assert not lost_with_the_primary(facts, Violation("C2", JOB, "ended 2 times"))
    # Its ack is gone, so that it runs as far as the store knows; then it has to run again, and to end.
    facts.finals[JOB] = Final(JOB, "chaos.ok", "running", 1, 1, 5, 0, "k")
    assert not lost_with_the_primary(facts, Violation("C1", JOB, "was accepted and is running after the drain"))


def test_a_beat_of_the_last_moments_may_be_lost_but_explains_no_loss_of_a_job() -> None:
    facts = _failed_over(5.0)
    facts.grants[JOB] = [Grant(JOB, 1, "t1", 8.0, 8.1, 3.0, "w1", 7)]
    facts.beats["w1"] = [(10.2, 10.3)]
    assert lost_with_the_primary(facts, Violation("C7", JOB, "attempt 1 expired 0.5 s too early"))
    assert not lost_with_the_primary(facts, GONE)


def test_the_loss_is_told_and_none_shows_nothing() -> None:
    run, facts = _run(), _failed_over(10.5)
    assert loss_is_told(facts, run) == []
    assert run.notes["accepted and lost"] == 1
    facts.finals[JOB] = Final(JOB, "chaos.ok", "succeeded", 1, 1, 5, 0, "k")
    (violation,) = loss_is_told(facts, _run())
    assert "proves nothing" in violation.words


def test_counts_without_those_that_are_gone_are_right() -> None:
    facts = _failed_over(10.5)
    facts.finals["another"] = Final("another", "chaos.ok", "succeeded", 1, 1, 5, 0, "k2")
    missing = Violation("C16", "-", "2 accepted and 0 recovered jobs, 1 are counted")
    facts.counts = {"succeeded": 1}
    assert lost_with_the_primary(facts, missing)
    facts.counts = {"succeeded": 2}
    assert not lost_with_the_primary(facts, missing)


def test_an_ack_of_the_last_moments_may_be_undone() -> None:
    facts = _failed_over(5.0)
    facts.grants[JOB] = [Grant(JOB, 1, "t1", 8.0, 8.1, 3.0, "w1", 7)]
    undone = Violation("C18", JOB, "was acked and is running")
    for ended, lost in ((10.4, True), (8.4, False)):
        facts.calls[JOB] = [Call("ack", JOB, 1, "t1", ended - 0.1, ended, "ok", "succeeded")]
        assert lost_with_the_primary(facts, undone) is lost


# ── E15: the database's clock steps ──


def _stepped(*steps: tuple[float, float], expired: float, killed: float | None = None) -> list[str]:
    """A lease asked for at 10 expired then. The clock was put so wrong at those times, its worker killed then."""
    facts = Facts(steps=list(steps), span=(0.0, 100.0), faults=[Fault(CLOCK_STEP, at, at) for at, _ in steps])
    if killed is not None:
        facts.faults.append(Fault("kill", killed, killed, pid=7))
    wrong = [0.0, *(offset for at, offset in steps if at <= expired)][-1]
    facts.grants[JOB] = [Grant(JOB, 1, "t1", 10.0, 10.1, 3.0, "w1", 7)]
    facts.events[JOB] = [EventFact("job.reclaimed", 3, 1, expired + wrong, {"cause": "expired"})]
    return [violation.words for violation in only_steps_forward_take_leases(facts, _run())]


NOBODYS_FAULT = "attempt 1 expired, and no step forward took it"
NONE_TAKEN = "no leases taken by steps forward: the run proves nothing"


@pytest.mark.parametrize("begins", [0.0, -STEP])
def test_a_step_forward_may_take_a_lease(begins: float) -> None:
    assert _stepped((4.0, STEP), (5.0, begins), (11.0, begins + STEP), expired=12.0) == []


def test_a_step_back_takes_none() -> None:
    assert _stepped((5.0, STEP), (11.0, 0.0), expired=14.0) == [NOBODYS_FAULT, NONE_TAKEN]


def test_a_step_forward_before_or_after_the_lease_takes_none() -> None:
    words = _stepped((4.0, -STEP), (9.0, 0.0), (20.0, STEP), expired=14.0)
    assert words == [NOBODYS_FAULT, NONE_TAKEN]


def test_a_worker_that_was_killed_loses_its_lease_whatever_the_clock_says() -> None:
    assert _stepped((5.0, STEP), (6.0, 0.0), expired=14.0, killed=11.0) == [NONE_TAKEN]
    assert _stepped((5.0, STEP), (6.0, 0.0), expired=14.0, killed=9.0) == [NOBODYS_FAULT, NONE_TAKEN]


def test_without_steps_nothing_is_shown() -> None:
    words = [violation.words for violation in only_steps_forward_take_leases(Facts(), _run())]
    assert [each.rpartition(": ")[2] for each in words] == ["the run proves nothing"] * 3
