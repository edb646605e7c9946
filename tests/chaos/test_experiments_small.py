"""Small runs of the experiments themselves: real processes, real faults, nothing broken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chaos.checker import RULES
from chaos.experiments import EXPERIMENTS
from chaos.runner import run


@pytest.mark.parametrize(
    ("id", "engine", "jobs"),
    [
        pytest.param("E28", "sqlite", 400, id="E28-sqlite"),
        pytest.param("E29", "sqlite", 60, id="E29-sqlite"),
        pytest.param("E01", "sqlite", 600, marks=pytest.mark.slow, id="E01-sqlite"),
        pytest.param("E01", "http-postgres", 600, marks=pytest.mark.slow, id="E01-http-postgres"),
        pytest.param("E01S", "http-sqlite", 600, marks=pytest.mark.slow, id="E01S-http-sqlite"),
        pytest.param("E02", "postgres", 400, marks=pytest.mark.slow, id="E02-postgres"),
        pytest.param("E04", "postgres", 1_200, marks=pytest.mark.slow, id="E04-postgres"),
        pytest.param("E29", "http-memory", 100, marks=pytest.mark.slow, id="E29-http-memory"),
    ],
)
async def test_nothing_is_broken(id: str, engine: str, jobs: int, tmp_path: Path) -> None:
    """The safety rules. How soon things recover is measured, and decides nothing here: the machine is busy."""
    patient = replace(EXPERIMENTS[id], lease_seconds=6.0)
    told = await run(patient, engine, seed=11, size="small", out=tmp_path, say=print, jobs=jobs)
    assert [line for line in told["told"] if line.split()[0] in RULES] == []
    assert (told["lost"], told["unexpected"], told["stale_calls_accepted"]) == (0, 0, 0)
    assert told["accepted"] >= jobs
    assert told["faults"] >= 1
