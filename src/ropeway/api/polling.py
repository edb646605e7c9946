"""Long polls: many workers wait, few questions are asked, and no waiting worker holds a connection to the store.

A lane (a tenant's queue) that somebody waits for has one listener and one task, however many wait. When work may
be there, the first in line gets a baton and leases; if its batch came back full there may be more, and the next
two get batons. So a thousand waiters and one new job make one question, not a thousand. Signals may be lost: while
anyone waits, the first in line also looks about once a second, and when a job that was ahead becomes due. Whoever
looks does so in all its lanes at once, so a worker of a hundred queues asks no more often than one of just one.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from ropeway.api.lanes import SOON, Caller, Lane, Waiter, note_look
from ropeway.core.errors import QuotaExceeded, RopewayError, Unauthenticated

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine, LeaseBatch, Subscription

#: Seconds between two looks at a lane that somebody waits for, a little more or less.
POLL_SECONDS = 1.0

#: Seconds that a lane is listened to after the last one left: most come back at once.
LINGER_SECONDS = 5.0

#: Queues of one tenant that one process listens to, and how many of them may be such that nobody waits for now.
MOST_LANES = 2_000
MOST_IDLE_LANES = 256

#: Numbers of signals are milliseconds after a point that each process draws for itself, all below 2**53.
_ORIGINS = 2**18
_ORIGIN_MS = 2**35

#: How much earlier or later than it should be a look may be.
_EARLIEST, _LATEST = 0.8, 1.2

Attempt = Callable[[], Awaitable["LeaseBatch"]]


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
        self.most_lanes = MOST_LANES
        self.most_idle_lanes = MOST_IDLE_LANES
        self._lanes: dict[tuple[str, str], Lane] = {}
        #: By tenant: how many lanes it has, and those that nobody uses, the longest unused first.
        self._number: defaultdict[str, int] = defaultdict(int)
        self._idle: defaultdict[str, dict[Lane, None]] = defaultdict(dict)
        #: Lanes that were dropped and are not quite gone.
        self._ending: set[asyncio.Task[None]] = set()
        #: No process takes another one's number for its own.
        self._origin = secrets.randbelow(_ORIGINS) * _ORIGIN_MS
        self._began = time.monotonic()
        self._tick = self._origin
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
        caller: Caller,
    ) -> LeaseBatch | None:
        """What `attempt` gets, waiting up to `wait` seconds for it to get something; None when it did not look.

        `full` says whether a batch leaves it possible that there is more. A caller that goes away leaves the line
        at once; one whose turn it is passes it on.
        """
        if wait <= 0 or self._stopping.is_set():
            return await attempt()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        waiter = Waiter(self._enter(tenant, queues))
        batch = None
        try:
            # Listening begins before the first look, so that nothing is missed between the two.
            await self._until_ready(waiter.lanes)
            # Where others wait already and a lane is known to be empty, a newcomer need not ask again.
            if not all(lane.empty and lane.line for lane in waiter.lanes):
                before = [lane.pokes for lane in waiter.lanes]
                began = loop.time()
                batch = await attempt()
                if batch.leases:
                    return batch
                note_look(waiter.lanes, began)
                self._join(waiter, batch, before)
            else:
                self._join(waiter)
            waiter.settle_down(deadline, caller)
            while True:
                await waiter.woken
                if self._stopping.is_set() or (waiter.expired and not waiter.batons):
                    return batch
                waiter.woken = loop.create_future()
                if waiter.gone or not await caller.present():
                    return None
                batch = await self._look(waiter, attempt, full)
                if batch.leases or waiter.expired:
                    return batch
        finally:
            self._leave(waiter)

    async def hint(
        self, tenant: str, queues: Iterable[str], wait: float, *, caller: Caller, after: int | None = None
    ) -> tuple[bool, int]:
        """Whether work may be there, waiting up to `wait` seconds for a signal; and the number of the newest one.

        Given again as `after`, it lets no signal be missed between two calls to the same process. To another
        process it means nothing, and is as good as none. The waiting ends when the caller goes away.
        """
        waiter = Waiter(self._enter(tenant, queues))
        try:
            await self._until_ready(waiter.lanes)
            known = after if after is not None and self._origin <= after <= self._tick else self._next_tick()
            if not any(lane.signalled > known for lane in waiter.lanes) and wait > 0:
                for lane in waiter.lanes:
                    lane.hints.add(waiter)
                if not self._stopping.is_set():
                    waiter.settle_down(asyncio.get_running_loop().time() + wait, caller)
                    await waiter.woken
            return any(lane.signalled > known for lane in waiter.lanes), self._next_tick()
        finally:
            self._leave(waiter)

    async def close(self) -> None:
        """End all waiting and all listening."""
        self._wake_all()
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        tasks += self._ending
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
        began = asyncio.get_running_loop().time()
        try:
            batch = await attempt()
            more = full(batch)
            if not batch.leases:
                note_look(waiter.lanes, began)
            for lane in waiter.lanes:
                lane.due_in(batch.next_due_in)
        except Unauthenticated:
            # Only this one's key is good no more.
            raise
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
        waiter.get_up()
        now = asyncio.get_running_loop().time()
        for lane in waiter.lanes:
            lane.line.pop(waiter, None)
            lane.hints.discard(waiter)
            lane.users -= 1
            lane.left_at = now
        batons, waiter.batons = waiter.batons, set()
        for lane in batons:
            lane.looked(waiter, more=True)
        for lane in waiter.lanes:
            # One that was given up meanwhile, by the store or at the end, is not kept.
            if not lane.users and self._lanes.get(lane.key) is lane:
                self._idle[lane.key[0]][lane] = None
        if waiter.lanes:
            self._drop_idle(waiter.lanes[0].key[0], self.most_idle_lanes)

    # ── Lanes ──

    def _enter(self, tenant: str, queues: Iterable[str]) -> list[Lane]:
        """The lanes of the queues, made where there are none yet. Raises QuotaExceeded when they are too many."""
        names = list(dict.fromkeys(queues))
        lanes = [self._lanes.get((tenant, queue)) for queue in names]
        idle = self._idle.get(tenant, {})
        for lane in lanes:
            if lane is not None:
                lane.users += 1
                idle.pop(lane, None)
        room = self.most_lanes - lanes.count(None)
        self._drop_idle(tenant, max(0, len(idle) - max(0, self._number.get(tenant, 0) - room)))
        if self._number.get(tenant, 0) > room:
            self._leave(Waiter([lane for lane in lanes if lane is not None]))
            raise QuotaExceeded(
                f"this tenant's workers wait for {self.most_lanes:,} queues already, as many as they may here",
                retry_in=self._linger_seconds,
                hint="wait for fewer queues per worker, or ask without wait",
            )
        return [lane or self._open(tenant, queue) for lane, queue in zip(lanes, names, strict=True)]

    def _open(self, tenant: str, queue: str) -> Lane:
        lane = self._lanes[tenant, queue] = Lane(tenant, queue)
        self._number[tenant] += 1
        lane.users = 1
        lane.task = asyncio.create_task(self._keep(lane, tenant, queue))
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch())
        return lane

    def _drop_idle(self, tenant: str, most: int) -> None:
        """Of the lanes that nobody uses, keep the `most` that were used last: names are the client's to choose."""
        idle = self._idle.get(tenant, {})
        while len(idle) > most:
            lane = next(iter(idle))
            self._forget(lane)
            if lane.task is not None:
                self._ending.add(lane.task)
                lane.task.add_done_callback(self._ending.discard)
                lane.task.cancel()

    def _forget(self, lane: Lane) -> None:
        if self._lanes.get(lane.key) is not lane:
            return
        tenant = lane.key[0]
        del self._lanes[lane.key]
        self._number[tenant] -= 1
        self._idle[tenant].pop(lane, None)
        if not self._number[tenant]:
            del self._number[tenant]
            del self._idle[tenant]
        if lane.due_timer is not None:
            lane.due_timer.cancel()

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
                    await asyncio.sleep(self._until_look(lane))
                    self._look_unless_looked(lane)
        finally:
            self._forget(lane)
            lane.ready.set()

    async def _listen(self, lane: Lane, subscription: Subscription) -> None:
        while self._is_wanted(lane):
            if await subscription.wait(self._until_look(lane)):
                lane.signalled = self._next_tick()
                for waiter in lane.hints:
                    waiter.wake()
                lane.poke()
            else:
                self._look_unless_looked(lane)
        # Before anything is waited for: whoever comes now must get a lane of its own.
        self._forget(lane)

    def _look_unless_looked(self, lane: Lane) -> None:
        """The look that is due if signals can be lost, unless one from another lane came here meanwhile."""
        now = asyncio.get_running_loop().time()
        if now - lane.looked_at >= self._poll_seconds * _EARLIEST:
            lane.looked_at = now
            if not lane.holders:
                lane.poke()

    def _is_wanted(self, lane: Lane) -> bool:
        return lane.users > 0 or asyncio.get_running_loop().time() - lane.left_at < self._linger_seconds

    def _until_look(self, lane: Lane) -> float:
        # Lanes that began together must not look together for ever.
        pause = self._poll_seconds * random.uniform(_EARLIEST, _LATEST)
        return max(SOON, lane.looked_at + pause - asyncio.get_running_loop().time())

    def _next_tick(self) -> int:
        """A number above all before it. By the clock, so that it does not tell how much happens to others."""
        passed = int(1_000 * (time.monotonic() - self._began))
        self._tick = max(self._tick + 1, self._origin + passed)
        return self._tick

    async def _watch(self) -> None:
        await self._stopping.wait()
        self._wake_all()

    def _wake_all(self) -> None:
        for lane in self._lanes.values():
            for waiter in (*lane.line, *lane.hints):
                waiter.wake()
