"""The memory engine keeps every promise of the protocol."""

import pytest

from ropeway.testing.conformance import *  # noqa: F403
from ropeway.testing.harness import MemoryHarness


@pytest.fixture
def harness() -> MemoryHarness:
    return MemoryHarness()
