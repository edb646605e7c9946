"""One process that runs handlers: wires fetcher, runner, executor and completer; starts, drains, stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import TYPE_CHECKING
from uuid import UUID

from ropeway.core.errors import EngineError, RopewayError
from ropeway.engines.protocol import WorkerRef
from ropeway.observability.logs import logger
from ropeway.observability.metrics import Tally
from ropeway.runtime.backoff import Backoff
from ropeway.runtime.service import Outage
from ropeway.worker.completer import Completer
from ropeway.worker.executor import Executor
from ropeway.worker.fetcher import Fetcher
from ropeway.worker.reporter import Reporter
from ropeway.worker.run import Run, StopReason
from ropeway.worker.runner import Runner
from ropeway.worker.threads import Threads

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine
    from ropeway.worker.ledger import Ledger
    from ropeway.worker.options import WorkerOptions
    from ropeway.worker.processes import Processes
    from ropeway.worker.program import Program

#: How long a handler may take to stop once it was told to, at the end of a drain.
STOP_SECONDS = 0.5


class Worker:
    """Make it inside a running loop. The caller keeps its grants alive (a supervisor does it from outside)."""

    def __init__(
        self,
        program: Program,
        engine: Engine,
        options: WorkerOptions,
        *,
        worker: WorkerRef,
        ledger: Ledger,
        processes: Processes | None = None,
    ) -> None:
        self._engine = engine
        self._options = options
        self.tally = Tally()
        self._reporter = Reporter(engine, options.tenant)
        self._threads = Threads(options.concurrency)
        executor = Executor(
            program,
            self._opened,
            self._reporter,
            self._threads,
            worker_id=worker.id,
            tenant=options.tenant,
        )
        outage = Outage(logger("ropeway.worker"))
        self._completer = Completer(
            engine, self.tally, options.tenant, outage, on_settled=lambda: self._fetcher.on_room()
        )
        if processes is not None:
            processes.attach(self._reporter)
        self._processes = processes
        self.runner = Runner(
            executor,
            processes,
            program.registry,
            ledger,
            self.tally,
            on_end=self._ended,
            on_room=lambda: self._fetcher.on_room(),
            count_queues=bool(options.caps),
        )
        self._fetcher = Fetcher(engine, options, worker, self.runner, self._completer, ledger, self.tally, outage)
        self._limit_reached = asyncio.Event()
        self._late = asyncio.Event()
        self._checks: set[asyncio.Task[None]] = set()

    async def _opened(self) -> Engine:
        return self._engine

    def start(self) -> None:
        self._fetcher.start()

    def _ended(self, runs: list[Run]) -> None:
        if self._options.max_jobs and self.runner.finished >= self._options.max_jobs:
            self._limit_reached.set()
        self._completer.put(runs)

    async def limit_reached(self) -> None:
        """Returns when this process has run as many jobs as it may."""
        await self._limit_reached.wait()

    async def settled(self) -> None:
        """Returns when nothing runs here and every outcome has been written."""
        await self.runner.wait_idle()
        await self._completer.flush()

    async def recheck(self, ids: Collection[UUID] | None = None) -> None:
        """Ask the engine which leases (of these jobs) are still good; stop the others and write nothing for them.

        A heartbeat names the jobs that were taken away; one of them may have been leased again since, so only the
        lease itself tells.
        """
        backoff = Backoff()
        while leases := [lease for lease in self.runner.leases() if ids is None or lease.job_id in ids]:
            try:
                answers = await self._engine.heartbeat(leases, tenant=self._options.tenant)
            except EngineError:
                # Nobody asks again: the heartbeats after a pause know nothing of what was lost in it.
                await asyncio.sleep(backoff.next())
                continue
            self.runner.drop(
                {lease for lease, answer in zip(leases, answers, strict=True) if isinstance(answer, RopewayError)}
            )
            return

    def recheck_soon(self, ids: Collection[UUID] | None = None) -> None:
        """The same beside everything else; the engine may take its time to answer."""
        task = asyncio.create_task(self.recheck(ids))
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    def quiet(self, on: bool) -> None:
        self._fetcher.quiet(on)

    def hurry(self, seconds: float) -> None:
        """A drain, also one that has begun, ends within so many seconds."""
        asyncio.get_running_loop().call_later(seconds, self._late.set)

    async def drain(self, seconds: float | None) -> None:
        """Claim nothing more, finish within `seconds` (None: however long it takes), release the rest."""
        if seconds is not None:
            self.hurry(seconds)
        await self._fetcher.stop()
        self._fetcher.release(self.runner.give_back())
        idle = asyncio.create_task(self.runner.wait_idle())
        late = asyncio.create_task(self._late.wait())
        await asyncio.wait([idle, late], return_when=asyncio.FIRST_COMPLETED)
        if self.runner.running:
            self.runner.interrupt_all(StopReason.SHUTDOWN)
            await asyncio.wait([idle], timeout=STOP_SECONDS)
        idle.cancel()
        late.cancel()
        self.runner.abandon()
        # An engine that stays away for a whole lease takes everything back by itself.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.lease_seconds):
                await self._completer.flush()
        for check in self._checks:
            check.cancel()
        self._threads.close()
        if self._processes is not None:
            await self._processes.close()
