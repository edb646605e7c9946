"""What a handler says while it runs: lines that are kept with their job and go with it. Not events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from ropeway.core import fields
from ropeway.core.payload import clean_text

#: Lines kept of one job, and bytes of their messages; the oldest go first.
MAX_LINES = 1_000
MAX_LOG_BYTES = 65_536

#: Characters kept of one message.
MAX_MESSAGE = 4_096

#: So few lines are never too large together: a character has at most four bytes.
NEVER_TOO_LARGE = MAX_LOG_BYTES // (4 * MAX_MESSAGE)

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


def newest_kept(lines: Sequence[LogLine]) -> Sequence[LogLine]:
    """What is kept of a job's lines: the newest, as many and as large together as a log may be."""
    size = 0
    for number, line in enumerate(reversed(lines)):
        size += len(line.message.encode())
        if number == MAX_LINES or size > MAX_LOG_BYTES:
            return lines[len(lines) - number :]
    return lines


def check_lines(after: int, limit: int) -> None:
    """The bounds of a question for lines."""
    fields.check_integer(after, "after", 0, _MOST)
    fields.check_integer(limit, "limit", 1, MAX_LINES)
