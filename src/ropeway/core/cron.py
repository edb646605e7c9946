"""Cron expressions: which instants they name, and what to do about those that were missed.

Five fields (minute, hour, day of month, month, day of week), or six with the second first; cronsim reads them
and walks the calendar. What happens when clocks change is decided here, because it depends on what is meant:

- An expression that fires in every hour (`*/5 * * * *`, `0 * * * *`) means elapsed time. It fires at every
  instant whose local time matches: through a repeated hour as well, and not at all in a skipped one.
- An expression that names hours (`30 2 * * *`) means the wall clock. Each named time fires once: at its first
  occurrence in a repeated hour, and when the gap ends if it falls into a skipped one.

Time comes in as an argument and goes out in UTC.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from ropeway.core.errors import FieldError

MAX_EXPRESSION = 256

#: Any fixed instant will do to find out whether an expression ever fires: cronsim looks 50 years ahead.
_EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)


class MissedPlan(NamedTuple):
    """What to do now: the instants to fire, oldest first, and the instant to wait for next."""

    fires: list[datetime]
    next_at: datetime


def check_cron(expression: str, tz: str) -> None:
    """Raise a FieldError unless `expression` is a cron expression that fires at all and `tz` a known zone."""
    next_fire(expression, tz, _EPOCH)


def next_fire(expression: str, tz: str, after: datetime) -> datetime:
    """The first instant strictly after `after`, in UTC. Raises FieldError as `check_cron` does."""
    zone = time_zone(tz)
    if after.utcoffset() is None:
        raise FieldError("the time must say its zone", code="timezone_required")
    after = after.astimezone(UTC)
    try:
        local = after.astimezone(zone)
        wall = local.replace(tzinfo=None, fold=0)
        matches = _parse(expression, wall)
        if zone is UTC:
            found = next(matches, None)
            found = found and found.replace(tzinfo=UTC)
        elif len(matches.hours) == 24:
            # In the first pass through a repeated hour, matches of the second pass lie behind the wall clock.
            repeated = local.replace(fold=0).utcoffset() - local.replace(fold=1).utcoffset()  # type: ignore[operator]
            if repeated > timedelta(0):
                matches = _parse(expression, wall - repeated)
            found = _next_elapsed(matches, zone, after)
        else:
            found = _next_on_the_clock(matches, zone, after)
    except (OverflowError, ValueError):  # past the year 9999
        found = None
    if found is None:
        raise FieldError("the cron expression never fires", pointer="/cron")
    return found


def missed_fires(
    expression: str,
    tz: str,
    due: datetime,
    now: datetime,
    policy: Literal["skip", "once", "all"],
    limit: int,
    *,
    grace: float = 60.0,
) -> MissedPlan:
    """What to fire at `now`, when `due` is the instant that was waited for.

    all   Every instant from `due` to `now`, at most `limit`; then `next_at` is the first that was left over,
          so nothing is dropped.
    once  One fire, for the newest instant.
    skip  `due` alone, if no other instant has passed since and it is less than `grace` seconds old; otherwise
          nothing.

    Nothing is fired before its time: with `due` after `now` the plan is to wait for it.
    """
    due, now = due.astimezone(UTC), now.astimezone(UTC)
    if due > now:
        return MissedPlan([], due)
    if policy == "all":
        fires: list[datetime] = []
        instant = due
        while instant <= now and len(fires) < limit:
            fires.append(instant)
            instant = next_fire(expression, tz, instant)
        return MissedPlan(fires, instant)
    next_at = next_fire(expression, tz, now)
    if policy == "once":
        return MissedPlan([_newest(expression, tz, due, now)], next_at)
    on_time = now - due < timedelta(seconds=grace) and next_fire(expression, tz, due) > now
    return MissedPlan([due] if on_time else [], next_at)


def _newest(expression: str, tz: str, due: datetime, now: datetime) -> datetime:
    """The last instant from `due` to `now`, by halving the time between: years of minutes may lie there."""
    newest, none_after = due, now  # an instant; no instant lies after `none_after`, up to `now`
    while (following := next_fire(expression, tz, newest)) <= now:
        newest = following
        middle = newest + (none_after - newest) / 2
        candidate = next_fire(expression, tz, middle)
        if candidate <= now:
            newest = candidate
        else:
            none_after = middle
    return newest


def _parse(expression: str, wall: datetime) -> CronSim:
    """The matches of an expression after a wall-clock time, as wall-clock times, earliest first."""
    hint = "five fields: minute, hour, day of month, month, day of week; such as '30 2 * * 1-5'"
    if not isinstance(expression, str) or not (expression.isascii() and expression.isprintable()):
        raise FieldError("cron must be plain text", pointer="/cron", hint=hint)
    if len(expression) > MAX_EXPRESSION:
        raise FieldError(f"cron must be at most {MAX_EXPRESSION} characters", pointer="/cron")
    try:
        return CronSim(expression, wall)
    except CronSimError as error:
        raise FieldError(f"not a cron expression: {str(error).lower()}", pointer="/cron", hint=hint) from None


def time_zone(tz: str) -> tzinfo:
    """The zone of that name. Raises FieldError for one that is not known."""
    if tz == "UTC":
        return UTC
    # There may be files of these names, but no zones: the machine's own, and copies with leap seconds.
    if isinstance(tz, str) and not tz.startswith(("localtime", "posix", "right")):
        # ZoneInfo has many ways to say no: not found, not a path below the database, a folder, too long.
        with suppress(KeyError, ValueError, OSError):
            return ZoneInfo(tz)
    raise FieldError(
        f"unknown time zone {str(tz)[:64]!r}", pointer="/tz", hint="a name such as Europe/Paris or UTC"
    )


def _next_elapsed(matches: CronSim, zone: tzinfo, after: datetime) -> datetime | None:
    """The first instant after `after` whose local time matches."""
    found: datetime | None = None
    for wall in matches:
        first, second = _instants(wall, zone)
        if second < first:
            continue  # skipped by the clock
        for instant in (first, second):
            if instant > after and (found is None or instant < found):
                found = instant
        if first > after:
            return found  # later matches have later instants
    return found


def _next_on_the_clock(matches: CronSim, zone: tzinfo, after: datetime) -> datetime | None:
    """The first instant after `after` at which a named time of day has come."""
    for wall in matches:
        first, second = _instants(wall, zone)
        instant = _gap_end(second, first, zone) if second < first else first
        if instant > after:
            return instant
    return None


def _instants(wall: datetime, zone: tzinfo) -> tuple[datetime, datetime]:
    """When clocks show `wall`: twice the same instant as a rule; first and second time if it is repeated.

    If it is skipped, the second is before the gap's end and the first at or after it, so second < first.
    """
    return (
        wall.replace(tzinfo=zone, fold=0).astimezone(UTC),
        wall.replace(tzinfo=zone, fold=1).astimezone(UTC),
    )


def _gap_end(before: datetime, after: datetime, zone: tzinfo) -> datetime:
    """The instant at which clocks jump ahead: in (before, after], at a whole second."""
    offset = after.astimezone(zone).utcoffset()
    while after - before > _SECOND:
        middle = before + (after - before) // 2
        middle = middle.replace(microsecond=0)
        if middle.astimezone(zone).utcoffset() == offset:
            after = middle
        else:
            before = middle
    return after
