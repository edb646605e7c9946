"""For users' tests and for authors of engines. Nothing in Ropeway imports it."""

from contextlib import suppress

# Under pytest, let failing asserts of the shipped suites show their values, as those of test modules do.
with suppress(ImportError):
    import pytest

    pytest.register_assert_rewrite("ropeway.testing.conformance", "ropeway.testing.model")
