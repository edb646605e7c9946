"""The clock of a test: it starts at the time of day, stands still, and moves when it is told to."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from ropeway.core.errors import UsageError
from ropeway.core.fields import check_time


class MovableClock:
    """What the test's store takes for now. Your own code's `datetime.now()` is not touched."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = datetime.now(UTC) if start is None else start
        #: Called after a move into the past.
        self.turned_back: Callable[[], None] = _nothing

    def now(self) -> datetime:
        return self._now

    def advance(
        self,
        by: timedelta | float = 0.0,
        *,
        seconds: float = 0.0,
        minutes: float = 0.0,
        hours: float = 0.0,
        days: float = 0.0,
    ) -> datetime:
        """Move forward, and say what time it is then. `by` is a timedelta or a number of seconds."""
        self._now += duration(by, seconds=seconds, minutes=minutes, hours=hours, days=days)
        return self._now

    def move_to(self, at: datetime) -> datetime:
        """Make it this time (with a zone), ahead or past; the next times of schedules are planned from there."""
        before, self._now = self._now, check_time(at, "at").astimezone(UTC)
        if self._now < before:
            self.turned_back()
        return self._now

    def __repr__(self) -> str:
        return f"<clock at {self._now:%Y-%m-%d %H:%M:%S} UTC>"


def duration(by: timedelta | float = 0.0, **parts: float) -> timedelta:
    """How long that is. Raises UsageError for less than nothing."""
    total = (by if isinstance(by, timedelta) else timedelta(seconds=by)) + timedelta(**parts)
    if total < timedelta(0):
        raise UsageError("the clock advances forward only", hint="ropeway.clock.move_to() can go back")
    return total


def _nothing() -> None:
    pass
