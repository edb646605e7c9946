"""E39 iii: a conformance suite that lets a broken engine pass is worth nothing. Each mutant must fail it.

Which test caught a mutant is recorded as the property `caught_by` of the test (see pytest's --junit-xml).
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

import pytest

from ropeway.testing.harness import MemoryHarness, SqliteHarness
from ropeway.testing.model import Broken, run_model
from tests.engines import mutants, suite
from tests.engines.mutants import MUTANTS, SQLITE_MUTANTS, MutantHarness, altered
from tests.engines.suite import run_suite

if TYPE_CHECKING:
    from ropeway.testing.conformance.subject import Harness

#: What random programs have no eye for: they make no schedules, hear no signals, log nothing, report nobody and do
#: nothing with tenants' keys, limits and operators' actions.
OUT_OF_SIGHT = {
    "AbsentWorkersListed",
    "AbsentWorkersNeverForgotten",
    "ActionsNeverPruned",
    "ActionsPageSeenTwice",
    "AskingTakesTheKeys",
    "BucketHasNoBrim",
    "BucketNeverRefilled",
    "BucketOfAllTenants",
    "BucketsNeverForgotten",
    "LinesAllKept",
    "LogUnfenced",
    "NoWakeUp",
    "PausedScheduleFires",
    "RevokedLater",
    "RotationEndsNothing",
    "RotationProlongs",
    "RotationRevives",
    "ScheduleFiredTwice",
    "SecretDrawnAnew",
    "TenantLeakInActions",
    "TenantLeakInKeys",
    "TenantLeakInRevoke",
    "TenantNameTwice",
    "UniqueRulesKeepNobodyOut",
    "UseOfTenantNotNoted",
}


@pytest.mark.slow
@pytest.mark.parametrize("harness", [MemoryHarness(), SqliteHarness()], ids=lambda harness: harness.name)
def test_an_engine_that_is_not_broken_passes(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    outcome = run_suite(harness, fixtures={"caplog": caplog}, stop_at_first=False)
    assert outcome.failures == [], "\n".join(map(str, outcome.failures))
    assert outcome.passed > 200


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_memory_engine_is_caught(
    name: str, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    outcome = run_suite(MutantHarness(MUTANTS[name]), fixtures={"caplog": caplog})
    request.node.user_properties.append(("caught_by", caught_by(name, outcome)))


@pytest.mark.slow
@pytest.mark.parametrize("name", SQLITE_MUTANTS)
def test_a_broken_sqlite_engine_is_caught(
    name: str, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    with altered(SQLITE_MUTANTS[name]):
        outcome = run_suite(SqliteHarness(), fixtures={"caplog": caplog})
    request.node.user_properties.append(("caught_by", caught_by(name, outcome)))


def caught_by(name: str, outcome: suite.Outcome) -> str:
    """The test that failed; neither the mutant itself nor the driver may be what broke."""
    assert outcome.failures, f"{name} passes all {outcome.passed} cases of the suite"
    (failure,) = outcome.failures
    assert failure.raised_in not in (mutants.__file__, suite.__file__), f"{name} broke down by itself: {failure}"
    return failure.name


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MUTANTS if name not in OUT_OF_SIGHT])
def test_random_programs_catch_it_too(name: str) -> None:
    with pytest.raises(Broken):
        run_model(MutantHarness(MUTANTS[name]), examples=1_000, steps=50, shortening=0)


def test_the_driver_finds_the_whole_suite() -> None:
    names = [case.name for case in suite.cases()]
    assert len(names) > 400
    assert len(set(names)) == len(names), "two cases have one name: a parameter was lost"


def test_no_part_of_the_suite_is_left_out() -> None:
    written = {
        name
        for module in pkgutil.iter_modules(suite.conformance.__path__)
        for name in vars(importlib.import_module(f"{suite.conformance.__name__}.{module.name}"))
        if name.startswith("Test")
    }
    assert written == {name for name in suite.conformance.__all__ if name.startswith("Test")}


def test_the_driver_says_so_when_there_is_nothing_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite.conformance, "__all__", [])
    with pytest.raises(AssertionError, match="only 0 cases"):
        run_suite(MemoryHarness())


def test_an_alteration_that_changes_nothing_is_refused() -> None:
    stale = SQLITE_MUTANTS["ack unfenced"]._replace(old="no such text")
    with pytest.raises(LookupError, match="no such text"), altered(stale):
        pass
