"""A worker inside the process that asks for it: for `memory://`, tests and demos.

No supervisor stands beside it, so a handler that kills the process kills everything, and one that blocks the loop
for longer than a lease loses its jobs. Production runs `ropeway worker`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ropeway.core.states import State
from ropeway.engines.protocol import WorkerRef
from ropeway.runtime import ids
from ropeway.worker.ledger import Ledger
from ropeway.worker.options import WorkerOptions, worker_name
from ropeway.worker.selfbeat import beat_for_itself, give_back_the_rest
from ropeway.worker.worker import Worker

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine
    from ropeway.worker.processes import Processes
    from ropeway.worker.program import Program


class InProcessWorker:
    """`async with InProcessWorker(program, engine, options): ...` works from entry to exit.

    Without `processes` tasks with `process=True` run on threads.
    """

    def __init__(
        self,
        program: Program,
        engine: Engine,
        options: WorkerOptions | None = None,
        *,
        processes: Processes | None = None,
    ) -> None:
        self._program = program
        self._engine = engine
        self._options = options or WorkerOptions()
        self._processes = processes
        self._owner = ids.token()
        self._stack = contextlib.AsyncExitStack()
        self._worker: Worker
        self.ledger: Ledger
        self._beating: asyncio.Task[None] | None = None

    @property
    def worker(self) -> Worker:
        return self._worker

    async def __aenter__(self) -> Self:
        self._program.adopt(self._engine)
        await self._stack.enter_async_context(self._program.lifespan())
        self.ledger = ledger = Ledger.create(self._options.concurrency)
        self._stack.callback(ledger.close)
        ledger.claimed(time.monotonic())
        self._worker = Worker(
            self._program,
            self._engine,
            self._options,
            worker=WorkerRef(f"{worker_name(0)}-{os.urandom(2).hex()}", self._owner),
            ledger=ledger,
            processes=self._processes,
        )
        self._worker.start()
        self._beating = asyncio.create_task(
            beat_for_itself(self._worker, self._engine, self._owner, self._options)
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop(self, drain_seconds: float | None = None) -> None:
        """Finish what runs, give the rest back."""
        if self._beating is None:
            return
        beating, self._beating = self._beating, None
        await self._worker.drain(self._options.drain_seconds if drain_seconds is None else drain_seconds)
        beating.cancel()
        await asyncio.wait([beating])
        await give_back_the_rest(self._engine, self._owner, self._options)
        await self._stack.aclose()

    async def drain(self) -> None:
        """Wait until no job of these queues is due or running."""
        while True:
            await self._worker.settled()
            stats = await self._engine.queue_stats(self._options.queue_names(), cap=1, tenant=self._options.tenant)
            if not any(one.counts.get(State.QUEUED, 0) or one.counts.get(State.RUNNING, 0) for one in stats):
                return
            await asyncio.sleep(0.005)
