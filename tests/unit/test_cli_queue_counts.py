"""`ropeway queues list`: counts that stopped at their cap are marked, and no others."""

from __future__ import annotations

import pytest

from ropeway.cli.queues import _count
from ropeway.core.query import QueueStats
from ropeway.core.states import State


@pytest.mark.parametrize(
    ("state", "told"),
    [(State.QUEUED, "10,000"), (State.SUCCEEDED, "10,000+"), (State.DEAD, "3+"), (State.CANCELLED, "0")],
)
def test_only_what_was_not_counted_to_the_end_is_marked(state: State, told: str) -> None:
    counts = {State.QUEUED: 10_000, State.SUCCEEDED: 10_000, State.DEAD: 3}
    capped = frozenset({State.SUCCEEDED, State.DEAD, State.CANCELLED})
    assert _count(QueueStats("q", False, counts, capped), state) == told
