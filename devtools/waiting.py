"""Waiting on facts: a test or a helper says what must become true and how long that may take at most."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class NeverCameTrue(AssertionError):
    """The fact did not hold within its time."""


def wait_until(fact: Callable[[], T], *, within: float = 10.0, what: str = "", every: float = 0.02) -> T:
    """Ask `fact` until it answers something true, and return that answer.

    Raises NeverCameTrue after `within` seconds, naming `what` (or the fact's own name).
    """
    deadline = time.monotonic() + within
    while True:
        if answer := fact():
            return answer
        if time.monotonic() > deadline:
            name = what or getattr(fact, "__name__", repr(fact))
            raise NeverCameTrue(f"not true within {within:g} s: {name}")
        time.sleep(every)
