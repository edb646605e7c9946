"""Windows: inside or not, and when they open next, also when clocks change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeway.core.errors import FieldError
from ropeway.core.window import Window

NIGHT = Window.parse("22:00-06:00", "Europe/Paris")
PARIS_WINTER = timedelta(hours=1)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("22:00-06:00", "22:00-06:00 UTC"),
        ("9:30 - 17:00", "09:30-17:00 UTC"),
        ("08:00-24:00", "08:00-00:00 UTC"),
        ("23:59-00:00", "23:59-00:00 UTC"),
    ],
)
def test_a_window_is_two_times_of_day(text: str, shown: str) -> None:
    assert str(Window.parse(text)) == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "22:00",
        "22-06",
        "25:00-06:00",
        "22:60-06:00",
        "24:00-06:00",
        "10:00-24:30",
        "10:00-10:00",
        "a",
        None,
        7,
    ],
)
def test_what_is_none_is_refused(text: object) -> None:
    with pytest.raises(FieldError) as error:
        Window.parse(text)  # type: ignore[arg-type]
    assert error.value.pointer == "/window"


def test_an_unknown_zone_is_refused() -> None:
    with pytest.raises(FieldError, match="unknown time zone"):
        Window.parse("22:00-06:00", "Europe/Atlantis")


@pytest.mark.parametrize(
    ("at", "inside"),
    [
        ("2026-01-15T20:59:59", False),
        ("2026-01-15T21:00:00", True),  # 22:00 in Paris
        ("2026-01-16T00:00:00", True),
        ("2026-01-16T04:59:59", True),
        ("2026-01-16T05:00:00", False),
        ("2026-07-15T20:00:00", True),  # in summer an hour earlier
        ("2026-07-15T19:59:59", False),
    ],
)
def test_a_night_spans_midnight(at: str, inside: bool) -> None:
    assert NIGHT.contains(utc(at)) is inside


def test_inside_the_next_start_is_now_to_the_microsecond() -> None:
    at = utc("2026-01-15T23:12:34.567891")
    assert NIGHT.next_start(at) == at
    assert NIGHT.next_start(at).tzinfo is UTC


@pytest.mark.parametrize(
    ("at", "start"),
    [
        ("2026-01-15T12:00:00.5", "2026-01-15T21:00:00"),
        ("2026-01-16T05:00:00", "2026-01-16T21:00:00"),
        ("2026-07-15T12:00:00", "2026-07-15T20:00:00"),
        # The day on which clocks change, between two nights: 22:00 is by the new time.
        ("2026-03-29T12:00:00", "2026-03-29T20:00:00"),
        ("2026-10-25T12:00:00", "2026-10-25T21:00:00"),
    ],
)
def test_outside_it_is_the_next_opening(at: str, start: str) -> None:
    assert NIGHT.next_start(utc(at)) == utc(start)


# In Paris clocks go from 02:00 to 03:00 on 2026-03-29 and from 03:00 to 02:00 on 2026-10-25, both at 01:00 UTC.


def test_a_window_that_opens_in_the_skipped_hour_opens_when_it_ends() -> None:
    window = Window.parse("02:30-05:00", "Europe/Paris")
    assert window.next_start(utc("2026-03-28T23:00:00")) == utc("2026-03-29T01:00:00")  # 03:00
    assert not window.contains(utc("2026-03-29T00:59:59"))
    assert window.contains(utc("2026-03-29T01:00:00"))


def test_a_window_in_the_skipped_hour_does_not_open_that_day() -> None:
    window = Window.parse("02:15-02:45", "Europe/Paris")
    assert window.next_start(utc("2026-03-28T23:00:00")) == utc("2026-03-30T00:15:00")


def test_a_window_in_the_repeated_hour_is_open_twice() -> None:
    window = Window.parse("02:15-02:45", "Europe/Paris")
    assert window.next_start(utc("2026-10-24T22:00:00")) == utc("2026-10-25T00:15:00")
    # After the first time it opens again an hour later, not a day later.
    assert window.next_start(utc("2026-10-25T00:45:00")) == utc("2026-10-25T01:15:00")
    assert window.next_start(utc("2026-10-25T01:45:00")) == utc("2026-10-26T01:15:00")


def test_clocks_that_go_back_may_go_back_into_the_window() -> None:
    window = Window.parse("22:00-02:30", "Europe/Paris")
    # 02:45 the first time; at 03:00 it is 02:00 again.
    assert window.next_start(utc("2026-10-25T00:45:00.25")) == utc("2026-10-25T01:00:00")


def test_a_day_that_a_zone_skipped() -> None:
    window = Window.parse("09:00-10:00", "Pacific/Apia")  # had no 30 December 2011
    assert window.next_start(utc("2011-12-29T20:30:00")) == utc("2011-12-30T19:00:00")


ZONES = st.sampled_from(["UTC", "Europe/Paris", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"])
TIMES = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
MINUTES = st.integers(0, 1439)


@given(ZONES, TIMES, MINUTES, MINUTES)
def test_the_next_start_is_the_first_moment_inside(zone: str, at: datetime, start: int, end: int) -> None:
    if start == end:
        return
    text = f"{start // 60}:{start % 60:02}-{end // 60}:{end % 60:02}"
    window = Window.parse(text, zone)
    opening = window.next_start(at)
    assert at <= opening <= at + timedelta(days=2, hours=2)
    assert window.contains(opening)
    # None of the moments in between is inside: looked at from the end, where an opening would be missed.
    step = timedelta(minutes=1)
    moment = opening - timedelta(microseconds=1)
    while moment >= at:
        assert not window.contains(moment), moment
        moment -= step
