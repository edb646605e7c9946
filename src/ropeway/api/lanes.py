"""A lane is a queue of a tenant that somebody waits for; whose turn it is to look there goes by batons."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Protocol

#: How many get batons after a full batch: a burst reaches a long line in a few steps.
_AFTER_FULL = 2

#: A job that becomes due later than this is left to the looks.
_FAR = 60.0

#: The shortest time that is waited for.
SOON = 0.001


class Caller(Protocol):
    """The one who waits, at the other end of a connection."""

    async def present(self) -> bool:
        """Whether it is still there, without waiting."""

    def disconnected(self) -> Coroutine[Any, Any, None]:
        """Returns when it has gone."""


class Waiter:
    """One call that waits, no longer than it asked to and no longer than its caller is there."""

    __slots__ = ("_timer", "_watching", "batons", "expired", "gone", "lanes", "woken")

    def __init__(self, lanes: list[Lane]) -> None:
        self.lanes = lanes
        #: The lanes in which it is this waiter's turn to look.
        self.batons: set[Lane] = set()
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: Why it is to wait no longer: its time is over, or nobody is there to be answered.
        self.expired = False
        self.gone = False
        self._timer: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None

    def settle_down(self, deadline: float, caller: Caller) -> None:
        """From here on it waits: until the deadline, in the loop's time."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(deadline, self._expire)
        self._watching = loop.create_task(caller.disconnected())
        self._watching.add_done_callback(self._lose)

    def get_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()

    def wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)

    def _expire(self) -> None:
        self.expired = True
        self.wake()

    def _lose(self, _watching: asyncio.Task[None]) -> None:
        self.gone = True
        self.wake()


class Lane:
    """The waiters of one queue of one tenant."""

    __slots__ = (
        "again",
        "due_timer",
        "empty",
        "hints",
        "holders",
        "key",
        "left_at",
        "line",
        "looked_at",
        "pokes",
        "ready",
        "signalled",
        "task",
        "users",
    )

    def __init__(self, tenant: str, queue: str) -> None:
        self.key = (tenant, queue)
        #: In the order they came.
        self.line: dict[Waiter, None] = {}
        #: Those who want to be told, not to lease.
        self.hints: set[Waiter] = set()
        #: Those whose turn it is to look.
        self.holders: set[Waiter] = set()
        #: Whether something happened while the holders looked: their looks may have missed it.
        self.again = False
        #: Whether the last look found the lane empty and nothing happened since.
        self.empty = False
        #: When the last look that found nothing had begun.
        self.looked_at = asyncio.get_running_loop().time()
        #: How often something happened.
        self.pokes = 0
        #: The number of the newest signal.
        self.signalled = 0
        self.due_timer: asyncio.TimerHandle | None = None
        self.ready = asyncio.Event()
        #: Calls that use the lane, also those that do not wait yet, and when the last of them left.
        self.users = 0
        self.left_at = 0.0
        self.task: asyncio.Task[None] | None = None

    def poke(self) -> None:
        """There may be work: the first in line looks, unless somebody does already."""
        self.pokes += 1
        self.empty = False
        if self.holders:
            self.again = True
        else:
            self._give_batons(1)

    def looked(self, holder: Waiter, *, more: bool) -> None:
        """A holder has looked; `more`: there may be work for the next."""
        self.holders.discard(holder)
        if more:
            self._give_batons(_AFTER_FULL)
        elif not self.holders:
            if self.again:
                self.again = False
                self.poke()
            else:
                self.empty = True

    def due_in(self, seconds: float | None) -> None:
        """A job is known to become due."""
        if seconds is None or seconds > _FAR:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + max(seconds, SOON)
        if self.due_timer is not None:
            if self.due_timer.when() <= at:
                return
            self.due_timer.cancel()
        self.due_timer = loop.call_at(at, self._is_due)

    def _is_due(self) -> None:
        self.due_timer = None
        self.poke()

    def _give_batons(self, number: int) -> None:
        chosen = []
        for waiter in self.line:
            if waiter not in self.holders:
                chosen.append(waiter)
                if len(chosen) == number:
                    break
        for waiter in chosen:
            self.holders.add(waiter)
            waiter.batons.add(self)
            waiter.wake()


def note_look(lanes: Iterable[Lane], began: float) -> None:
    """A look found nothing in any of the lanes."""
    for lane in lanes:
        lane.looked_at = max(lane.looked_at, began)
