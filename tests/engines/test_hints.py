"""What an engine remembers to be faster is bounded: a process does not grow with the lanes that it meets."""

from __future__ import annotations

import pytest

from ropeway.core.ageing import PRIORITIES
from ropeway.engines import choosing
from ropeway.engines.choosing import PriorityOrders
from ropeway.engines.postgres import cursors, grants
from ropeway.engines.postgres.cursors import START, LaneCursors
from ropeway.engines.postgres.grants import GrantBook
from ropeway.runtime import ids
from ropeway.runtime.clock import SystemClock

BOUND = 50
LANES = 500


def test_orders_of_priorities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "MEMORY", BOUND)
    orders = PriorityOrders(60.0, 1.0, monotonic=lambda: 0.0)
    for n in range(LANES):
        orders.learn("default", f"q{n}", {9: 1_000.0})
        assert len(orders._known) <= BOUND + 1
    assert orders.stale("default", [f"q{LANES - 1}"]) == []
    assert orders.of("default", f"q{LANES - 1}") != PRIORITIES
    assert orders.stale("default", ["q0"]) == ["q0"], "a forgotten lane is looked up again"
    assert orders.of("default", "q0") == PRIORITIES


def test_places_of_claims_and_times_of_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors, "MEMORY", BOUND)
    hints = LaneCursors(monotonic=lambda: 0.0)
    now = SystemClock().now()
    for n in range(LANES):
        lane = (f"q{n}", 5)
        hints.claimed("default", lane, now, n, now)
        assert hints.start("default", lane) != START
        hints.swept("default", [lane], 0.001, again=False)
        assert len(hints._positions) <= BOUND + 1
        assert len(hints._swept) <= BOUND + 1
    assert hints.start("default", ("q0", 5)) == START, "a forgotten lane is walked from its start"
    assert hints.due("default", [("q0", 5)], short=False) == {("q0", 5)}


def test_the_hint_allows_for_late_commits_of_the_last_second_only() -> None:
    hints = LaneCursors(monotonic=lambda: 0.0)
    now = SystemClock().now()
    young, old = now - 0.5 * cursors.SETTLED, now - 2 * cursors.SETTLED
    hints.claimed("default", ("q", 5), old, 7, now)
    assert hints.start("default", ("q", 5)) == (old, 8), "a backlog is not walked again"
    assert hints.claimed("default", ("q", 5), old, 6, now), "a straggler"
    assert not hints.claimed("default", ("q", 5), young, 9, now)
    assert hints.start("default", ("q", 5)) == (young - cursors.SET_BACK, 0)
    assert not hints.claimed("default", ("q", 5), young, 1, now), "it may have been committed a little late"


def test_grants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grants, "MEMORY", BOUND)
    monkeypatch.setattr(grants, "MOST_ENDED", BOUND)
    book = GrantBook()
    for _ in range(LANES):
        book.opened(ids.token(), "default", {ids.token(): (1, None) for _ in range(3)})
        book.keep([ids.token()])
    assert sum(len(jobs) for _, jobs in book._open.values()) in range(BOUND - 3, BOUND + 1)
    assert len(book.take_ended()) <= BOUND
