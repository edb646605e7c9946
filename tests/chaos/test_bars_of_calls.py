"""The bars of experiments that make their calls themselves: for each a case that is right; others are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast
from uuid import uuid4

import pytest

from chaos.experiment import Bar, Run, Size
from chaos.experiments import batches, redrives, standbys
from chaos.experiments.batches import what_is_wrong, whole_batches
from chaos.experiments.direct import answered_right, both_ways
from chaos.experiments.redrives import redriven_once
from chaos.experiments.standbys import UNKNOWN, judged, nothing_without_a_copy
from chaos.facts import EventFact, Facts
from chaos.stage import RunBroken, Stage
from ropeway.core.errors import Indeterminate, JobEnded, LeaseLost, NotFound, RopewayError, Unavailable
from ropeway.core.states import State
from ropeway.engines.protocol import Settled

NOT_STORED, NOBODY_KNOWS = Unavailable("it took too long"), Indeterminate("the line was cut")


def _run(notes: Mapping[str, float], faults: int = 1) -> Run:
    return Run(cast("Stage", None), Size(1, 1), lambda: False, faults=faults, notes=dict(notes))


def _said(bar: Bar, run: Run, facts: Facts | None = None) -> list[str]:
    return [violation.words for violation in bar(facts or Facts(), run)]


# ── E11 ──


@pytest.mark.parametrize(
    ("known", "error", "wrong"),
    [
        ([False, False], NOT_STORED, None),
        ([False, False], NOBODY_KNOWS, None),
        ([True, True], NOBODY_KNOWS, None),
        ([True, True], NOT_STORED, "refused and stored"),
        ([True, False], NOBODY_KNOWS, "stored in part"),
        ([False, True], NOT_STORED, "stored in part"),
    ],
)
def test_a_batch_is_stored_whole_or_not_at_all(known: list[bool], error: RopewayError, wrong: str | None) -> None:
    assert what_is_wrong(known, error) == wrong


def test_batches_in_time_out_of_time_and_in_deadlocks_are_all_wanted() -> None:
    usual = dict.fromkeys(batches.WRONG, 0) | dict.fromkeys(batches.WANTED, 3)
    assert _said(whole_batches, _run(usual)) == []
    for name in batches.WRONG:
        assert _said(whole_batches, _run(usual | {name: 2})) == [f"2 batches were {name}"]
    for name in batches.WANTED:
        (words,) = _said(whole_batches, _run(usual | {name: 0}))
        assert "proves nothing" in words


# ── E28 ──

DONE = Settled(uuid4(), State.SUCCEEDED)
AGAIN = Settled(uuid4(), State.SUCCEEDED, already=True)


@pytest.mark.parametrize(
    ("answers", "right"),
    [
        ([DONE, LeaseLost("gone"), DONE], True),
        ([DONE, JobEnded("ended", status="cancelled"), DONE], True),
        # Any error is not the right one.
        ([DONE, NotFound("what?"), DONE], False),
        ([DONE, Unavailable("not now"), DONE], False),
        ([DONE, DONE, DONE], False),
        ([LeaseLost("gone"), LeaseLost("gone"), DONE], False),
        ([AGAIN, LeaseLost("gone"), DONE], False),
    ],
)
def test_all_but_the_stale_ticket_are_done(answers: list[Settled | RopewayError], right: bool) -> None:
    assert answered_right(answers, 1) is right


# ── E29 ──


def _expired() -> Facts:
    facts = Facts()
    facts.events["a"] = [EventFact("job.reclaimed", 3, 1, 1.0, {"cause": "expired"})]
    return facts


def test_races_of_both_kinds_and_expiries_are_wanted() -> None:
    usual = {"orders one after the other": 5, "orders at once": 5}
    assert _said(both_ways, _run(usual), _expired()) == []
    assert _said(both_ways, _run(usual)) == ["no lease expired: the run proves nothing"]
    (words,) = _said(both_ways, _run(usual | {"orders at once": 0}), _expired())
    assert words == "no orders at once: the run proves nothing"


# ── E27 ──


def _redriven(*times: int) -> Facts:
    """Jobs that were made to run again so many times each."""
    facts = Facts()
    for number in times:
        facts.events[str(uuid4())] = [EventFact("job.retried", seq + 5, 1, 1.0) for seq in range(number)]
    return facts


def _redrive(p99: float = 0.01, wanted: int = 2, faults: int = 1) -> Run:
    return _run({"list of the dead p99, s": p99, "to be redriven": wanted}, faults)


def test_everybody_runs_again_once() -> None:
    assert _said(redriven_once, _redrive(), _redriven(1, 0, 1)) == []
    assert _said(redriven_once, _redrive(), _redriven(1, 2)) == ["was made to run again 2 times"]
    assert _said(redriven_once, _redrive(), _redriven(1, 0)) == ["1 of 2 ran again"]
    assert _said(redriven_once, _redrive(p99=0.2), _redriven(1, 1)) == ["a page of the dead takes 0.2 s"]
    (words,) = _said(redriven_once, _redrive(faults=0), _redriven(1, 1))
    assert "proves nothing" in words


def test_what_cannot_be_checked_is_not_begun() -> None:
    redrives.enough_memory(1)
    with pytest.raises(RunBroken, match="GB of memory"):
        redrives.enough_memory(10**12)


# ── E07 ──


@pytest.mark.parametrize(
    ("error", "known", "words"),
    [
        (NOBODY_KNOWS, [True, True], [UNKNOWN]),
        (NOBODY_KNOWS, [True, False], [UNKNOWN, "stored in part"]),
        (NOT_STORED, [False, False], []),
        (NOT_STORED, [True, True], ["refused and stored"]),
        (None, [True, True], ["accepted without a copy"]),
        (RopewayError("500: oh"), [False, False], ["answered otherwise"]),
    ],
)
def test_without_a_copy_nobody_is_told_that_it_is_stored(
    error: RopewayError | None, known: list[bool], words: list[str]
) -> None:
    assert judged(error, known) == words


def test_commits_without_their_copy_are_wanted() -> None:
    usual = dict.fromkeys(standbys.WRONG, 0.0)
    assert _said(nothing_without_a_copy, _run(usual | {UNKNOWN: 3})) == []
    (words,) = _said(nothing_without_a_copy, _run(usual | {UNKNOWN: 0}))
    assert "proves nothing" in words
    for word in standbys.WRONG:
        assert _said(nothing_without_a_copy, _run(usual | {UNKNOWN: 3, word: 2})) == [f"2 calls were {word}"]
