"""A process that runs one job at a time, apart from all others: what it does, and what it says to its worker."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

import msgspec

from ropeway.core.job import Progress
from ropeway.core.lease import Lease
from ropeway.core.outcome import Done, Failed, Outcome, Released, Snoozed
from ropeway.engines.open import engine_for
from ropeway.engines.protocol import Leased
from ropeway.observability import logs, tracing
from ropeway.runtime import printed
from ropeway.runtime.loops import run_in_new_loop
from ropeway.settings import Settings
from ropeway.task.spec import failure
from ropeway.worker.executor import Executor
from ropeway.worker.line import Line
from ropeway.worker.loading import loaded_program
from ropeway.worker.run import Run, StopReason
from ropeway.worker.threads import Threads

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine
    from ropeway.task.registry import Registry

# ── worker → process ──


class Serve(msgspec.Struct, tag="serve"):
    """The first message: whose jobs these are."""

    target: str
    settings: Settings
    worker_id: str
    tenant: str


class Perform(msgspec.Struct, tag="perform"):
    """Run this job."""

    leased: Leased


class Interrupt(msgspec.Struct, tag="interrupt"):
    """Stop the job that runs."""

    reason: StopReason


# ── process → worker ──


class Progressed(msgspec.Struct, tag="progressed"):
    lease: Lease
    progress: Progress


class Logged(msgspec.Struct, tag="logged"):
    lease: Lease
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
    #: The process ends now: it takes no other job.
    leaving: bool = False

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


def outlive_signals() -> None:
    """The terminal's Ctrl-C is the supervisor's to handle, and a service manager may signal every process of a
    worker: these end when their worker does. (SIGTERM is not ignored: what a handler starts would be too.)"""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)


def main(end: socket.socket) -> None:
    """Serve until the worker hangs up."""
    outlive_signals()
    # A handler's own processes, those of a pool for example, are ended by SIGTERM.
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    # It may be killed at any time: what a handler prints is not kept back.
    with contextlib.suppress(OSError, ValueError):  # nobody reads it
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)
    run_in_new_loop(_live(end))


async def _live(end: socket.socket) -> None:
    await _serve(end)
    printed.write_out()
    # From inside the loop, whose own end would wait for handlers that do not stop, on it or on threads.
    os._exit(0)


async def _serve(end: socket.socket) -> None:
    line = await Line.over(end, Serve | Perform | Interrupt)
    told = await line.receive()
    if not isinstance(told, Serve):
        return
    logs.configure(told.settings.log_level, told.settings.log_format)
    store = _Store(told.settings)
    async with contextlib.AsyncExitStack() as stack:
        try:
            program = loaded_program(told.target)
            await stack.enter_async_context(program.lifespan())
        except Exception as error:  # noqa: BLE001 - a failed attempt, with its retry policy's patience; not a crash
            await _refuse(line, error)
            return
        executor = Executor(
            program, store.engine, _LineReporter(line), Threads(1), worker_id=told.worker_id, tenant=told.tenant
        )
        await _serve_jobs(line, executor, program.registry)
        await store.close()


async def _refuse(line: Line, error: Exception) -> None:
    if await line.receive() is not None:
        line.send(Performed(failed=failure(error), leaving=True))
        await line.drained()


async def _serve_jobs(line: Line, executor: Executor, registry: Registry) -> None:
    """One job after the other. When the worker is gone, so is the lease, soon: what runs is cut off."""
    run: Run | None = None

    async def perform(one: Run) -> None:
        outcome = await executor.perform(one)
        with contextlib.suppress(Exception):  # this process may be ended at once: its spans have to leave before
            tracing.flush()
        line.send(Performed.of(one, outcome))

    while (message := await line.receive()) is not None:
        if isinstance(message, Perform):
            run = Run(message.leased, registry.get(message.leased.job.type))
            run.task = asyncio.create_task(perform(run))
        elif run is not None:
            run.interrupt(message.reason)


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
        self._loop.call_soon_threadsafe(self._line.send, Progressed(lease, progress))

    def log(self, lease: Lease, level: str, message: str) -> None:
        self._loop.call_soon_threadsafe(self._line.send, Logged(lease, level, message))

    async def flush(self) -> None:
        await asyncio.sleep(0)
