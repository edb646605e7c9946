"""How often a SQLite file is looked at for news from other processes."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from ropeway.engines.sqlite import SqliteEngine, signalling
from ropeway.engines.sqlite.signalling import LONGEST_PAUSE, LONGEST_REST, SHORTEST_PAUSE, pause_after
from ropeway.testing.conformance.kit import enqueue_one


def test_a_file_that_has_just_changed_is_looked_at_soon() -> None:
    assert pause_after(0.0, took=0.0) == SHORTEST_PAUSE


@pytest.mark.parametrize("quiet", [0.1, 0.3, 0.7])
def test_news_is_late_by_a_small_share_of_what_it_was_waited_for(quiet: float) -> None:
    assert pause_after(quiet, took=0.0) == pytest.approx(quiet / 20)


def test_a_file_that_has_long_been_quiet_is_looked_at_seldom() -> None:
    assert pause_after(3_600.0, took=0.0) == LONGEST_PAUSE


def test_looks_take_a_tenth_of_the_time_at_most() -> None:
    """At very many lanes in a file that always changes."""
    assert pause_after(0.0, took=0.01) == pytest.approx(0.09)


def test_one_long_look_does_not_blind_for_long() -> None:
    assert pause_after(0.0, took=60.0) == LONGEST_REST


async def test_a_change_makes_the_looks_frequent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet: list[float] = []
    changed, looked = threading.Event(), threading.Event()

    def noted(quiet_seconds: float, *, took: float) -> float:
        quiet.append(quiet_seconds)
        if changed.is_set() and quiet_seconds < quiet[-2]:
            looked.set()
        return pause_after(quiet_seconds, took=took)

    monkeypatch.setattr(signalling, "pause_after", noted)
    path = tmp_path / "jobs.db"
    async with SqliteEngine(path) as here, SqliteEngine(path) as other:
        heard = await here.subscribe(["default"])
        async with asyncio.timeout(45):
            while not quiet or quiet[-1] < 0.5:
                await heard.wait(timeout=0.01)
            changed.set()
            await enqueue_one(other)
            while not looked.is_set():
                await heard.wait(timeout=0.01)
