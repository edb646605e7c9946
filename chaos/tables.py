"""Tables of the report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[object], rows: Iterable[Iterable[object]]) -> list[str]:
    """The lines of a table in Markdown."""
    return [_row(head), _row(["---"] * len(head)), *map(_row, rows)]


def _row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(content: object) -> str:
    """On one line, and with no more columns than it is one."""
    return " ".join(str(content).split()).replace("|", "/")
