"""The remote engine over the stores that servers really have: where their own ways might show through."""

from __future__ import annotations

import pytest

from ropeway.testing.conformance import (  # noqa: F401
    TestBatches,
    TestClaimRaces,
    TestDeclarations,
    TestEndOfAnOwner,
    TestIdempotencyKeys,
    TestKeyRaces,
    TestOneLife,
    TestPages,
    TestSettlingRaces,
    TestShared,
    TestSignals,
    TestTail,
    TestTimes,
    TestWhatIsKept,
)
from ropeway.testing.conformance import TestTable as Table
from ropeway.testing.harness import SqliteHarness
from ropeway.testing.postgres import PostgresHarness
from tests.engines.remote_kit import RemoteHarness


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def harness(request: pytest.FixtureRequest) -> RemoteHarness:
    if request.param == "sqlite":
        return RemoteHarness(SqliteHarness())
    return RemoteHarness(PostgresHarness(request.getfixturevalue("postgres_module_database")))


@pytest.mark.slow
class TestTable(Table):
    """Every state and verb: many tests, and the other classes show sooner that the store is reached."""
