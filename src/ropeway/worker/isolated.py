"""A process that runs one job at a time, apart from all others: what it does, and what it says to its worker."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import TYPE_CHECKING, Any

import msgspec

from ropeway.core.errors import RopewayError
from ropeway.core.job import Progress
from ropeway.core.outcome import Done, Failed, Outcome, Released, Snoozed
from ropeway.core.payload import JobError
from ropeway.engines.open import engine_for
from ropeway.engines.protocol import Leased
from ropeway.runtime.loops import run_in_new_loop
from ropeway.worker.line import Line
from ropeway.worker.run import Run, StopReason

if TYPE_CHECKING:
    from ropeway.core.lease import Lease
    from ropeway.engines.protocol import Engine
    from ropeway.settings import Settings

# ── worker → process ──


class Perform(msgspec.Struct, tag="perform"):
    """Run this job."""

    leased: Leased


class Interrupt(msgspec.Struct, tag="interrupt"):
    """Stop the job that runs."""

    reason: StopReason


# ── process → worker ──


class Progressed(msgspec.Struct, tag="progressed"):
    progress: Progress


class Logged(msgspec.Struct, tag="logged"):
    level: str
    message: str


class Performed(msgspec.Struct, tag="performed"):
    """How the run ended; no outcome means that there is nothing to write."""

    done: Done | None = None
    failed: Failed | None = None
    snoozed: Snoozed | None = None
    released: Released | None = None
    committed: bool = False
    unknown_commit: bool = False

    @classmethod
    def of(cls, run: Run, outcome: Outcome | None) -> Performed:
        told = cls(committed=run.committed, unknown_commit=run.unknown_commit)
        match outcome:
            case Done():
                told.done = outcome
            case Failed():
                told.failed = outcome
            case Snoozed():
                told.snoozed = outcome
            case Released():
                told.released = outcome
        return told

    def outcome(self) -> Outcome | None:
        return self.done or self.failed or self.snoozed or self.released


def main(end: socket.socket, settings: bytes, worker_id: str, tenant: str) -> None:
    """Serve until the worker hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    run_in_new_loop(_serve(end, settings, worker_id, tenant))
    # Threads of handlers that would not stop must not keep the process.
    os._exit(0)


async def _serve(end: socket.socket, told: bytes, worker_id: str, tenant: str) -> None:
    from ropeway.observability import logs
    from ropeway.settings import Settings
    from ropeway.worker import preload
    from ropeway.worker.executor import Executor
    from ropeway.worker.threads import Threads

    settings = msgspec.msgpack.decode(told, type=Settings)
    logs.configure(settings.log_level, settings.log_format)
    line = await Line.over(end, Perform | Interrupt)
    try:
        program = preload.program()
    except RopewayError as error:
        perform = await line.receive()
        if perform is not None:
            line.send(Performed(failed=Failed(JobError(type(error).__name__, str(error)))))
            await line.drained()
        return
    store = _Store(settings)
    reporter = _LineReporter(line)
    executor = Executor(
        program,
        store.engine,
        reporter,
        Threads(1),
        worker_id=worker_id,
        tenant=tenant,
    )
    async with program.lifespan():
        await _serve_jobs(line, executor, program.registry.get)
    await store.close()


async def _serve_jobs(line: Line, executor: Any, find: Any) -> None:
    run: Run | None = None

    async def perform(one: Run) -> None:
        outcome = await executor.perform(one)
        line.send(Performed.of(one, outcome))

    while (message := await line.receive()) is not None:
        if isinstance(message, Perform):
            run = Run(message.leased, find(message.leased.job.type))
            run.task = asyncio.create_task(perform(run))
        elif run is not None:
            run.interrupt(message.reason)
    # The worker is gone; so is the lease, soon. What runs is cut off.


class _Store:
    """The engine of this process, opened by the first handler that needs it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._engine: Engine | None = None

    async def engine(self) -> Engine:
        if self._engine is None:
            engine = engine_for(self._settings)
            await engine.open()
            self._engine = engine
        return self._engine

    async def close(self) -> None:
        if self._engine is not None:
            await self._engine.close()


class _LineReporter:
    """Progress and log lines go to the worker, which has the engine."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._loop = asyncio.get_running_loop()

    def progress(self, lease: Lease, progress: Progress) -> None:
        self._loop.call_soon_threadsafe(self._line.send, Progressed(progress))

    def log(self, lease: Lease, level: str, message: str) -> None:
        self._loop.call_soon_threadsafe(self._line.send, Logged(level, message))

    async def flush(self) -> None:
        await asyncio.sleep(0)
