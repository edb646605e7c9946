"""Windows: the hours of the day in which a task's jobs may start, by the clock on the wall of some place.

An instant is inside if the local time then lies between start and end; a window may span midnight. When clocks go
back, a repeated time is inside both times. When they go forward, a window that opens in the skipped hour opens
when that hour ends, and one that lies in it altogether does not open that day.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta, tzinfo

import msgspec

from ropeway.core.cron import time_zone
from ropeway.core.errors import FieldError

_FORM = re.compile(r"\s*([01]?\d|2[0-3]):([0-5]\d)\s*-\s*([01]?\d|2[0-3]|24):([0-5]\d)\s*\Z")
_HINT = "two times of day, such as 22:00-06:00"

#: A zone may skip a whole day (Samoa has), a window in a skipped hour another one: nothing takes longer than this.
_MOST_DAYS = 8


class Window(msgspec.Struct, frozen=True):
    """From `start` (included) to `end` (not included), every day, in the time zone `tz`."""

    start: time
    end: time
    tz: str = "UTC"

    @classmethod
    def parse(cls, text: str, tz: str = "UTC") -> Window:
        """The window of a text such as `22:00-06:00`; 24:00 may end one. Raises FieldError."""
        found = _FORM.match(text) if isinstance(text, str) else None
        if found is None:
            raise FieldError("window must be two times of day", pointer="/window", hint=_HINT)
        hour, minute, end_hour, end_minute = map(int, found.groups())
        if end_hour == 24:
            if end_minute:
                raise FieldError("window must end by 24:00", pointer="/window", hint=_HINT)
            end_hour = 0
        start, end = time(hour, minute), time(end_hour, end_minute)
        if start == end:
            raise FieldError("window must not be empty or the whole day", pointer="/window", hint=_HINT)
        time_zone(tz)
        return cls(start, end, tz)

    def contains(self, at: datetime) -> bool:
        """Whether the instant `at` is inside."""
        return self._open_at(at, time_zone(self.tz))

    def next_start(self, at: datetime) -> datetime:
        """The first instant from `at` on that is inside, in UTC: `at` itself if it is."""
        zone = time_zone(self.tz)
        at = at.astimezone(UTC)
        if self._open_at(at, zone):
            return at
        today = at.astimezone(zone).date()
        for days in range(_MOST_DAYS):
            wall = datetime.combine(today + timedelta(days=days), self.start)
            for instant in (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1)):
                opened = self._first_open(at, instant, zone)
                if opened is not None:
                    return opened
        raise FieldError(f"the window {self} never opens", pointer="/window")

    def _first_open(self, at: datetime, instant: datetime, zone: tzinfo) -> datetime | None:
        """The window's opening, if it is at `instant` or at a change of the clocks on the way there from `at`."""
        if instant < at:
            return None
        change = _change_of_clocks(at, instant, zone)
        if change is not None and self._open_at(change, zone):
            return change
        return instant if self._open_at(instant, zone) else None

    def _open_at(self, at: datetime, zone: tzinfo) -> bool:
        local = at.astimezone(zone).time()
        if self.start < self.end:
            return self.start <= local < self.end
        return local >= self.start or local < self.end

    def __str__(self) -> str:
        return f"{self.start:%H:%M}-{self.end:%H:%M} {self.tz}"


def _change_of_clocks(before: datetime, after: datetime, zone: tzinfo) -> datetime | None:
    """The instant at which the zone's offset changed between two instants; None if it did not."""
    offset = after.astimezone(zone).utcoffset()
    if before.astimezone(zone).utcoffset() == offset:
        return None
    before = before.replace(microsecond=0)  # clocks change at whole seconds
    while after - before > timedelta(seconds=1):
        middle = (before + (after - before) / 2).replace(microsecond=0)
        if middle.astimezone(zone).utcoffset() == offset:
            after = middle
        else:
            before = middle
    return after
