"""Why a sample has no value, and how long one may take."""

from __future__ import annotations

import time


class NoFigure(Exception):
    """A sample without a value; the message is the reason, in words for a table, `extra` what belongs to it."""

    def __init__(self, reason: str, **extra: float) -> None:
        super().__init__(reason)
        self.extra = extra


class PeerFailed(NoFigure):
    """It was tried and something went wrong."""


class Unsupported(NoFigure):
    """The peer, or its store, has no such thing."""


class NeverHappened(NoFigure):
    """It was waited for in vain."""


class Deadline:
    """When a sample must be over; asked wherever something is waited for."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds

    @property
    def remaining(self) -> float:
        """Seconds; none or less when it is over."""
        return self._at - time.monotonic()

    @property
    def left(self) -> float:
        """Seconds; PeerFailed when there are none."""
        left = self.remaining
        if left <= 0:
            raise PeerFailed(f"took longer than {self.seconds:g} s")
        return left
