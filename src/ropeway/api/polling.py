"""Long polls: many workers wait, few questions are asked, and no waiting worker holds a connection to the store.

A lane (a tenant's queue) that somebody waits for has one listener and one task, however many wait. When work may
be there, the first in line gets a baton and leases; if its batch came back full there may be more, and the next
two get batons. So a thousand waiters and one new job make one question, not a thousand. Signals may be lost: while
anyone waits, the first in line also looks about once a second, and when a job that was ahead becomes due.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from ropeway.core.errors import RopewayError

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine, LeaseBatch, Subscription

#: Seconds between two looks at a lane that somebody waits for, a little more or less.
POLL_SECONDS = 1.0

#: Seconds that a lane is listened to after the last one left: most come back at once.
LINGER_SECONDS = 5.0

#: How many get batons after a full batch: a burst reaches a long line in a few steps.
_AFTER_FULL = 2

#: A job that becomes due later than this is left to the looks.
_FAR = 60.0
_SOON = 0.001

Attempt = Callable[[], Awaitable["LeaseBatch"]]


class Waiter:
    """One call that waits. Costs a future and a timer, no task of its own."""

    __slots__ = ("batons", "expired", "lanes", "woken")

    def __init__(self, lanes: list[Lane]) -> None:
        self.lanes = lanes
        #: The lanes in which it is this waiter's turn to look.
        self.batons: set[Lane] = set()
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.expired = False

    def wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)

    def expire(self) -> None:
        self.expired = True
        self.wake()


class Lane:
    """The waiters of one queue of one tenant."""

    __slots__ = (
        "again",
        "due_timer",
        "empty",
        "hints",
        "holders",
        "left_at",
        "line",
        "pokes",
        "ready",
        "signalled",
        "task",
        "users",
    )

    def __init__(self) -> None:
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
        at = loop.time() + max(seconds, _SOON)
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


class Polls:
    """The long polls of one process."""

    def __init__(
        self,
        engine: Engine,
        stopping: asyncio.Event,
        *,
        poll_seconds: float = POLL_SECONDS,
        linger_seconds: float = LINGER_SECONDS,
    ) -> None:
        self._engine = engine
        self._stopping = stopping
        self._poll_seconds = poll_seconds
        self._linger_seconds = linger_seconds
        self._lanes: dict[tuple[str, str], Lane] = {}
        #: The number of the newest signal of any lane.
        self._signals = 0
        self._watcher: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """How many calls wait now, each counted once."""
        return len({waiter for lane in self._lanes.values() for waiter in (*lane.line, *lane.hints)})

    async def lease(
        self,
        tenant: str,
        queues: Iterable[str],
        wait: float,
        attempt: Attempt,
        *,
        full: Callable[[LeaseBatch], bool],
        present: Callable[[], Awaitable[bool]],
    ) -> LeaseBatch | None:
        """What `attempt` gets, waiting up to `wait` seconds for it to get something; None when it did not look.

        `full` says whether a batch leaves it possible that there is more. `present` says whether the caller is
        still there: one that has gone passes its turn on.
        """
        if wait <= 0 or self._stopping.is_set():
            return await attempt()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        waiter = Waiter(self._enter(tenant, queues))
        timer = None
        batch = None
        try:
            # Listening begins before the first look, so that nothing is missed between the two.
            await self._until_ready(waiter.lanes)
            # Where others wait already and a lane is known to be empty, a newcomer need not ask again.
            if not all(lane.empty and lane.line for lane in waiter.lanes):
                before = [lane.pokes for lane in waiter.lanes]
                batch = await attempt()
                if batch.leases:
                    return batch
                self._join(waiter, batch, before)
            else:
                self._join(waiter)
            timer = loop.call_at(deadline, waiter.expire)
            while True:
                await waiter.woken
                if self._stopping.is_set() or (waiter.expired and not waiter.batons):
                    return batch
                waiter.woken = loop.create_future()
                if not await present():
                    return None
                batch = await self._look(waiter, attempt, full)
                if batch.leases or waiter.expired:
                    return batch
        finally:
            if timer is not None:
                timer.cancel()
            self._leave(waiter)

    async def hint(
        self, tenant: str, queues: Iterable[str], wait: float, *, after: int | None = None
    ) -> tuple[bool, int]:
        """Whether work may be there, waiting up to `wait` seconds for a signal; and the number of the newest one.

        Given again as `after`, it lets no signal be missed between two calls to the same process.
        """
        waiter = Waiter(self._enter(tenant, queues))
        timer = None
        try:
            await self._until_ready(waiter.lanes)
            known = self._signals if after is None else after
            if not any(lane.signalled > known for lane in waiter.lanes) and wait > 0:
                for lane in waiter.lanes:
                    lane.hints.add(waiter)
                timer = asyncio.get_running_loop().call_later(wait, waiter.expire)
                if not self._stopping.is_set():
                    await waiter.woken
            return any(lane.signalled > known for lane in waiter.lanes), self._signals
        finally:
            if timer is not None:
                timer.cancel()
            self._leave(waiter)

    async def close(self) -> None:
        """End all waiting and all listening."""
        self._wake_all()
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        if self._watcher is not None:
            tasks.append(self._watcher)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # ── Turns ──

    async def _look(self, waiter: Waiter, attempt: Attempt, full: Callable[[LeaseBatch], bool]) -> LeaseBatch:
        """Lease in the waiter's turn, then pass the turn on."""
        held, waiter.batons = waiter.batons, set()
        more = True
        try:
            batch = await attempt()
            more = full(batch)
            for lane in waiter.lanes:
                lane.due_in(batch.next_due_in)
        except RopewayError:
            # The next look will come; to pass the turn on at once would send the whole line against a wall.
            more = False
            raise
        finally:
            for lane in held:
                lane.looked(waiter, more=more)
        return batch

    def _join(self, waiter: Waiter, batch: LeaseBatch | None = None, before: list[int] | None = None) -> None:
        for lane in waiter.lanes:
            lane.line[waiter] = None
        if batch is None or before is None:
            return
        for lane, pokes in zip(waiter.lanes, before, strict=True):
            lane.due_in(batch.next_due_in)
            if lane.pokes != pokes:
                # Something happened after the look had begun, with nobody in line: it may have been missed.
                lane.poke()
            elif not lane.holders:
                lane.empty = True

    def _leave(self, waiter: Waiter) -> None:
        now = asyncio.get_running_loop().time()
        for lane in waiter.lanes:
            lane.line.pop(waiter, None)
            lane.hints.discard(waiter)
            lane.users -= 1
            lane.left_at = now
        batons, waiter.batons = waiter.batons, set()
        for lane in batons:
            lane.looked(waiter, more=True)

    # ── Lanes ──

    def _enter(self, tenant: str, queues: Iterable[str]) -> list[Lane]:
        lanes = []
        for queue in dict.fromkeys(queues):
            lane = self._lanes.get((tenant, queue))
            if lane is None:
                lane = self._lanes[tenant, queue] = Lane()
                lane.task = asyncio.create_task(self._keep(lane, tenant, queue))
                if self._watcher is None:
                    self._watcher = asyncio.create_task(self._watch())
            lane.users += 1
            lanes.append(lane)
        return lanes

    async def _until_ready(self, lanes: list[Lane]) -> None:
        for lane in lanes:
            if not lane.ready.is_set():
                await lane.ready.wait()

    async def _keep(self, lane: Lane, tenant: str, queue: str) -> None:
        """Listen to a lane as long as somebody wants it, also while the store is away now and then."""
        try:
            while self._is_wanted(lane):
                try:
                    subscription = await self._engine.subscribe([queue], tenant=tenant)
                    lane.ready.set()
                    try:
                        await self._listen(lane, subscription)
                    finally:
                        await subscription.close()
                except RopewayError:
                    lane.ready.set()
                    await asyncio.sleep(self._pause())
                    lane.poke()
        finally:
            del self._lanes[tenant, queue]
            lane.ready.set()
            if lane.due_timer is not None:
                lane.due_timer.cancel()

    async def _listen(self, lane: Lane, subscription: Subscription) -> None:
        while self._is_wanted(lane):
            if await subscription.wait(self._pause()):
                self._signals += 1
                lane.signalled = self._signals
                for waiter in lane.hints:
                    waiter.wake()
                lane.poke()
            elif not lane.holders:
                lane.poke()

    def _is_wanted(self, lane: Lane) -> bool:
        return lane.users > 0 or asyncio.get_running_loop().time() - lane.left_at < self._linger_seconds

    def _pause(self) -> float:
        # Lanes that began together must not look together for ever.
        return self._poll_seconds * random.uniform(0.8, 1.2)

    async def _watch(self) -> None:
        await self._stopping.wait()
        self._wake_all()

    def _wake_all(self) -> None:
        for lane in self._lanes.values():
            for waiter in (*lane.line, *lane.hints):
                waiter.wake()
