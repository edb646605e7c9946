"""A child process of the supervisor: `python -m ropeway.worker.child FD LEDGER_FD`."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from ropeway.core.errors import ConfigurationError, EngineError, RopewayError
from ropeway.engines.open import engine_for
from ropeway.engines.protocol import WorkerRef
from ropeway.observability import logs, names
from ropeway.runtime.backoff import Backoff
from ropeway.runtime.loops import run_in_new_loop
from ropeway.worker.channel import (
    Begin,
    Hello,
    Quiet,
    Ready,
    Recheck,
    Refused,
    Retiring,
    Revoked,
    Stop,
    ToChild,
    Told,
)
from ropeway.worker.ledger import Ledger
from ropeway.worker.line import Line, framed, receive_blocking
from ropeway.worker.loading import load_program
from ropeway.worker.options import overlaid
from ropeway.worker.processes import Processes
from ropeway.worker.watchdog import LOOK_EVERY, Watchdog
from ropeway.worker.worker import Worker

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine
    from ropeway.settings import Settings
    from ropeway.worker.program import Program

#: How often the parent is told what was counted.
TELL_EVERY = 1.0


def main() -> None:
    """Load the app, say hello, work until told to stop or the parent is gone."""
    end = socket.socket(fileno=int(sys.argv[1]))
    ledger = Ledger(int(sys.argv[2]))
    # The terminal's Ctrl-C is the parent's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    begin = receive_blocking(end, ToChild)
    if not isinstance(begin, Begin):
        return
    try:
        program = load_program(begin.target)
        settings = overlaid(program.settings, begin.flags)
    except RopewayError as error:
        end.sendall(framed(Refused(str(error))))
        return
    logs.configure(settings.log_level, settings.log_format)
    ledger.slots = settings.concurrency
    # Everything imported so far stays: the collector need not look at it again, and forks share its pages.
    gc.freeze()
    code = run_in_new_loop(_Child(end, ledger, begin, program, settings).run())
    # Threads of handlers that would not stop must not keep the process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class _Child:
    def __init__(
        self, end: socket.socket, ledger: Ledger, begin: Begin, program: Program, settings: Settings
    ) -> None:
        self._end = end
        self._ledger = ledger
        self._begin = begin
        self._program = program
        self._settings = settings
        self._options = begin.options.with_settings(settings)
        self._log = logs.logger("ropeway.worker")
        self._stop: asyncio.Future[float | None]
        self._line: Line

    async def run(self) -> int:
        self._stop = asyncio.get_running_loop().create_future()
        self._line = await Line.over(self._end, ToChild)
        self._line.send(
            Hello(
                msgspec.to_builtins(self._settings),
                sorted(self._program.registry.names()),
                self._program.schedules(),
            )
        )
        try:
            async with contextlib.AsyncExitStack() as stack:
                engine = await self._opened(stack)
                self._program.adopt(engine)
                await stack.enter_async_context(self._program.lifespan())
                await self._work(engine)
        except RopewayError as error:
            self._line.send(Refused(str(error)))
            await self._line.drained()
            return 2
        return 0

    async def _opened(self, stack: contextlib.AsyncExitStack) -> Engine:
        backoff = Backoff()
        while True:
            engine = engine_for(self._settings)
            try:
                await engine.open()
            except ConfigurationError:
                raise
            except EngineError as error:
                await engine.close()
                self._log.warning(names.ENGINE_AWAY, engine=engine.name, error=str(error))
                await asyncio.sleep(backoff.next())
            else:
                stack.push_async_callback(engine.close)
                return engine

    async def _work(self, engine: Engine) -> None:
        begin = self._begin
        processes = Processes(
            begin.target,
            self._settings,
            worker_id=begin.worker_id,
            tenant=self._options.tenant,
            kept=self._options.cpu_processes,
        )
        worker = Worker(
            self._program,
            engine,
            self._options,
            worker=WorkerRef(begin.worker_id, begin.owner),
            ledger=self._ledger,
            processes=processes,
        )
        loop = asyncio.get_running_loop()
        watchdog = Watchdog(loop, worker.runner, self._ledger)
        self._signals(worker)
        self._ledger.claimed(time.monotonic())
        watchdog.start()
        tasks = [
            asyncio.create_task(self._tick(worker, watchdog)),
            asyncio.create_task(self._listen(worker, engine)),
            asyncio.create_task(self._retire(worker)),
        ]
        worker.start()
        self._line.send(Ready())
        drain_seconds = await self._stop
        await worker.drain(drain_seconds)
        self._ledger.leave()
        self._tell(worker)
        await self._line.drained()
        watchdog.stop()
        for task in tasks:
            task.cancel()

    def _signals(self, worker: Worker) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop_after, self._options.drain_seconds)
        loop.add_signal_handler(signal.SIGUSR1, self._dump, worker)
        # Beneath Python's own handler, so that stacks come out while the interpreter is held by C code too.
        faulthandler.register(signal.SIGUSR1, all_threads=True, chain=True)

    def _stop_after(self, drain_seconds: float | None) -> None:
        if not self._stop.done():
            self._stop.set_result(drain_seconds)

    def _dump(self, worker: Worker) -> None:
        for run in worker.runner.runs():
            job = run.leased.job
            seconds = round(time.monotonic() - run.started, 1)
            self._log.warning(
                names.RUNNING_NOW, job_id=str(job.id), type=job.type, queue=job.queue, seconds=seconds
            )
        self._log.warning(
            names.RUNNING_NOW, running=worker.runner.running, buffered=worker.runner.buffered, note="in all"
        )

    async def _tick(self, worker: Worker, watchdog: Watchdog) -> None:
        told_at = time.monotonic()
        while True:
            watchdog.beat()
            self._ledger.finished(worker.runner.finished)
            if time.monotonic() - told_at >= TELL_EVERY:
                told_at = time.monotonic()
                self._tell(worker)
            await asyncio.sleep(LOOK_EVERY)

    def _tell(self, worker: Worker) -> None:
        delta = worker.tally.take()
        if delta:
            self._line.send(Told(delta))

    async def _retire(self, worker: Worker) -> None:
        await worker.limit_reached()
        self._line.send(Retiring(f"{self._options.max_jobs} jobs"))
        self._stop_after(None)

    async def _listen(self, worker: Worker, engine: Engine) -> None:
        while (message := await self._line.receive()) is not None:
            match message:
                case Revoked():
                    worker.revoke(message.ids)
                case Recheck():
                    with contextlib.suppress(EngineError):
                        await worker.recheck()
                case Quiet():
                    worker.quiet(message.on)
                case Stop():
                    self._stop_after(message.drain_seconds)
        await self._orphaned(worker, engine)

    async def _orphaned(self, worker: Worker, engine: Engine) -> None:
        """The parent is gone: nobody beats for this process but itself. Finish what runs, claim nothing more."""
        self._log.warning(names.CHILD_ORPHANED, note="the supervisor is gone; draining")
        self._stop_after(self._options.drain_seconds)
        while True:
            with contextlib.suppress(EngineError):
                beat = await engine.heartbeat_owner(self._begin.owner, tenant=self._options.tenant)
                if beat is not None:
                    worker.revoke(beat.revoked)
            await asyncio.sleep(self._options.lease_seconds / 3)


if __name__ == "__main__":
    main()
