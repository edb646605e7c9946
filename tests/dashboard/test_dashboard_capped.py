"""Counts that stopped at their cap are marked, and no others."""

from __future__ import annotations

import re

import pytest

from ropeway.core.query import QueueStats
from ropeway.core.states import State
from tests.dashboard.dashboard_kit import house


async def test_only_what_was_not_counted_to_the_end_is_marked(
    memory_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {State.QUEUED: 10_000, State.RUNNING: 3, State.SUCCEEDED: 10_000, State.DEAD: 2}
    long = QueueStats("long", False, counts, frozenset({State.QUEUED, State.SUCCEEDED}), finished_per_minute=60.0)
    short = QueueStats(
        "short",
        False,
        {State.QUEUED: 180, State.SUCCEEDED: 7},
        frozenset({State.SUCCEEDED}),
        finished_per_minute=60.0,
    )

    async def told(*_: object, **__: object) -> list[QueueStats]:
        return [long, short]

    async with house(memory_store) as there:
        monkeypatch.setattr(there.engine, "queue_stats", told)
        person = await there.person()
        queues = " ".join((await person.see("/ui/queues")).text.split())
        assert "10,000+ queued 3 running 10,000+ succeeded 2 dead" in queues
        assert "180 queued 7+ succeeded" in queues
        assert re.findall(r"(?:more than )?2 h 46 min", queues) == ["more than 2 h 46 min"]
        assert re.findall(r"(?:more than )?3 min", queues) == ["3 min"]
        overview = " ".join((await person.see("/")).text.split())
        assert "Waiting 10,180+ ready to run" in overview
        assert "Succeeded 10,007+ kept for" in overview
        assert "Running 3 " in overview
        assert "Dead 2 need a person" in overview
        assert "2 jobs of long" in overview
        assert "more than 10,183 jobs wait" in overview
