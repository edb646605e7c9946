"""Every PostgreSQL that is on this machine: migrations, every cell of the state table, statements and plans."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from devtools.postgres import Installation, PrivatePostgres, all_postgres, find_postgres
from devtools.private import NotAvailable
from ropeway.testing.conformance import (  # noqa: F401
    TestActions,
    TestBuckets,
    TestClaimRaces,
    TestKeys,
    TestRates,
    TestRotation,
    TestTable,
    TestTail,
    TestTimes,
)
from ropeway.testing.postgres import PostgresHarness
from tests.engines.pg_kit import migrated
from tests.engines.test_postgres_plans import (  # noqa: F401
    test_leases_are_hot_updates,
    test_no_call_of_the_hot_path_walks_the_table,
)
from tests.engines.test_postgres_service import TestLongLog  # noqa: F401
from tests.engines.test_postgres_tail import test_a_long_log_is_not_walked  # noqa: F401

pytestmark = pytest.mark.slow


def others() -> list[Installation]:
    """All but the one that every other test runs on."""
    try:
        usual = find_postgres()
    except NotAvailable:
        return []  # the other tests say why
    return [each for each in all_postgres() if each.bindir != usual]


@pytest.fixture(scope="module", params=others(), ids=lambda each: f"postgres-{each.major}")
def server(request: pytest.FixtureRequest) -> Iterator[PrivatePostgres]:
    with PrivatePostgres(bindir=request.param.bindir) as server:
        assert server.version.startswith(str(request.param.major))
        yield server


@pytest.fixture(scope="module")
def harness(server: PrivatePostgres) -> PostgresHarness:
    return PostgresHarness(server.create_database("conformance"))


@pytest.fixture
def fresh_database(server: PrivatePostgres) -> str:
    return migrated(server.create_database(f"t{uuid.uuid4().hex[:12]}"))
