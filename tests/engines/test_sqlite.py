"""The SQLite engine keeps every promise of the protocol."""

import pytest

from ropeway.testing.conformance import *  # noqa: F403
from ropeway.testing.harness import SqliteHarness


@pytest.fixture
def harness() -> SqliteHarness:
    return SqliteHarness()
