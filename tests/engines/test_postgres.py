"""The conformance suite on PostgreSQL."""

from __future__ import annotations

import pytest

from ropeway.testing.conformance import *  # noqa: F403
from ropeway.testing.postgres import PostgresHarness


@pytest.fixture(scope="module")
def harness(postgres_module_database: str) -> PostgresHarness:
    return PostgresHarness(postgres_module_database)
