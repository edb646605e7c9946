"""E39 iii: a conformance suite that lets a broken engine pass is worth nothing. Each mutant must fail it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ropeway.testing.harness import MemoryHarness
from tests.engines import mutants
from tests.engines.mutants import MUTANTS, MutantHarness
from tests.engines.suite import run_suite

if TYPE_CHECKING:
    from collections.abc import Callable


def test_the_unbroken_engine_passes(caplog: pytest.LogCaptureFixture) -> None:
    outcome = run_suite(MemoryHarness(), fixtures={"caplog": caplog}, stop_at_first=False)
    assert outcome.failures == [], "\n".join(map(str, outcome.failures))
    assert outcome.passed > 200


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_engine_is_caught(
    name: str, caplog: pytest.LogCaptureFixture, record_property: Callable[[str, object], None]
) -> None:
    outcome = run_suite(MutantHarness(MUTANTS[name]), fixtures={"caplog": caplog})
    assert outcome.failures, f"{name} passes all {outcome.passed} cases of the suite"
    (failure,) = outcome.failures
    record_property("caught_by", failure.name)
    assert failure.raised_in != mutants.__file__, f"{name} broke down by itself: {failure}"
