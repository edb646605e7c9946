"""Times on the wire: RFC 3339 and nothing else, however much more a parser would take."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

from ropeway.core.errors import FieldError

_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)?\Z", re.ASCII
)
_LONGEST = 64


def parse_time(text: str, field: str) -> datetime:
    """A time with its zone, in UTC; what is finer than a microsecond is cut off.

    Raises FieldError: `timezone_required` for a time that does not say its zone, `invalid_time` for anything that
    is no time in this form. A leap second is refused, because stores disagree about what it means.
    """
    found = _RFC3339.match(text) if len(text) <= _LONGEST else None
    if found is None:
        raise _invalid(field, "must be a time as RFC 3339 writes it")
    year, month, day, hour, minute, second = map(int, found.groups()[:6])
    zone = found[8]
    if zone is None:
        raise FieldError(
            f"{field} must say its time zone",
            code="timezone_required",
            pointer=f"/{field}",
            hint="for example 2026-01-31T09:00:00Z",
        )
    micros = int((found[7] or "0")[:6].ljust(6, "0"))
    try:
        return datetime(year, month, day, hour, minute, second, micros, tzinfo=_zone(zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise _invalid(field, "is no instant of the calendar") from None


def _zone(text: str) -> timezone:
    if text in "Zz":
        return UTC
    hours, minutes = int(text[1:3]), int(text[4:6])
    if hours > 23 or minutes > 59:
        raise ValueError("no such offset")
    offset = timedelta(hours=hours, minutes=minutes)
    return timezone(-offset if text[0] == "-" else offset)


def _invalid(field: str, what: str) -> FieldError:
    return FieldError(
        f"{field} {what}", code="invalid_time", pointer=f"/{field}", hint="for example 2026-01-31T09:00:00Z"
    )
