"""What a handler says while it runs: lines that are kept with their job and go with it. Not events."""

from __future__ import annotations

from datetime import datetime

import msgspec

from ropeway.core import fields
from ropeway.core.payload import clean_text

#: Lines kept of one job; the oldest go first.
MAX_LINES = 1_000

#: Characters kept of one message.
MAX_MESSAGE = 4_096

#: Lines answered at once, unless the question says otherwise.
DEFAULT_LINES = 500

_MAX_LEVEL = 16
_MOST = 2**31 - 1


class LogLine(msgspec.Struct, frozen=True):
    """One line of a job's log. The engine sets the rest of it when it is stored: the attempt that wrote it, its
    number (1, 2, 3 ... per job, never given twice) and its time."""

    message: str
    level: str = "info"
    attempt: int = 0
    n: int = 0
    at: datetime | None = None


def kept_line(line: LogLine, *, attempt: int, n: int, at: datetime | None) -> LogLine:
    """A line as it is stored: text that any engine can keep, cut and cleaned, never refused."""
    level = clean_text(line.level, _MAX_LEVEL) or "info"
    return LogLine(clean_text(line.message, MAX_MESSAGE), level, attempt, n, at)


def check_lines(after: int, limit: int) -> None:
    """The bounds of a question for lines."""
    fields.check_integer(after, "after", 0, _MOST)
    fields.check_integer(limit, "limit", 1, MAX_LINES)
