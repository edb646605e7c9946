"""The remote engine keeps every promise of the protocol, through a real server over the memory engine."""

import pytest

from ropeway.testing.conformance import *  # noqa: F403
from ropeway.testing.harness import MemoryHarness
from tests.engines.remote_kit import RemoteHarness

# Most of it is the same through another door; `test_remote_stores` runs a good part of it every time.
pytestmark = pytest.mark.slow


@pytest.fixture
def harness() -> RemoteHarness:
    return RemoteHarness(MemoryHarness())
