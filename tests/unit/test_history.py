"""Samples: steps of time, histograms and their percentiles, and how samples add up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeway.core.history import (
    BOUNDS,
    EMPTY,
    LONG_STEP,
    STEP,
    Observed,
    Sample,
    carried_on,
    histogram,
    last_step,
    merged,
    percentile,
    sample_of,
    step_of,
)
from ropeway.core.states import EventName
from ropeway.engines.remembering import share_of, window
from ropeway.service.history import RANGES, series_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_an_instant_is_in_the_step_that_began_last() -> None:
    assert step_of(NOON + timedelta(seconds=44.9), STEP) == NOON + timedelta(seconds=30)
    assert step_of(NOON + timedelta(seconds=45), STEP) == NOON + timedelta(seconds=45)
    assert step_of(NOON + timedelta(minutes=9), LONG_STEP) == NOON + timedelta(minutes=5)


def test_a_step_is_over_when_hardly_anything_of_it_can_still_come() -> None:
    assert last_step(NOON + timedelta(seconds=STEP + 1.9)) == NOON - timedelta(seconds=STEP)
    assert last_step(NOON + timedelta(seconds=STEP + 2)) == NOON


@given(st.lists(st.floats(0, 100_000), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_a_percentile_lies_in_the_bucket_of_the_true_one(values: list[float], share: float) -> None:
    found = percentile(histogram(values), share)
    assert found is not None
    # The value of which at least that share is not beyond.
    true = next(value for place, value in enumerate(sorted(values), 1) if place >= share * len(values) - 1e-9)
    edges = (0.0, *BOUNDS)
    upper = next((bound for bound in BOUNDS if true <= bound), BOUNDS[-1])
    lower = max((edge for edge in edges if edge < upper), default=0.0)
    assert (lower <= found <= upper) or true > BOUNDS[-1]


def test_nothing_has_no_percentile() -> None:
    assert percentile(EMPTY, 0.5) is None


def test_what_was_seen_of_a_part_of_a_step_stands_for_the_whole() -> None:
    seen = Observed("default", "a", {EventName.ENQUEUED: 10, EventName.DLQ: 1}, [0.5], [1.0], share=0.25)
    sample = sample_of(seen, NOON)
    assert (sample.enqueued, sample.dead, sample.succeeded) == (40.0, 4.0, 0.0)
    assert sum(sample.waits) == sum(sample.runs) == 1, "times are a sample anyway"


def one(seconds: int, queue: str = "a", **fields: object) -> Sample:
    return Sample("default", queue, NOON + timedelta(seconds=seconds), STEP, **fields)  # type: ignore[arg-type]


def test_what_happened_adds_up_and_what_waited_is_that_of_the_end() -> None:
    samples = [
        one(0, enqueued=1.0, waiting=50, oldest=9.0, waits=histogram([0.1])),
        one(15, enqueued=2.0, waiting=7, running=1, oldest=2.0, waits=histogram([0.1, 3.0])),
        one(15, "b", enqueued=4.0, waiting=5, oldest=None),
    ]
    whole = merged(samples, NOON, LONG_STEP, queue="")
    assert (whole.enqueued, whole.waiting, whole.running, whole.oldest) == (7.0, 12, 1, 2.0)
    assert whole.waits == histogram([0.1, 0.1, 3.0])
    assert (whole.at, whole.step) == (NOON, LONG_STEP)


@pytest.mark.parametrize("name", RANGES)
def test_a_series_has_a_point_for_each_stretch_and_none_where_nothing_is_known(name: str) -> None:
    length, point = RANGES[name]
    since = step_of(NOON - timedelta(seconds=length), point)
    samples = [one(-point, succeeded=10.0, waiting=3)]
    series = series_of(samples, samples, name, since, NOON)
    assert len(series.at) == length // point
    assert series.at == sorted(series.at)
    assert series.succeeded[-1] == pytest.approx(10.0 * 60 / STEP), "a rate per minute of what was looked at"
    assert series.waiting[-1] == 3
    assert series.succeeded[:-1] == [None] * (len(series.at) - 1)
    assert series.wait_p50[-1] is None


def test_a_rate_is_of_the_steps_that_were_looked_at() -> None:
    """The newest point is never complete, and of the oldest a part is forgotten."""
    since = NOON - timedelta(hours=1)
    samples = [one(-30, "", succeeded=5.0), one(-15, "", succeeded=5.0), one(-3_585, "", enqueued=3.0)]
    series = series_of(samples, samples, "1h", since, NOON)
    assert series.succeeded[-1] == pytest.approx(20.0), "10 in half a minute"
    assert series.enqueued[0] == pytest.approx(12.0)


def test_a_queue_had_nothing_in_a_step_of_which_there_is_no_sample_of_it() -> None:
    whole = [one(seconds, "", succeeded=9.0, waiting=4) for seconds in (-120, -60, -45, -30)]
    mine = [one(-60, succeeded=6.0, waiting=3, oldest=8.0)]
    series = series_of(mine, whole, "1h", NOON - timedelta(hours=1), NOON)
    assert series.succeeded[-2:] == [0.0, pytest.approx(8.0)], "6 in three quarters of a minute"
    assert series.waiting[-2:] == [0, 0], "what there was at the end"
    assert series.oldest[-1] is None
    assert series.succeeded[-3] is None, "nobody looked"


def test_what_is_not_counted_to_the_end_is_reckoned() -> None:
    before = one(0, waiting=20_000, running=10)
    now = one(15, enqueued=500.0, succeeded=90.0, dead=5.0, cancelled=5.0, waiting=10_000, running=20)
    assert carried_on(now, before).waiting == 20_390
    assert carried_on(now, one(0, waiting=300)).waiting == 10_000, "there are at least those that were counted"


@pytest.mark.parametrize(
    ("first", "counted", "share"),
    [
        (None, (0, 15), 1.0),  # a look reaches everything
        (-1, (0, 15), 1.0),
        (0, (0, 15), 1.0),
        (9, (9, 15), 0.4),  # the newest part of the step
        (14, (14, 15), 1 / 15),
        (14.5, (14.5, 20), 5.5 / 15),  # hardly anything: all that there is stands for it
        (17, (17, 20), 0.2),
    ],
)
def test_what_is_counted_for_a_step(first: float | None, counted: tuple[float, float], share: float) -> None:
    def at(seconds: float) -> datetime:
        return NOON + timedelta(seconds=seconds)

    reach = (None, None) if first is None else (at(first), at(20))
    found = window(at(0), at(STEP), first=reach[0], newest=reach[1])
    assert found[0] == at(counted[0])
    assert found[1] - at(counted[1]) <= timedelta(microseconds=1)
    assert share_of(found, at(0), at(STEP)) == pytest.approx(share, abs=1e-6)
