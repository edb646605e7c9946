"""What was printed and waits in this process."""

from __future__ import annotations

import contextlib
import sys


def write_out() -> None:
    """Write it now: before an end that does not, or a fork, after which each would write it. Never fails."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
