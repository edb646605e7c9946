"""What the checker finds."""

from __future__ import annotations

from typing import NamedTuple


class Violation(NamedTuple):
    """A rule that was broken: which, on which job, and what happened."""

    rule: str
    job: str
    words: str

    def __str__(self) -> str:
        return f"{self.rule} {self.job}: {self.words}"
