"""How much of a quota is used, without a count for each call.

A gauge counts now and then, and in between adds what this process admits itself. What ends meanwhile is noticed
by the next count, which is made at once when there seems to be no room; what other processes add, too, so several
of them may together pass a limit by what they admit within a second, or within twenty times what a count takes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from ropeway.core.query import Count

#: A count takes at most this share of the time: after one that took 10 ms there is none for 200 ms.
SPARE = 20.0

#: Seconds between two counts of something that is nowhere near its limit, at most and at least.
LONGEST, SHORTEST = 60.0, 1.0

#: A first look counts no further than this: enough to tell that a limit of millions is far away.
QUICK = 10_000


class Gauge:
    """One number and its limit. `count(cap)` asks the engine."""

    def __init__(
        self, count: Callable[[int], Awaitable[Count]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._count = count
        self._clock = clock
        self._counted: int | None = None
        #: The last count stopped before the end: there may be more.
        self._partial = False
        self._counted_at = 0.0
        self._took = 0.0
        self._full_until = 0.0
        #: All that this process admitted and did not take back, and what of that the last count has seen.
        self._admitted = 0
        self._seen = 0
        self.in_flight = 0
        self._settling: asyncio.Future[None] | None = None
        self._look: asyncio.Task[None] | None = None
        self.used_at = clock()

    @property
    def used(self) -> int:
        """As far as is known."""
        return (self._counted or 0) + self._admitted - self._seen

    async def room(self, wanted: int, limit: int, *, growth: float) -> int:
        """How much is left under `limit`; may be negative. It is exact for this process when it is below `wanted`.

        `growth` is how much all processes may add per second: the further away the limit, the rarer the counts.
        """
        now = self.used_at = self._clock()
        age, pause = now - self._counted_at, self._pause(limit, growth)
        if self._counted is None or age >= 2 * pause:
            # Nobody asked for a while, so nobody counted either.
            await asyncio.shield(self._start(limit))
        elif age >= pause:
            self._start(limit)
        if self.used + wanted <= limit or now < self._full_until:
            return limit - self.used
        await asyncio.shield(self._start(limit))
        if self._partial:
            await asyncio.shield(self._start(limit))
        if self.used + wanted > limit:
            self._full_until = self._clock() + SPARE * self._took
        return limit - self.used

    def admit(self, number: int) -> None:
        """So many more are on their way into the store; `arrived` or `failed` says how that ended."""
        self._admitted += number
        self.in_flight += number

    def arrived(self, number: int) -> None:
        self.in_flight -= number
        self._settle()

    def failed(self, number: int) -> None:
        self.in_flight -= number
        self._admitted -= number
        self._settle()

    async def settled(self) -> None:
        """Returns when something that was on its way has arrived or failed."""
        if self._settling is None:
            self._settling = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._settling)

    def _settle(self) -> None:
        settling, self._settling = self._settling, None
        if settling is not None:
            settling.set_result(None)

    def retry_in(self) -> float:
        """In how many seconds a refused call may be worth another try."""
        return max(SHORTEST, self._full_until - self._clock())

    async def close(self) -> None:
        while self._look is not None:
            await asyncio.wait([self._look])

    def _pause(self, limit: int, growth: float) -> float:
        return max(SHORTEST, SPARE * self._took, min(LONGEST, (limit - self.used) / growth))

    def _start(self, limit: int) -> asyncio.Task[None]:
        """A count under way, begun now unless there is one."""
        if self._look is None:
            quick = self._counted is None or self._counted < QUICK
            cap = min(limit, QUICK) if quick else limit
            self._look = asyncio.create_task(self._recount(cap, limit))
            self._look.add_done_callback(lambda task: self._done(task, limit))
        return self._look

    async def _recount(self, cap: int, limit: int) -> None:
        began = self._counted_at = self._clock()
        # What was under way when the count began may be in it or not; counting it twice errs on the safe side.
        seen = self._admitted - self.in_flight
        count = await self._count(cap)
        self._took = self._clock() - began
        self._counted, self._seen = count.number, seen
        self._partial = count.capped and cap < limit

    def _done(self, task: asyncio.Task[None], limit: int) -> None:
        self._look = None
        if task.cancelled() or task.exception() is not None:
            # Whoever waited has got the error; otherwise the old number stands until the next count.
            return
        if self._partial:
            self._start(limit)
