"""Ageing: the order in which a claim walks the priorities of a lane."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeway.core.ageing import PRIORITIES, order_priorities
from ropeway.core.errors import FieldError
from ropeway.engines.choosing import PriorityOrders, queue_order
from ropeway.engines.protocol import Weighted

waits = st.dictionaries(st.integers(1, 9), st.floats(0, 1e7))


def test_nothing_waits_nothing_changes() -> None:
    assert order_priorities({}, 60) == PRIORITIES
    assert order_priorities({9: 59.9, 5: 30}, 60) == PRIORITIES


def test_a_step_is_gained_per_interval() -> None:
    assert order_priorities({9: 60.0, 8: 0.0}, 60)[7:] == (9, 8), "equals: the longest wait goes first"
    assert order_priorities({9: 240.0, 5: 10.0, 4: 10.0}, 60) == (1, 2, 3, 4, 9, 5, 6, 7, 8)


def test_among_equals_the_longest_wait_goes_first() -> None:
    order = order_priorities({9: 1_000.0, 5: 2_000.0, 2: 500.0}, 60)
    assert order[:4] == (1, 5, 9, 2)


def test_nothing_rises_above_priority_1() -> None:
    assert order_priorities({9: 1e9}, 60)[:2] == (1, 9)
    assert order_priorities({1: 0.0, 2: 1e9}, 60)[0] == 1


def test_0_switches_ageing_off() -> None:
    assert order_priorities({9: 1e9}, 0) == PRIORITIES


@given(waits, st.floats(0, 1e5))
def test_it_is_always_an_order_of_all_priorities_with_1_first(waited: dict[int, float], step: float) -> None:
    order = order_priorities(waited, step)
    assert sorted(order) == list(PRIORITIES)
    assert order[0] == 1


@given(waits, st.floats(0.1, 1e5), st.integers(2, 9))
def test_waiting_longer_never_costs_a_place(waited: dict[int, float], step: float, priority: int) -> None:
    before = order_priorities(waited, step).index(priority)
    longer = {**waited, priority: waited.get(priority, 0.0) * 2 + step}
    assert order_priorities(longer, step).index(priority) <= before


@given(st.integers(2, 9), waits)
def test_whatever_waits_long_enough_is_second_to_priority_1_only(priority: int, waited: dict[int, float]) -> None:
    longest = max([60.0 * 7, *waited.values()]) + 1
    assert order_priorities({**waited, priority: longest}, 60)[:2] == (1, priority)


class TestPriorityOrders:
    def test_a_lane_is_looked_up_again_after_the_interval(self) -> None:
        time = [0.0]
        orders = PriorityOrders(60, 1.0, monotonic=lambda: time[0])
        assert orders.stale("t", ["a", "b"]) == ["a", "b"]
        assert orders.of("t", "a") == PRIORITIES
        orders.learn("t", "a", {9: 1_000.0})
        assert orders.of("t", "a")[:2] == (1, 9)
        assert orders.of("other", "a") == PRIORITIES
        assert orders.stale("t", ["a", "b"]) == ["b"]
        time[0] = 0.99
        assert orders.stale("t", ["a"]) == []
        time[0] = 1.0
        assert orders.stale("t", ["a"]) == ["a"]
        assert orders.of("t", "a")[:2] == (1, 9), "an old order serves until a new one is known"

    def test_without_ageing_nothing_is_looked_up(self) -> None:
        assert PriorityOrders(0, 1.0).stale("t", ["a"]) == []


class TestQueueOrder:
    def test_plain_names_keep_their_order(self) -> None:
        assert queue_order(["b", "a", "c"]) == ["b", "a", "c"]

    def test_weights_draw_the_order(self) -> None:
        draws = iter([0.5, 0.5, 0.5])
        queues = [Weighted("light", 1), Weighted("heavy", 1_000), "plain"]
        assert queue_order(queues, lambda: next(draws))[0] == "heavy"

    @given(st.lists(st.integers(1, 1_000_000), min_size=1, max_size=20), st.randoms())
    def test_every_queue_is_there_once(self, weights: list[int], random: object) -> None:
        queues = [Weighted(f"q{n}", weight) for n, weight in enumerate(weights)]
        order = queue_order(queues, random.random)  # type: ignore[attr-defined]
        assert sorted(order) == sorted(queue.queue for queue in queues)

    @pytest.mark.parametrize("draw", [0.0, 1 - 2**-53])
    def test_the_edges_of_a_draw_are_no_trouble(self, draw: float) -> None:
        assert set(queue_order([Weighted("a", 1), Weighted("b", 1_000_000)], lambda: draw)) == {"a", "b"}

    @pytest.mark.parametrize(
        "queues",
        [
            [],
            ["a", "a"],
            [Weighted("a", 1), "a"],
            ["a b"],
            [Weighted("a", 0)],
            [Weighted("a", True)],
            [Weighted("a", 1.5)],
        ],
    )
    def test_what_is_no_list_of_queues_is_refused(self, queues: list[str | Weighted]) -> None:
        with pytest.raises(FieldError):
            queue_order(queues)

    def test_a_lane_that_was_just_emptied_is_not_looked_at_again_for_as_long_as_a_look_holds(self) -> None:
        time = [0.0]
        orders = PriorityOrders(60, 1.0, monotonic=lambda: time[0])
        orders.learn("t", "a", {9: 600.0})
        assert orders.of("t", "a") != PRIORITIES
        time[0] = 5.0
        orders.emptied("t", ["a", "b"])
        assert orders.of("t", "a") == PRIORITIES, "what comes now has not waited"
        time[0] = 5.9
        assert orders.stale("t", ["a", "b", "c"]) == ["c"]
        time[0] = 6.0
        assert orders.stale("t", ["a", "b"]) == ["a", "b"]
