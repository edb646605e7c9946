"""The columns of the list of jobs: which there are, and which of them somebody wants to see."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ropeway.core.errors import FieldError

#: By the name in an address, with their headings, from left to right. The id is always there: it leads to the job.
COLUMNS: Final = {
    "type": "Type",
    "queue": "Queue",
    "status": "State",
    "priority": "Priority",
    "attempts": "Attempts",
    "created": "Created",
    "started": "Started",
    "due": "Due or ended",
    "worker": "Worker",
    "key": "Idempotency key",
    "tags": "Tags",
    "error": "Last error",
}

#: What is shown to those who did not choose.
USUAL: Final = ("type", "queue", "status", "attempts", "created", "due", "error")

#: Columns of numbers, which stand to the right.
NUMBERS: Final = frozenset({"priority", "attempts"})


def chosen(asked: Iterable[str]) -> tuple[str, ...]:
    """The columns to show, in their order, for what was asked: names, each perhaps several with commas between.
    Raises FieldError for a name that is none."""
    names = {name.strip() for text in asked for name in text.split(",") if name.strip()}
    unknown = sorted(names - COLUMNS.keys())
    if unknown:
        raise FieldError(
            f"there is no column {unknown[0][:64]!r}", pointer="/columns", hint=f"some of {', '.join(COLUMNS)}"
        )
    return tuple(name for name in COLUMNS if name in names) or USUAL


def as_asked(columns: tuple[str, ...]) -> str | None:
    """The same as one value for an address; None for the usual ones, which need none."""
    return None if columns == USUAL else ",".join(columns)
