"""An event loop on virtual time: when nobody has anything to do, the time of the next timer has come."""

from __future__ import annotations

import asyncio
import os
import random
import selectors
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar
from unittest import mock

from chaos.virtual import BEGIN
from ropeway.runtime import ids

T = TypeVar("T")


class Stuck(Exception):
    """Everybody waits for somebody else, and no timer is set."""


class JumpingLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop; only its clock and its waiting are another's."""

    virtual = 0.0

    def __init__(self) -> None:
        super().__init__(_Jumper(self))

    def time(self) -> float:
        return self.virtual


class _Jumper(selectors.SelectSelector):
    """Waits by moving the clock. What the loop itself wakes up by is there at once or never."""

    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise Stuck
        if timeout > 0:
            self._loop.virtual += timeout
        return ready


class LoopClock:
    """The engine's clock."""

    def __init__(self, loop: JumpingLoop) -> None:
        self._loop = loop

    def now(self) -> datetime:
        return BEGIN + timedelta(seconds=self._loop.virtual)


@contextmanager
def _nothing_of_the_machine(loop: JumpingLoop, seed: int) -> Iterator[None]:
    """What asks the machine for the time gets the loop's, and what asks it for random bytes gets the seed's: ids
    are in sets, and a set's order is that of its members."""
    chance = random.Random(seed)

    def wall() -> float:
        return BEGIN.timestamp() + loop.virtual

    def nanoseconds() -> int:
        return int(wall() * 1e9)

    with (
        mock.patch.object(time, "monotonic", loop.time),
        mock.patch.object(time, "perf_counter", loop.time),
        mock.patch.object(time, "time", wall),
        mock.patch.object(time, "time_ns", nanoseconds),
        mock.patch.object(os, "urandom", chance.randbytes),
        mock.patch.object(ids, "_last_moment", 0),
    ):
        yield


def run_virtually(seed: int, work: Coroutine[Any, Any, T], loop: JumpingLoop) -> T:
    """Run it to its end on that loop, with every draw from the seed."""
    random.seed(seed)
    # Those that were killed leave tasks behind, as a killed process does.
    loop.set_exception_handler(lambda *_: None)
    with _nothing_of_the_machine(loop, seed), asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(work)
