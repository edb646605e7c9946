"""Which queues a worker of very many looks at first."""

from __future__ import annotations

from ropeway.engines.choosing import EMPTY_SECONDS, EmptyQueues


def test_what_was_found_empty_stands_behind_the_others_for_a_moment() -> None:
    now = 100.0
    empty = EmptyQueues(monotonic=lambda: now)
    order = ["a", "b", "c", "d"]
    assert empty.last("t", order) == order
    empty.note("t", ["c", "a"])
    assert empty.last("t", order) == ["b", "d", "a", "c"]
    assert empty.last("other", order) == order
    now += EMPTY_SECONDS / 2
    empty.note("t", ["b"])
    now += EMPTY_SECONDS / 2
    assert empty.last("t", order) == ["a", "c", "d", "b"]
    now += EMPTY_SECONDS
    assert empty.last("t", order) == order
