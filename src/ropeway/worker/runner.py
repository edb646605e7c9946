"""Slots, and the small buffer before them: takes leased jobs, runs them, hands their outcomes on."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from ropeway.core.lease import Lease
from ropeway.core.outcome import Outcome
from ropeway.engines.protocol import Leased
from ropeway.observability import names
from ropeway.observability.logs import logger
from ropeway.task.spec import failure
from ropeway.worker.leftovers import Leftovers
from ropeway.worker.run import Run, StopReason

if TYPE_CHECKING:
    from ropeway.observability.metrics import Tally
    from ropeway.task.registry import Registry
    from ropeway.worker.ledger import Ledger

#: How long after its timeout a handler that would not stop is given before its process is killed.
HARD_GRACE = 5.0
#: How much work waits in the buffer at most, in seconds of the present rate: an urgent job that arrives now
#: stands behind no more than that.
BUFFER_SECONDS = 0.05
MOST_BUFFERED = 1_000
#: A buffered job that has not been started after so long is given back: the handlers became slow.
STALE_SECONDS = 2.0
#: Handlers that never wait run one after the other for so long; then the loop's other callbacks have their turn.
TURN_SECONDS = 0.001
#: A handler that never waits and takes so long leaves nothing for other slots to do: no job is claimed for those.
HELD_SECONDS = 0.1

_NEVER = float("inf")


class Performs(Protocol):
    """Something that runs one job and says how it ended: the executor here, or a process of its own."""

    async def perform(self, run: Run) -> Outcome | None: ...


class Runner:
    """All methods belong to the loop's thread. `on_end` gets the runs that have ended, all of a turn of the loop
    together; `on_room` is called when a slot has become free.

    A handler that waits for something has a task of its own. Those that never do share one, the starter: it runs
    what is in the buffer for as long as each handler ends in the same step of the loop and leaves nothing behind.
    Every task begins in the context in which the runner was made.
    """

    def __init__(
        self,
        executor: Performs,
        isolator: Performs | None,
        registry: Registry,
        ledger: Ledger,
        tally: Tally,
        *,
        on_end: Callable[[list[Run]], None],
        on_room: Callable[[], None],
        count_queues: bool = False,
    ) -> None:
        self._executor = executor
        self._isolator = isolator
        self._registry = registry
        self._ledger = ledger
        self._tally = tally
        self._on_end = on_end
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._log = logger("ropeway.worker")
        self._free = list(range(ledger.slots - 1, -1, -1))
        #: By slot: a job that was taken away and leased again may run beside its older run for a moment.
        self._running: dict[int, Run] = {}
        self._ended: list[Run] = []
        self._buffer: deque[Leased] = deque()
        self._buffered_at = 0.0
        #: The task that starts jobs, until it has given way or one of its handlers was seen to wait.
        self._starter: asyncio.Task[None] | None = None
        #: The last handler held the loop for long: one slot is as good as all of them.
        self._one_by_one = False
        self._held: Counter[str] | None = Counter() if count_queues else None
        self._earliest = _NEVER
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._abandoned = False
        self.finished = 0

    # ── what is here ──

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def full(self) -> bool:
        """Every slot has a job."""
        return not self._free

    @property
    def buffered(self) -> int:
        return len(self._buffer)

    def runs(self) -> Sequence[Run]:
        return list(self._running.values())

    def leases(self) -> list[Lease]:
        """The tickets of all jobs that run or wait here, but for those that their handlers have completed."""
        running = [run.leased.lease for run in self._running.values() if not run.committed]
        return running + [leased.lease for leased in self._buffer]

    def grants(self) -> set[UUID]:
        """The grants of all that is here, also of what has just ended and was not handed on yet."""
        running = {run.leased.lease.token for run in [*self._running.values(), *self._ended]}
        return running | {leased.lease.token for leased in self._buffer}

    def held_of(self, queue: str) -> int:
        """Jobs of one queue that run or wait here; only counted when `count_queues` was asked for."""
        return 0 if self._held is None else self._held[queue]

    def room(self, rate: float) -> int:
        """How many jobs can be taken at a rate of so many jobs a second."""
        ahead = min(int(rate * BUFFER_SECONDS), MOST_BUFFERED)
        slots = 1 if self._one_by_one else self._ledger.slots
        return slots + ahead - len(self._running) - len(self._buffer)

    async def wait_idle(self) -> None:
        await self._idle.wait()

    # ── in ──

    def take(self, leases: Iterable[Leased]) -> None:
        """Start what slots are free for, keep the rest. The most urgent priority, which nothing may overtake,
        goes to the front; all others keep the order in which the engine gave them."""
        urgent: list[Leased] = []
        if not self._buffer:
            self._buffered_at = time.monotonic()
        for leased in leases:
            if self._held is not None:
                self._held[leased.job.queue] += 1
            if leased.job.priority == 1:
                urgent.append(leased)
            else:
                self._buffer.append(leased)
        if urgent:
            self._buffer.extendleft(reversed(urgent))
        if self._buffer:
            self._idle.clear()
            self._fill()

    def give_back(self) -> list[Leased]:
        """Empty the buffer; the caller releases what it gets."""
        taken = list(self._buffer)
        self._buffer.clear()
        if self._held is not None:
            self._held.subtract(leased.job.queue for leased in taken)
        return taken

    def give_back_stale(self) -> list[Leased]:
        """What has waited in the buffer for too long."""
        if not self._buffer or time.monotonic() - self._buffered_at < STALE_SECONDS:
            return []
        return self.give_back()

    def drop(self, leases: Collection[Lease]) -> None:
        """These leases are no longer good: stop what runs under them, forget what waits."""
        for run in self.runs():
            if run.leased.lease in leases:
                run.interrupt(StopReason.REVOKED)
        dropped = [leased for leased in self._buffer if leased.lease in leases]
        if dropped:
            self._buffer = deque(leased for leased in self._buffer if leased.lease not in leases)
            if self._held is not None:
                self._held.subtract(leased.job.queue for leased in dropped)

    def interrupt_all(self, reason: StopReason) -> None:
        for run in self.runs():
            run.interrupt(reason)

    def abandon(self) -> None:
        """What still runs has no outcome any more: whoever keeps the leases gives it back."""
        self._abandoned = True
        self._hand_on()

    def _fill(self) -> None:
        """Have a task start what slots are free for, in the buffer's order."""
        if self._loop.get_task_factory() is not None:
            # Somebody wants to know of every task, or runs its first step at once: then each job has one.
            self._start_each()
        elif self._starter is None and self._free and self._buffer:
            run = self._assign(self._buffer.popleft(), time.monotonic())
            self._starter = self._new_task(self._start(run))
            # It comes right behind the first step of that task.
            self._loop.call_soon(self._spread, context=self._context)

    def _spread(self) -> None:
        """If the starter is still at it, its handler waits for something, or has left something behind. Those in
        the buffer are likely to do the same: each gets a task of its own, as many as slots are free."""
        if self._starter is None:
            return
        self._starter = None
        self._one_by_one = False
        self._start_each()

    def _start_each(self) -> None:
        """A task of its own for each job that a slot is free for."""
        while self._free and self._buffer:
            # Each has its own time: who started last is to blame for an interpreter that stands still.
            run = self._assign(self._buffer.popleft(), time.monotonic())
            self._new_task(self._run(run))

    def _new_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._loop.create_task(work, context=self._context.copy())

    def _assign(self, leased: Leased, now: float) -> Run:
        """Give a job a slot."""
        job = leased.job
        spec = self._registry.get(job.type)
        run = Run(leased, spec, self._free.pop())
        # A job that has lost a worker before is a suspect: it runs where it can hurt nobody else.
        if (
            self._isolator is not None
            and spec is not None
            and (spec.kind == "process" or job.lease_lost_count > 0)
        ):
            # Its time begins when it has a process: it may have to wait for one.
            run.started = now
            run.on_begin = self._begin
        else:
            self._begin(run, now)
        self._running[run.slot] = run
        if job.started_at is not None:
            self._tally.started(job.queue, job.type, (job.started_at - job.run_at).total_seconds())
        return run

    async def _start(self, run: Run) -> None:
        """The starter: this run, and others from the buffer."""
        task = self._starter
        leftovers = Leftovers()
        give_way_at = time.monotonic() + TURN_SECONDS
        while True:
            run.task = task
            performer = self._enter(run)
            try:
                run.outcome = await performer.perform(run)
            except BaseException as error:  # noqa: BLE001 - a defect of ours must not cost the worker a slot
                self._defect(run, error)
            if self._abandoned:
                return
            now = time.monotonic()
            self._end(run, now)
            if self._starter is not task:
                return  # the handler has waited: it had this task for itself
            self._one_by_one = run.seconds >= HELD_SECONDS
            if now >= give_way_at or not self._buffer:
                self._starter = None  # what there is to start is started when this has been handed on
                return
            if not leftovers.none():
                return
            run = self._assign(self._buffer.popleft(), now)

    async def _run(self, run: Run) -> None:
        """One run in a task of its own."""
        run.task = asyncio.current_task()
        performer = self._enter(run)
        try:
            run.outcome = await performer.perform(run)
        except BaseException as error:  # noqa: BLE001 - see above
            self._defect(run, error)
        if not self._abandoned:
            self._end(run, time.monotonic())

    def _defect(self, run: Run, error: BaseException) -> None:
        if not self._abandoned:
            self._log.error(names.LOOP_FAILED, loop="run", error=repr(error), exc_info=error)
            run.outcome = failure(error)

    def _end(self, run: Run, now: float) -> None:
        run.seconds = now - run.started
        run.task = None
        self._ledger.end(run.slot)
        self._free.append(run.slot)
        del self._running[run.slot]
        if self._held is not None:
            self._held[run.leased.job.queue] -= 1
        self.finished += 1
        self._ended.append(run)
        if len(self._ended) == 1:
            self._loop.call_soon(self._hand_on, context=self._context)

    def _hand_on(self) -> None:
        """Hand on all that ended in this turn of the loop: with very short jobs that is many."""
        ended, self._ended = self._ended, []
        if ended:
            self._on_end(ended)
        if self._buffer:
            self._fill()
        elif not self._running:
            self._idle.set()
        self._on_room()

    def _begin(self, run: Run, now: float) -> None:
        """The job's time begins now."""
        run.started = now
        timeout = run.leased.job.timeout
        if timeout > 0:
            run.soft_deadline = deadline = now + timeout
            if deadline < self._earliest:
                self._arm(deadline)

    def _enter(self, run: Run) -> Performs:
        """Note the start where the parent sees it; who performs it. Not before the task's first step: a job whose
        process dies while it still waits for that has no part in the death, and is given back."""
        if run.on_begin is not None and self._isolator is not None:
            # The parent kills a whole child for a hard deadline; an isolated job's process is killed from here.
            self._ledger.start(run.slot, run.leased.job.id, run.started, 0.0, isolated=True)
            return self._isolator
        hard = run.soft_deadline + HARD_GRACE if run.soft_deadline else 0.0
        self._ledger.start(run.slot, run.leased.job.id, run.started, hard, isolated=False)
        return self._executor

    # ── soft timeouts: one timer for the earliest deadline, none per job ──

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._earliest = deadline
        self._timer = self._loop.call_later(max(0.0, deadline - time.monotonic()), self._check_deadlines)

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        self._timer = None
        self._earliest = _NEVER
        upcoming = _NEVER
        for run in self.runs():
            if not run.soft_deadline or run.stop is not None:
                continue
            if run.soft_deadline <= now:
                run.interrupt(StopReason.TIMEOUT)
            else:
                upcoming = min(upcoming, run.soft_deadline)
        if upcoming < _NEVER:
            self._arm(upcoming)
