"""Claims what free slots and the buffer can take; sleeps until a signal, a due time or the poll interval."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ropeway.core.errors import EngineError, RopewayError
from ropeway.core.outcome import Released
from ropeway.engines.choosing import queue_order
from ropeway.engines.protocol import LeaseBatch, Leased, Settlement, Subscription, Weighted, WorkerRef
from ropeway.observability import names
from ropeway.observability.logs import logger
from ropeway.runtime.backoff import Backoff
from ropeway.runtime.faultpoints import fault

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine
    from ropeway.observability.metrics import Tally
    from ropeway.runtime.service import Outage
    from ropeway.worker.completer import Completer
    from ropeway.worker.ledger import Ledger
    from ropeway.worker.options import WorkerOptions
    from ropeway.worker.runner import Runner

#: Above this a larger batch gains nothing and only takes longer.
LARGEST_BATCH = 500
#: A claim is not worth its round trip for less than what the handlers finish in this time.
WORTHWHILE_SECONDS = 0.004
#: Outcomes that wait for the engine at most before claiming pauses: it is busy enough with those.
MOST_UNSETTLED = 2_000
#: How long a full worker waits for room before it looks at what has become stale.
ROOM_SECONDS = 1.0
#: The rate follows the last so many seconds.
RATE_SECONDS = 0.2


class Fetcher:
    """One loop. `stop` lets a claim under way come back, so that no lease is left behind."""

    def __init__(
        self,
        engine: Engine,
        options: WorkerOptions,
        worker: WorkerRef,
        runner: Runner,
        completer: Completer,
        ledger: Ledger,
        tally: Tally,
        outage: Outage,
    ) -> None:
        self._engine = engine
        self._options = options
        self._worker = worker
        self._runner = runner
        self._completer = completer
        self._ledger = ledger
        self._tally = tally
        self._log = logger("ropeway.worker")
        self._room = asyncio.Event()
        self._quiet = False
        self._stopping = False
        self._claiming = False
        self._task: asyncio.Task[None] | None = None
        self._listener: Subscription | None = None
        self._rate = 0.0
        self._rated_at = time.monotonic()
        self._rated_count = 0
        self._away = Backoff()
        self._outage = outage
        self._woken = False
        self._compared_at = time.monotonic()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="ropeway-fetcher")

    async def stop(self) -> None:
        """Claim nothing more. Returns when no claim is under way."""
        self._stopping = True
        self._room.set()
        if self._task is not None:
            if not self._claiming:
                self._task.cancel()
            await asyncio.wait([self._task])
        if self._listener is not None:
            await self._listener.close()

    def quiet(self, on: bool) -> None:
        self._quiet = on
        self._room.set()

    def on_room(self) -> None:
        """A slot has become free."""
        if not self._room.is_set() and self._wanted() > 0:
            self._room.set()

    async def _run(self) -> None:
        while not self._stopping:
            try:
                await self._turn()
            except EngineError as error:
                self._outage.failed("claim", error)
                await asyncio.sleep(self._away.next())
            except Exception as error:  # noqa: BLE001 - a worker that silently stops claiming is worse than any error
                self._log.error(names.LOOP_FAILED, loop="claim", error=repr(error), exc_info=error)
                await asyncio.sleep(self._away.next())

    async def _turn(self) -> None:
        if time.monotonic() - self._compared_at >= self._options.lease_seconds:
            await self._give_back_unknown()
        # Room that appears from here on may have come too late for this turn's claim.
        self._room.clear()
        wanted = self._wanted()
        if wanted <= 0:
            await self._wait_for_room()
            return
        # A claim that is filled returns at once; one that is not also looks when the next job is due. Whoever was
        # just woken starts the first job before it looks for more: with the next claim on its way before that, the
        # handler of an idle worker began 0.6 ms later.
        woken = self._woken
        full, next_due_in = await self._claim(1 if woken else wanted)
        if woken:
            await asyncio.sleep(0)
        self._outage.worked("claim")
        self._away.reset()
        if not full and not self._stopping:
            await self._wait_for_work(next_due_in)

    # ── how many ──

    def _wanted(self) -> int:
        """How many jobs to claim now; 0 when it is not worth a claim yet."""
        if self._quiet or self._completer.unsettled > MOST_UNSETTLED:
            return 0
        rate = self._measure()
        room = self._runner.room(rate)
        slots = self._ledger.slots
        worthwhile = min(max(1, int(rate * WORTHWHILE_SECONDS)), LARGEST_BATCH // 2)
        if room < worthwhile and self._runner.running + self._runner.buffered > slots // 2:
            return 0
        return max(0, min(room, LARGEST_BATCH))

    def _measure(self) -> float:
        now = time.monotonic()
        passed = now - self._rated_at
        if passed >= 0.01:
            recent = (self._runner.finished - self._rated_count) / passed
            weight = min(1.0, passed / RATE_SECONDS)
            self._rate += (recent - self._rate) * weight
            self._rated_at, self._rated_count = now, self._runner.finished
        return self._rate

    # ── claiming ──

    async def _claim(self, wanted: int) -> tuple[bool, float | None]:
        """Claim once. Whether there may be more at once, and else when the next job is due."""
        if not self._options.caps:
            batch = await self._lease(self._options.queues, wanted)
            return len(batch.leases) >= wanted, batch.next_due_in
        return await self._claim_under_caps(wanted)

    async def _claim_under_caps(self, wanted: int) -> tuple[bool, float | None]:
        """A queue with a cap is asked on its own, in its place in the order; neighbours without one together."""
        full = False
        due: list[float] = []
        for queues, cap in self._in_turn():
            most = wanted if cap is None else min(wanted, cap - self._runner.held_of(queues[0]))
            if most <= 0:
                continue
            batch = await self._lease(queues, most)
            wanted -= len(batch.leases)
            room_left = cap is None or self._runner.held_of(queues[0]) < cap
            full = full or (room_left and len(batch.leases) == most)
            if batch.next_due_in is not None:
                due.append(batch.next_due_in)
        # Nothing to ask for because of the caps is not the same as unable to claim.
        self._ledger.claimed(time.monotonic())
        return full, min(due) if due else None

    def _in_turn(self) -> list[tuple[list[str], int | None]]:
        """The queues of one claim in their order, weights drawn: each with a cap alone, the others together."""
        turns: list[tuple[list[str], int | None]] = []
        for name in queue_order(self._options.queues):
            cap = self._options.caps.get(name)
            if cap is None and turns and turns[-1][1] is None:
                turns[-1][0].append(name)
            else:
                turns.append(([name], cap))
        return turns

    async def _lease(self, queues: Sequence[str | Weighted], count: int) -> LeaseBatch:
        self._claiming = True
        try:
            batch = await self._engine.lease(
                queues,
                count,
                self._worker,
                lease_seconds=self._options.lease_seconds,
                tenant=self._options.tenant,
            )
        finally:
            self._claiming = False
        fault("lease.received")
        self._ledger.claimed(time.monotonic())
        if self._woken and not batch.leases:
            self._tally.rejected(1)
        self._woken = False
        if batch.leases:
            self._tally.leased(len(batch.leases))
            self._log.debug(names.LEASE_ACQUIRED, count=len(batch.leases), wanted=count)
            if self._stopping:
                self.release(batch.leases)
            else:
                self._runner.take(batch.leases)
        return batch

    def release(self, leases: Sequence[Leased]) -> None:
        """Give unstarted jobs back to their place in line; no attempt is used."""
        self._completer.settle(Settlement(leased.lease, Released()) for leased in leases)

    async def _give_back_unknown(self) -> None:
        """Once in a lease, between two claims: give back what the store believes here and is not.

        There is such a thing where the store went back in time (a failover that lost the last answers, a copy that
        was restored): the heartbeats of this process would hold those jobs for as long as it lives.
        """
        self._compared_at = time.monotonic()
        owner, tenant = self._worker.owner, self._options.tenant
        held = self._runner.grants() | self._completer.grants()
        try:
            others = await self._engine.other_grants(owner, held, tenant=tenant)
            gone = await self._engine.end_grants(owner, started=(), only=others, tenant=tenant) if others else []
        except RopewayError:
            return  # there is a next time; and a server of an earlier version has no such call
        if gone:
            self._log.warning(
                names.LEASE_LOST,
                jobs=[str(one.id) for one in gone][:5],
                count=len(gone),
                note="the store says that they run here, and they do not: they are given back",
            )

    # ── waiting ──

    async def _wait_for_room(self) -> None:
        self._room.clear()
        if self._wanted() > 0 or self._stopping:
            return
        try:
            async with asyncio.timeout(ROOM_SECONDS):
                await self._room.wait()
        except TimeoutError:
            if self._runner.full and not self._quiet:
                # Full of long jobs is not the same as unable to claim.
                self._ledger.claimed(time.monotonic())
            self.release(self._runner.give_back_stale())

    async def _wait_for_work(self, next_due_in: float | None) -> None:
        seconds = self._options.poll_seconds
        if next_due_in is not None:
            seconds = min(seconds, max(next_due_in, 0.001))
        if self._listener is None:
            self._listener = await self._engine.subscribe(self._options.queue_names(), tenant=self._options.tenant)
            return  # what was enqueued before it listened is found by one more claim
        if self._options.caps:
            self._woken = await self._signal_or_room(self._listener, seconds)
        else:
            self._woken = await self._listener.wait(seconds)

    async def _signal_or_room(self, listener: Subscription, seconds: float) -> bool:
        """Under caps a job that ends makes room for the next one of its queue, which no signal tells of."""
        signal = asyncio.create_task(listener.wait(seconds))
        room = asyncio.create_task(self._room.wait())
        try:
            await asyncio.wait([signal, room], return_when=asyncio.FIRST_COMPLETED)
            return signal.done() and signal.result()
        finally:
            for task in (signal, room):
                task.cancel()
            await asyncio.wait([signal, room])
