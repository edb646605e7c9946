"""The remote engine keeps every promise of the protocol, through a real server over the memory engine."""

import pytest

from ropeway.testing.conformance import *  # noqa: F403
from ropeway.testing.harness import MemoryHarness
from tests.engines.remote_kit import RemoteHarness


@pytest.fixture
def harness() -> RemoteHarness:
    return RemoteHarness(MemoryHarness())
