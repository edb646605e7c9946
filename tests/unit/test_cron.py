"""Cron: which instants an expression names, through changes of the clock, and what becomes of missed ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ropeway.core.cron import MissedPlan, check_cron, missed_fires, next_fire
from ropeway.core.errors import FieldError

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def at(text: str) -> datetime:
    """A time in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def fires(expression: str, tz: str, start: str, end: str) -> list[str]:
    """Every fire from `start` (not itself) to `end`, both UTC, as UTC times."""
    found, instant = [], at(start)
    while (instant := next_fire(expression, tz, instant)) <= at(end):
        found.append(instant.isoformat(" ", "minutes").removesuffix("+00:00"))
    return found


# Plain expressions


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("* * * * *", "2026-01-01 00:00:00", "2026-01-01 00:01"),
        ("* * * * *", "2026-01-01 00:00:59.999999", "2026-01-01 00:01"),
        ("*/15 * * * *", "2026-01-01 00:44:59", "2026-01-01 00:45"),
        ("0 0 1 1 *", "2026-01-01 00:00", "2027-01-01 00:00"),
        ("0 0 29 2 *", "2026-01-01 00:00", "2028-02-29 00:00"),
        ("30 2 * * MON-FRI", "2026-01-02 02:30", "2026-01-05 02:30"),
        ("0 12 L * *", "2026-02-01 00:00", "2026-02-28 12:00"),
        ("0 12 * * fri#2", "2026-02-01 00:00", "2026-02-13 12:00"),
        ("15,45 8-9 * jan,feb *", "2026-02-28 09:15", "2026-02-28 09:45"),
        ("15,45 8-9 * jan,feb *", "2026-02-28 09:45", "2027-01-01 08:15"),
        ("0 0 13 * 5", "2026-01-03 00:00", "2026-01-09 00:00"),
        ("30 0 0 * * *", "2026-01-01 00:00:00", "2026-01-01 00:00:30"),
        ("*/10 * * * * *", "2026-01-01 00:00:55", "2026-01-01 00:01:00"),
    ],
)
def test_next_fire(expression, after, expected):
    instant = next_fire(expression, "UTC", at(after))
    assert instant == at(expected)
    assert instant.tzinfo is UTC


def test_the_zone_of_the_question_does_not_matter():
    after = at("2026-07-01 00:30")
    asked = {
        next_fire("0 3 * * *", "Europe/Paris", after.astimezone(ZoneInfo(tz))) for tz in ("UTC", "Asia/Tokyo")
    }
    assert asked == {at("2026-07-01 01:00")}
    assert next_fire("0 3 * * *", "Europe/Paris", after).tzinfo is UTC


def test_a_question_without_a_zone_is_refused():
    with pytest.raises(FieldError) as refused:
        next_fire("* * * * *", "UTC", datetime(2026, 1, 1))  # noqa: DTZ001
    assert refused.value.code == "timezone_required"


# What is refused


@pytest.mark.parametrize(
    "expression",
    [
        "", " ", "*", "* * * *", "* * * * * * *", "@daily", "every minute please ok now",
        "60 * * * *", "* 24 * * *",
        "* * 0 * *", "* * 32 * *", "* * * 13 *", "* * * * 8", "*/0 * * * *", "5-1 * * * *", "1,,2 * * * *",
        "-1 * * * *", "1.5 * * * *", "* * * * MON#6", "a * * * *", "0 0 30 2 *", "0 0 31 2,4,6 *",
        "0 0 */31 * MON#5", "* * * * *\n* * * * *", "0\u00a00 * * *", "\u0660 * * * *", "0 0 * * \0",
        "9" * 5000 + " * * * *", "* * * * *" + " " * 300, "0," * 5000 + "0 * * * *", None, 5, b"* * * * *",
    ],
    ids=lambda expression: repr(expression)[:30],
)  # fmt: skip
def test_a_bad_expression_is_refused(expression):
    with pytest.raises(FieldError) as refused:
        check_cron(expression, "UTC")
    assert refused.value.code == "invalid_field"
    assert refused.value.pointer == "/cron"
    with pytest.raises(FieldError):
        next_fire(expression, "Europe/Paris", at("2026-01-01"))


@pytest.mark.parametrize(
    "tz",
    [
        "", "Mars/Olympus", "Europe", "Europe/", "CEST+1x", "../../etc/passwd", "/etc/passwd",
        "/usr/share/zoneinfo/UTC",
        "localtime", "posixrules", "right/UTC", "posix/UTC", "Europe/Paris\0", "x" * 5000, "\ud800", None, 1,
    ],
    ids=lambda tz: ascii(tz)[:30],
)  # fmt: skip
def test_an_unknown_zone_is_refused(tz):
    with pytest.raises(FieldError) as refused:
        check_cron("* * * * *", tz)
    assert refused.value.pointer == "/tz"


@pytest.mark.parametrize("tz", ["UTC", "Etc/UTC", "Europe/Paris", "America/Argentina/Buenos_Aires", "EST5EDT"])
def test_known_zones(tz):
    check_cron("*/5 * * * *", tz)
    check_cron("0 0 29 2 *", tz)


def test_the_end_of_the_calendar_is_an_error_and_no_crash():
    for tz in ("UTC", "Europe/Paris", "Asia/Tokyo"):
        for expression in ("0 0 1 1 *", "* * * * *"):
            with pytest.raises(FieldError):
                next_fire(expression, tz, datetime.max.replace(tzinfo=UTC))


# When clocks change. Paris 2026: 29 March 01:00 UTC, 02:00 -> 03:00; 25 October 01:00 UTC, 03:00 -> 02:00.


def test_a_daily_job_fires_once_on_the_day_clocks_go_forward():
    assert fires("30 2 * * *", "Europe/Paris", "2026-03-27 12:00", "2026-03-31 12:00") == [
        "2026-03-28 01:30",
        "2026-03-29 01:00",  # 02:30 does not exist: at the end of the gap, 03:00
        "2026-03-30 00:30",
        "2026-03-31 00:30",
    ]


def test_a_daily_job_fires_once_on_the_day_clocks_go_back():
    assert fires("30 2 * * *", "Europe/Paris", "2026-10-23 12:00", "2026-10-26 12:00") == [
        "2026-10-24 00:30",
        "2026-10-25 00:30",  # the first 02:30
        "2026-10-26 01:30",
    ]


def test_a_question_from_the_repeated_hour_is_not_answered_with_the_past():
    """At the second 02:15, the (first) 02:30 is over."""
    after = at("2026-10-25 01:15")
    assert next_fire("30 2 * * *", "Europe/Paris", after) == at("2026-10-26 01:30")


@pytest.mark.parametrize("expression", ["0 * * * *", "0 0-23 * * *"])
def test_an_hourly_job_fires_every_hour(expression):
    assert fires(expression, "Europe/Paris", "2026-10-24 22:30", "2026-10-25 03:30") == [
        f"2026-10-{day} {hour:02}:00" for day, hour in ((24, 23), (25, 0), (25, 1), (25, 2), (25, 3))
    ]
    assert fires(expression, "Europe/Paris", "2026-03-28 22:30", "2026-03-29 02:30") == [
        f"2026-03-{day} {hour:02}:00" for day, hour in ((28, 23), (29, 0), (29, 1), (29, 2))
    ]


@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
@pytest.mark.parametrize("tz", ["Europe/Paris", "UTC", "Australia/Lord_Howe", "America/Havana"])
def test_an_every_minute_job_fires_every_minute(tz, day):
    assert len(fires("* * * * *", tz, f"{day} 00:00", f"{day} 06:00")) == 6 * 60


# Lord Howe goes half an hour: 2026-04-04 15:00 UTC, 02:00 -> 01:30; 2026-10-03 15:30 UTC, 02:00 -> 02:30.


def test_half_an_hour_back():
    quarters = [at("2026-04-04 14:15") + n * 15 * MINUTE for n in range(8)]
    assert fires("*/15 * * * *", "Australia/Lord_Howe", "2026-04-04 14:00", "2026-04-04 16:00") == [
        f"{quarter:%Y-%m-%d %H:%M}" for quarter in quarters
    ]
    assert fires("45 1 * * *", "Australia/Lord_Howe", "2026-04-03 12:00", "2026-04-05 16:00") == [
        "2026-04-03 14:45",
        "2026-04-04 14:45",
        "2026-04-05 15:15",
    ]
    # The named hour itself follows the change.
    assert fires("*/30 2 * * *", "Australia/Lord_Howe", "2026-04-04 12:00", "2026-04-04 18:00") == [
        "2026-04-04 15:30",
        "2026-04-04 16:00",
    ]


def test_half_an_hour_forward():
    assert fires("15 2 * * *", "Australia/Lord_Howe", "2026-10-02 12:00", "2026-10-04 16:00") == [
        "2026-10-02 15:45",
        "2026-10-03 15:30",  # 02:15 does not exist: at 02:30
        "2026-10-04 15:15",
    ]


def test_an_hourly_job_has_no_fire_in_the_half_hour_that_is_skipped():
    """00:15, 01:15, (no 02:15,) 03:15"""
    assert fires("15 * * * *", "Australia/Lord_Howe", "2026-10-03 13:00", "2026-10-03 17:00") == [
        "2026-10-03 13:45",
        "2026-10-03 14:45",
        "2026-10-03 16:15",
    ]


def test_a_skipped_midnight():
    """Havana skips 00:00 to 01:00 on 8 March 2026 (05:00 UTC)."""
    assert fires("0 0 * * *", "America/Havana", "2026-03-07 00:00", "2026-03-09 12:00") == [
        "2026-03-07 05:00",
        "2026-03-08 05:00",
        "2026-03-09 04:00",
    ]


def test_a_skipped_day():
    """Samoa had no 30 December 2011: what was named for that day comes as soon as it is over."""
    assert fires("0 12 * * *", "Pacific/Apia", "2011-12-29 00:00", "2011-12-31 12:00") == [
        "2011-12-29 22:00",
        "2011-12-30 10:00",
        "2011-12-30 22:00",
    ]


def test_times_that_fall_into_one_gap_fire_once():
    assert fires("0,20,40 2,3 * * *", "Europe/Paris", "2026-03-29 00:00", "2026-03-29 12:00") == [
        "2026-03-29 01:00",
        "2026-03-29 01:20",
        "2026-03-29 01:40",
    ]


# Against a definition that walks every minute

CHANGES = [
    ("Europe/Paris", "2026-03-29 01:00"),
    ("Europe/Paris", "2026-10-25 01:00"),
    ("America/New_York", "2026-03-08 07:00"),
    ("America/New_York", "2026-11-01 06:00"),
    ("Australia/Lord_Howe", "2026-04-04 15:00"),
    ("Australia/Lord_Howe", "2026-10-03 15:30"),
    ("America/Havana", "2026-03-08 05:00"),
    ("America/Havana", "2026-11-01 05:00"),
    ("America/Santiago", "2026-04-05 03:00"),
    ("America/Santiago", "2026-09-06 04:00"),
    ("Asia/Kathmandu", "2026-03-29 01:00"),
    ("UTC", "2026-03-29 01:00"),
]


def next_by_walking(minutes: set[int], hours: set[int], tz: str, after: datetime) -> datetime:
    zone = ZoneInfo(tz)
    start = after.replace(second=0, microsecond=0) - 6 * HOUR
    walk = [(start + n * MINUTE) for n in range(60 * 60)]
    clock = [(instant, instant.astimezone(zone).replace(tzinfo=None, fold=0)) for instant in walk]
    if len(hours) == 24:  # every instant whose local time matches
        return min(instant for instant, wall in clock if instant > after and wall.minute in minutes)
    # Each named time once, when the clock first shows it or is past it.
    midnight = clock[0][1].replace(hour=0, minute=0)
    named = [midnight + day * DAY + hour * HOUR + minute * MINUTE
             for day in range(1, 4) for hour in hours for minute in minutes]  # fmt: skip
    named += [
        wall for wall in (midnight + h * HOUR + m * MINUTE for h in hours for m in minutes) if wall > clock[0][1]
    ]
    firsts = (next((instant for instant, wall in clock if wall >= name), None) for name in named)
    return min(instant for instant in firsts if instant is not None and instant > after)


def test_the_changes_are_changes():
    for tz, change in CHANGES[:-2]:
        before, after = (at(change) + step for step in (-MINUTE, timedelta(0)))
        assert before.astimezone(ZoneInfo(tz)).utcoffset() != after.astimezone(ZoneInfo(tz)).utcoffset(), tz


@given(
    st.sampled_from(CHANGES),
    st.integers(-4 * 3600, 4 * 3600),
    st.sets(st.integers(0, 59), min_size=1, max_size=4),
    st.none() | st.sets(st.integers(0, 23), min_size=1, max_size=3) | st.sets(st.integers(0, 4), min_size=1),
)
def test_it_agrees_with_a_walk_through_every_minute(change, seconds, minutes, hours):
    tz, instant = change
    after = at(instant) + timedelta(seconds=seconds)
    expression = (
        ",".join(map(str, minutes)) + " " + ("*" if hours is None else ",".join(map(str, hours))) + " * * *"
    )
    expected = next_by_walking(minutes, hours or set(range(24)), tz, after)
    assert next_fire(expression, tz, after) == expected


# Missed instants

EXPRESSIONS = [
    "* * * * *",
    "*/7 * * * *",
    "0 * * * *",
    "30 2 * * *",
    "0 9 * * 1",
    "0 0 1 * *",
    "*/20 * * * * *",
]
instants = st.integers(0, 60 * 60 * 24 * 400).map(lambda seconds: at("2025-12-01") + timedelta(seconds=seconds))


def every_fire(expression: str, tz: str, due: datetime, now: datetime) -> list[datetime]:
    found = [due]
    while (following := next_fire(expression, tz, found[-1])) <= now:
        found.append(following)
    return found


def test_all_fires_every_missed_instant():
    plan = missed_fires("0 * * * *", "UTC", at("2026-01-01 03:00"), at("2026-01-01 06:10"), "all", 100)
    assert plan == MissedPlan([at(f"2026-01-01 0{hour}:00") for hour in (3, 4, 5, 6)], at("2026-01-01 07:00"))


def test_all_drops_nothing_over_its_limit():
    due, now = at("2026-01-01 03:00"), at("2026-01-01 06:10")
    plan = missed_fires("0 * * * *", "UTC", due, now, "all", 3)
    assert plan == MissedPlan([at(f"2026-01-01 0{hour}:00") for hour in (3, 4, 5)], at("2026-01-01 06:00"))
    plan = missed_fires("0 * * * *", "UTC", plan.next_at, now, "all", 3)
    assert plan == MissedPlan([at("2026-01-01 06:00")], at("2026-01-01 07:00"))


def test_once_fires_the_newest():
    plan = missed_fires("0 * * * *", "UTC", at("2026-01-01 03:00"), at("2026-01-01 06:10"), "once", 100)
    assert plan == MissedPlan([at("2026-01-01 06:00")], at("2026-01-01 07:00"))


def test_once_after_years_of_minutes():
    plan = missed_fires("* * * * *", "Europe/Paris", at("2016-01-01"), at("2026-01-01 00:00:30"), "once", 1)
    assert plan == MissedPlan([at("2026-01-01 00:00")], at("2026-01-01 00:01"))


@pytest.mark.parametrize(
    ("now", "fired"),
    [
        ("2026-01-01 03:00:00", True),
        ("2026-01-01 03:00:59.9", True),
        ("2026-01-01 03:01:00", False),
        ("2026-01-01 03:30:00", False),
        ("2026-01-01 06:00:00", False),
    ],
)
def test_skip_fires_only_what_is_on_time(now, fired):
    due = at("2026-01-01 03:00")
    plan = missed_fires("0 * * * *", "UTC", due, at(now), "skip", 100)
    assert plan == MissedPlan([due] if fired else [], next_fire("0 * * * *", "UTC", at(now)))


def test_skip_has_a_grace():
    due, now = at("2026-01-01 03:00"), at("2026-01-01 03:30")
    assert missed_fires("0 * * * *", "UTC", due, now, "skip", 1, grace=1801.0).fires == [due]
    assert missed_fires("0 * * * *", "UTC", due, now, "skip", 1, grace=1800.0).fires == []
    # A newer instant has passed: `due` is no longer the latest, however long the grace.
    assert missed_fires("*/5 * * * *", "UTC", due, now, "skip", 1, grace=9999.0).fires == []


@pytest.mark.parametrize("policy", ["skip", "once", "all"])
def test_on_time_every_policy_fires_once(policy):
    due = at("2026-01-01 03:00")
    plan = missed_fires("0 * * * *", "UTC", due, due, policy, 100)
    assert plan == MissedPlan([due], at("2026-01-01 04:00"))


@pytest.mark.parametrize("policy", ["skip", "once", "all"])
def test_nothing_fires_before_its_time(policy):
    due = at("2026-01-01 03:00")
    assert missed_fires("0 * * * *", "UTC", due, due - MINUTE, policy, 100) == MissedPlan([], due)


@given(
    st.sampled_from(EXPRESSIONS),
    st.sampled_from(["UTC", "Europe/Paris", "Australia/Lord_Howe"]),
    instants,
    st.integers(0, 200_000),
    st.sampled_from(["skip", "once", "all"]),
    st.integers(1, 5),
)
def test_every_plan_keeps_its_promise(expression, tz, start, late, policy, limit):
    due = next_fire(expression, tz, start)
    now = due + timedelta(seconds=late)
    assume(late < 20_000 or not expression.startswith("*"))  # the list to compare with stays short
    missed = every_fire(expression, tz, due, now)
    planned, next_at = missed_fires(expression, tz, due, now, policy, limit)
    if policy == "all":
        assert planned == missed[:limit]
        assert next_at == next_fire(expression, tz, planned[-1])
    else:
        assert planned in ([[], missed[-1:]] if policy == "skip" else [missed[-1:]])
        assert next_at == next_fire(expression, tz, now)
    assert next_at > now or (policy == "all" and len(planned) == limit)
