"""Lines of a job's log: kept whatever they hold."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeway.core.errors import FieldError
from ropeway.core.joblog import MAX_LINES, MAX_MESSAGE, LogLine, check_lines, kept_line

NOW = datetime(2026, 1, 31, tzinfo=UTC)


def test_the_engine_says_who_wrote_it_and_when() -> None:
    line = LogLine("hello", "debug", attempt=9, n=9, at=NOW)
    assert kept_line(line, attempt=2, n=3, at=None) == LogLine("hello", "debug", 2, 3, None)


@given(st.text(st.characters(codec=None), max_size=50), st.text(st.characters(codec=None), max_size=50))
def test_any_text_can_be_stored(message: str, level: str) -> None:
    line = kept_line(LogLine(message, level), attempt=1, n=1, at=NOW)
    for text in (line.message, line.level):
        assert "\0" not in text
        text.encode()
    assert len(line.message) == len(message)
    assert 1 <= len(line.level) <= 16


def test_a_long_message_is_cut() -> None:
    assert kept_line(LogLine("x" * 5_000), attempt=1, n=1, at=NOW).message == "x" * MAX_MESSAGE


@pytest.mark.parametrize(
    ("after", "limit"), [(-1, 1), (2**31, 1), (True, 1), (0, 0), (0, MAX_LINES + 1), (0, 1.5)]
)
def test_bounds_of_a_question(after: int, limit: int) -> None:
    with pytest.raises(FieldError):
        check_lines(after, limit)


def test_the_widest_question() -> None:
    check_lines(2**31 - 1, MAX_LINES)
