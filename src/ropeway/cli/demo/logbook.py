"""What the worker logs during the demo: kept off the screen, shown when something went wrong."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from ropeway.cli import output
from ropeway.observability import logs

LINES = 20


class Logbook(io.StringIO):
    """A stream that keeps its newest lines."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[str] = deque(maxlen=LINES)

    def write(self, text: str, /) -> int:
        self._lines.extend(text.splitlines())
        return len(text)

    @contextmanager
    def open(self) -> Iterator[None]:
        logs.configure("WARNING", "text", self)
        try:
            yield
        finally:
            logs.unconfigure()

    def print(self) -> None:
        for line in self._lines:
            output.note(line)
