"""The whole conformance suite behind a transaction pooler."""

from __future__ import annotations

import pytest

from ropeway.testing.conformance import *  # noqa: F403
from tests.engines.test_postgres_pooled import harness  # noqa: F401

pytestmark = pytest.mark.slow
