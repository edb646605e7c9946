"""Whose turn it is to write: two advisory locks beside the file, shared by all processes that have it open.

SQLite lets waiting writers sleep and try again, so the one that just finished takes the lock once more and the
others starve (60,000 to 0 jobs between two processes). Here a writer takes the gate, then the turn, then frees the
gate: whoever waits for the turn holds the gate, so that the writer who just finished cannot overtake it.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from pathlib import Path

from ropeway.core.errors import Unavailable

#: How long a writer waits for its turn before it gives up: a process that was stopped may hold it for ever.
PATIENCE_SECONDS = 10.0

#: Between two looks at a lock. A blocking flock cannot give up, and a look costs 2 µs.
_LOOK_SECONDS = 0.0002


class Turnstile:
    """The two locks of one handle on a database."""

    def __init__(self, database: Path) -> None:
        self._gate = _open(database, ".gate")
        self._turn = _open(database, ".turn")
        _open_turnstiles.add(self)

    def enter(self) -> None:
        """Wait for the turn. Raises Unavailable when nobody gives it up."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        _take(self._gate, deadline)
        try:
            _take(self._turn, deadline)
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)

    def leave(self) -> None:
        fcntl.flock(self._turn, fcntl.LOCK_UN)

    def close(self) -> None:
        for lock in (self._gate, self._turn):
            if lock >= 0:
                os.close(lock)
        self._gate = self._turn = -1
        _open_turnstiles.discard(self)


def _open(database: Path, ending: str) -> int:
    return os.open(f"{database}{ending}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _take(lock: int, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"another process has kept the database for {PATIENCE_SECONDS:g} s",
                    hint="is a process that uses the file stopped or stuck?",
                ) from None
            time.sleep(_LOOK_SECONDS)
        else:
            return


_open_turnstiles: weakref.WeakSet[Turnstile] = weakref.WeakSet()


def _close_in_child() -> None:
    """A forked child must not keep its parent's locks alive: they last until every copy is closed."""
    for turnstile in list(_open_turnstiles):
        turnstile.close()


os.register_at_fork(after_in_child=_close_in_child)
