"""For users' tests and for authors of engines. Nothing in Ropeway imports it."""

from contextlib import suppress

# Under pytest, let failing asserts of the shipped suites show their values, as those of test modules do.
with suppress(ImportError):
    import pytest

    pytest.register_assert_rewrite("ropeway.testing.conformance", "ropeway.testing.model")

from ropeway.task.context import DiscardJob, RetryJob, SnoozeJob
from ropeway.testing.assertions import EnqueuedJob
from ropeway.testing.kit import Kit
from ropeway.testing.running import Drained, Ran

__all__ = ["DiscardJob", "Drained", "EnqueuedJob", "Kit", "Ran", "RetryJob", "SnoozeJob"]
