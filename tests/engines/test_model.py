"""E36: random programs give the same visible results on every engine, on the reference and in the oracle.

ROPEWAY_TEST_MODEL_EXAMPLES sets the number of programs for all engines, instead of the defaults below.
"""

from __future__ import annotations

import os

import pytest

from ropeway.testing.harness import MemoryHarness, SqliteHarness
from ropeway.testing.model import run_model
from ropeway.testing.postgres import PostgresHarness

ASKED = int(os.environ.get("ROPEWAY_TEST_MODEL_EXAMPLES", "0"))

STEPS = 50
SLOW_STEPS = 100


def test_memory() -> None:
    run_model(MemoryHarness(), examples=ASKED or 100, steps=STEPS)


@pytest.mark.slow
@pytest.mark.limit(1800)
def test_memory_at_length() -> None:
    run_model(MemoryHarness(), examples=ASKED or 1_000, steps=SLOW_STEPS)


@pytest.mark.slow
def test_sqlite() -> None:
    run_model(SqliteHarness(), examples=ASKED or 60, steps=STEPS)


@pytest.mark.slow
@pytest.mark.limit(1800)
def test_sqlite_at_length() -> None:
    run_model(SqliteHarness(), examples=ASKED or 300, steps=SLOW_STEPS)


@pytest.mark.slow
def test_postgres(postgres_module_database: str) -> None:
    run_model(PostgresHarness(postgres_module_database), examples=ASKED or 12, steps=STEPS)


@pytest.mark.slow
@pytest.mark.limit(1800)
def test_postgres_at_length(postgres_module_database: str) -> None:
    run_model(PostgresHarness(postgres_module_database), examples=ASKED or 100, steps=SLOW_STEPS)
