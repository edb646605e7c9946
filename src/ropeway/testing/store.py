"""The store of a test: the memory engine with a movable clock, for every thread and loop of the process."""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Any, TypeVar, cast
from uuid import UUID

from ropeway.client.engines import Engines
from ropeway.client.results import Results
from ropeway.core import cron
from ropeway.core.errors import LeaseLost, NotFound, NotSupported, RopewayError, UsageError
from ropeway.core.job import DEFAULT_TENANT, Job, NewJob
from ropeway.core.lease import Lease
from ropeway.core.outcome import Done
from ropeway.core.states import TERMINAL_STATES
from ropeway.engines import settling
from ropeway.engines.memory import MemoryEngine
from ropeway.engines.memory.rows import GrantRow, JobRow
from ropeway.engines.memory.store import later
from ropeway.engines.protocol import Engine, Enqueued, Leased, Settled, Settlement, WorkerRef
from ropeway.runtime import ids
from ropeway.testing.stage import Stages

T = TypeVar("T")

#: Opens a connection with a transaction that commits when its block ends and rolls back when it raises.
Connect = Callable[[], AbstractAsyncContextManager[Any]]

LEASE_SECONDS = 3600.0
WORKER = WorkerRef("test", ids.token())


class KitEngine(MemoryEngine):
    """The memory engine, with what a test wants beside it: one job at a time, in an order that never varies."""

    def due(self, queues: Collection[str] | None = None) -> list[JobRow]:
        """What is due now, of all tenants: the most urgent first, then in the order of acceptance."""
        rows = [row for row in self.jobs.values() if self._is_due(row) and (queues is None or row.queue in queues)]
        return sorted(rows, key=lambda row: (row.priority, row.run_at, row.place))

    def _is_due(self, row: JobRow) -> bool:
        return row.startable(self.clock.now()) and (row.tenant, row.queue) not in self.paused

    def accepted(self) -> list[tuple[Job, datetime]]:
        """All jobs in the order of acceptance, each with when it was to run then."""
        now = self.clock.now()
        rows = sorted(self.jobs.values(), key=lambda row: row.place)
        return [(row.job(now, self.locked_until(row)), _asked_run_at(row)) for row in rows]

    def next_moments(self, queues: Collection[str] | None, *, schedules: bool) -> list[datetime]:
        """When something becomes due that is not due now."""
        now = self.clock.now()
        moments = [
            row.run_at
            for row in self.jobs.values()
            if row.ended is None
            and row.run_at > now
            and (queues is None or row.queue in queues)
            and (row.tenant, row.queue) not in self.paused
        ]
        if schedules:
            moments += [row.next_run_at for row in self.stored_schedules.values() if not row.spec.paused]
        return [moment for moment in moments if moment > now]

    def start_if_due(self, row: JobRow) -> Leased | None:
        """Lease it, unless it was cancelled, moved, paused or deleted since it was found due."""
        if self.jobs.get(row.id) is not row or not self._is_due(row):
            return None
        return self.start(row.id, row.tenant)

    def start(self, id: UUID, tenant: str) -> Leased:
        """Lease this very job, whatever others are due."""
        grant = GrantRow(
            token=ids.token(),
            tenant=tenant,
            owner=WORKER.owner,
            expires_at=later(self.clock.now(), LEASE_SECONDS),
            lease_seconds=LEASE_SECONDS,
            open={id},
        )
        self.grants[grant.token] = grant
        return self._start(self.the_row(tenant, id), WORKER.id, grant)

    def holds(self, lease: Lease, tenant: str) -> bool:
        """Whether this is still the job's ticket."""
        return self._current(tenant, lease) is not None

    async def settle(
        self, settlements: Sequence[Settlement], *, tenant: str = DEFAULT_TENANT
    ) -> list[Settled | RopewayError]:
        """As every engine does, but retries come after the very middle of what their policy allows."""
        return await settling.settle(self, tenant, settlements, self.rules, draw=lambda: 0.5)

    def plan_again(self) -> None:
        """The clock was turned back: schedules go on from there."""
        for row in self.stored_schedules.values():
            row.next_run_at = cron.next_fire(row.spec.cron, row.spec.tz, self.clock.now())

    def clear(self) -> None:
        """Forget all jobs and their keys."""
        self.jobs.clear()
        self.job_keys.clear()
        self.grants.clear()


def _asked_run_at(row: JobRow) -> datetime:
    if row.new.delay is not None:
        return later(row.created_at, row.new.delay)
    return max(row.new.run_at or row.created_at, row.created_at)


class SharedStore:
    """Looks like the engine it holds, for any thread and any loop: each call is one step, made under a lock."""

    def __init__(self, engine: KitEngine) -> None:
        self.engine = engine
        self.lock = threading.RLock()
        #: Runs what was just enqueued and tells what became of it, while a test is in inline mode.
        self.at_once: Callable[[Sequence[Enqueued], str], Awaitable[list[Enqueued]]] | None = None
        #: The same from a thread without a loop.
        self.at_once_blocking: Callable[[Sequence[Enqueued], str], list[Enqueued]] | None = None
        self.connect: Connect | None = None

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.engine, name)
        if not inspect.iscoroutinefunction(value):
            return value

        async def call(*args: Any, **kwargs: Any) -> Any:
            with self.lock:
                return await value(*args, **kwargs)

        return call

    def as_engine(self) -> Engine:
        return cast("Engine", self)

    def now_done(self, call: Coroutine[Any, Any, T]) -> T:
        """The answer of one of the engine's calls, without a loop: they never wait for anything."""
        with self.lock:
            return at_once(call)

    async def enqueue(self, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT) -> list[Enqueued]:
        with self.lock:
            answers = await self.engine.enqueue(jobs, tenant=tenant)
        return answers if self.at_once is None else await self.at_once(answers, tenant)

    # ── Connections: what belongs to a transaction elsewhere is stored here at once ──

    async def enqueue_in(
        self, connection: Any, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT
    ) -> list[UUID]:
        return [answer.id for answer in await self.enqueue(jobs, tenant=tenant)]

    def enqueue_in_sync(
        self, connection: Any, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT
    ) -> list[UUID]:
        answers = self.now_done(self.engine.enqueue(jobs, tenant=tenant))
        if self.at_once_blocking is not None:
            answers = self.at_once_blocking(answers, tenant)
        return [answer.id for answer in answers]

    @asynccontextmanager
    async def transaction(
        self, lease: Lease, result: Callable[[], bytes | None], *, tenant: str = DEFAULT_TENANT
    ) -> AsyncIterator[Any]:
        if self.connect is None:
            raise NotSupported(
                "the test's store is in memory, it has no connection for ctx.transaction()",
                hint="give it one: ropeway.use(app, transaction=...)",
            )
        async with self.connect() as connection:
            yield connection
            if not self.engine.holds(lease, tenant):
                raise LeaseLost("the job was cancelled or taken away before its transaction ended")
        self.now_done(self.engine.settle([Settlement(lease, Done(result()))], tenant=tenant))


def at_once(call: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that never has to wait."""
    try:
        call.send(None)
    except StopIteration as done:
        return cast("T", done.value)
    call.close()
    raise AssertionError("a call of the memory engine had to wait")


class KitEngines(Engines):
    """Gives an app the store of the test, wherever it asks from."""

    def __init__(self, store: SharedStore, stages: Stages) -> None:
        super().__init__(store.as_engine)
        self._store = store
        self._stages = stages

    def ready(self) -> Engine:
        return self._store.as_engine()

    async def here(self) -> Engine:
        return self._store.as_engine()

    async def results(self) -> Results:
        return _ResultsAtOnce(self._store.as_engine())

    def adopt(self, engine: Engine) -> None:
        """In a test there is one store."""

    async def aclose(self) -> None:
        """It is there as long as the test."""

    def close(self) -> None:
        """As `aclose`."""

    def end(self) -> None:
        """The test is over."""
        super().close()

    def run(self, work: Callable[[], Coroutine[Any, Any, T]], *, instead: str) -> T:
        __tracebackhide__ = True
        return self._stages.run(work, instead=instead)


class _ResultsAtOnce(Results):
    """Nobody works in the background of a test: what has not ended will not end while it is waited for."""

    async def ended(self, id: UUID, tenant: str) -> Job:
        (job,) = await self._engine.get([id], tenant=tenant)
        if job is None:
            raise NotFound(f"there is no job {id}", hint="the test's store starts empty")
        if job.state not in TERMINAL_STATES:
            raise UsageError(
                f"job {id} ({job.type}) has not ended, it is {job.state}",
                hint="call ropeway.drain() first, or let jobs run at once: with ropeway.inline()",
            )
        return job
