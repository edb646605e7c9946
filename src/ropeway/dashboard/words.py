"""How values are written on a page: numbers, times, lengths of time, ids, JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from markupsafe import Markup

from ropeway.core.durations import in_words, roughly
from ropeway.core.events import rfc3339

#: Longer JSON is cut on a page; the API has all of it.
MOST_JSON = 20_000
#: Characters of any other text that comes from a job.
MOST_TEXT = 2_000


def number(value: float | None, *, capped: bool = False) -> str:
    """1,234; `capped`: at least so many."""
    if value is None:
        return "–"
    text = f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:,.1f}"
    return f"{text}+" if capped and value else text


def seconds(value: float | None) -> str:
    """A length of time, or that there is none."""
    return "–" if value is None else in_words(value)


def exactly(at: datetime) -> str:
    """A time for people who want to know."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def relative(at: datetime, now: datetime) -> str:
    """A time as it is from now."""
    away = (at - now).total_seconds()
    if abs(away) < 1:
        return "now"
    return f"in {roughly(away)}" if away > 0 else f"{roughly(-away)} ago"


def when(at: datetime | None, now: datetime) -> Markup:
    """A time as an element: relative to read, exact to hover over; a script keeps the first one true."""
    if at is None:
        return Markup('<span class="none">–</span>')
    return Markup('<time datetime="{}" title="{}" data-relative>{}</time>').format(
        rfc3339(at), exactly(at), relative(at, now)
    )


def short_id(id: UUID | str) -> str:
    """Enough of an id to tell jobs apart: those made together differ at the end."""
    text = str(id)
    return f"{text[:8]}…{text[-6:]}"


def megabytes(value: int | None) -> str:
    return "–" if value is None else f"{value / 1_048_576:,.0f} MiB"


def clipped(text: str | None, most: int = MOST_TEXT) -> str:
    """Text from a job, cut to what a page can hold."""
    if not text:
        return ""
    return text if len(text) <= most else f"{text[:most]}…"


def pretty_json(data: bytes | None) -> str:
    """Stored JSON with a line for each member; as it is, when it is not quite JSON."""
    if data is None:
        return ""
    try:
        text = msgspec.json.format(data, indent=2).decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = data.decode(errors="replace")
    return text if len(text) <= MOST_JSON else f"{text[:MOST_JSON]}\n… ({len(data):,} bytes in all)"


def plain(value: Any) -> str:
    """A setting or a detail of an event in one line."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode() if not isinstance(value, int) else str(value)
