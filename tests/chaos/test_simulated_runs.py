"""The checker on whole histories: none of the right engine's is illegal, and every broken engine is found out."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.mutants import MUTANTS, AckUnfenced, NackUnfenced, NoCrashLimit
from chaos.real_simulation import simulate_real
from chaos.simulation import simulate
from ropeway.engines.memory import MemoryEngine

#: Seeds that once showed a fault, of the engine or of the checker. They stay.
KEPT_SEEDS = (0, 2_615, 105_191)
KEPT_REAL_SEEDS = (173, 445)


@pytest.mark.parametrize("seed", [*KEPT_SEEDS, *range(1, 20)])
def test_a_right_engine_breaks_no_rule(seed: int) -> None:
    assert simulate(seed).violations == []


def test_a_seed_is_a_whole_history() -> None:
    first, again = simulate(3), simulate(3)
    assert [_without_ids(line) for line in first.lines] == [_without_ids(line) for line in again.lines]
    assert len(first.facts.finals) >= 60
    assert len(first.facts.faults) >= 20


def _without_ids(line: dict[str, object]) -> tuple[object, ...]:
    return line["t"], line["process"], line["op"], line["phase"]


#: All of them, by many seeds, are looked for with the slow tests.
A_FEW = [name for name in MUTANTS if name in ("AckUnfenced", "NoIdempotency", "DoubleLease", "EventsReordered")]


@pytest.mark.parametrize("name", A_FEW)
def test_a_broken_engine_is_found_out(name: str) -> None:
    """Four of five seeds here; that it is 95 of 100 is shown with the slow tests."""
    assert _caught(name, range(5)) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_engine_is_found_out_by_nearly_every_seed(name: str) -> None:
    assert _caught(name, range(1_000, 1_100)) >= 95


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_a_thousand_seeds_of_the_right_engine(part: int) -> None:
    broken = {seed: simulate(seed).violations for seed in range(2_000 + 100 * part, 2_100 + 100 * part)}
    assert not {seed: found for seed, found in broken.items() if found}


def _caught(name: str, seeds: range) -> int:
    """How many seeds find it, by a rule that is meant to."""
    engine, rules = MUTANTS[name]
    return sum(any(violation.rule in rules for violation in simulate(seed, engine).violations) for seed in seeds)


# ── the real worker ──


@pytest.mark.parametrize("seed", [*KEPT_REAL_SEEDS, *range(12)])
def test_the_real_worker_on_a_right_engine_breaks_no_rule(seed: int) -> None:
    assert simulate_real(seed).violations == []


def test_a_seed_of_the_real_worker_is_a_whole_history() -> None:
    first, again = simulate_real(5), simulate_real(5)
    assert [_without_ids(line) for line in first.lines] == [_without_ids(line) for line in again.lines]
    assert len(first.facts.faults) >= 10


def test_workers_that_died_leave_no_file_open() -> None:
    simulate_real(6)  # whatever is opened once
    before = len(list(Path("/proc/self/fd").iterdir()))
    deaths = simulate_real(6).facts.faults
    assert len(deaths) >= 5
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


@pytest.mark.parametrize("engine", [AckUnfenced, NackUnfenced, NoCrashLimit])
def test_the_real_worker_on_a_broken_engine_is_found_out(engine: type[MemoryEngine]) -> None:
    assert any(simulate_real(seed, engine).violations for seed in range(8))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_two_hundred_seeds_of_the_real_worker(part: int) -> None:
    broken = {seed: simulate_real(seed).violations for seed in range(5_000 + 20 * part, 5_020 + 20 * part)}
    assert not {seed: found for seed, found in broken.items() if found}
