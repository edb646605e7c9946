"""A child process of the supervisor: `python -m ropeway.worker.child FD LEDGER_FD`."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ropeway.core.errors import ConfigurationError, EngineError, RopewayError, UsageError
from ropeway.engines.open import engine_for
from ropeway.engines.protocol import WorkerRef
from ropeway.observability import logs, names, tracing
from ropeway.runtime import collector, printed
from ropeway.runtime.backoff import Backoff
from ropeway.runtime.loops import run_in_new_loop
from ropeway.runtime.service import Outage
from ropeway.worker.channel import (
    Begin,
    Hello,
    Kept,
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
from ropeway.worker.selfbeat import beat_for_itself, give_back_the_rest
from ropeway.worker.stem_handle import Stem
from ropeway.worker.watchdog import LOOK_EVERY, Watchdog, print_stacks
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
    folder = Path.cwd()  # the app may go elsewhere
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
    collector.look_rarely()
    stem = Stem.forked({end.fileno(), ledger.fd})
    run_in_new_loop(_live(_Child(end, ledger, begin, program, settings, stem, folder)))


async def _live(child: _Child) -> None:
    code = await child.run()
    with contextlib.suppress(Exception):  # whatever an exporter raises, the work is done
        tracing.flush()
    # From inside the loop, whose own end would wait for handlers that do not stop, on it or on threads.
    printed.write_out()
    os._exit(code)


class _Child:
    def __init__(
        self,
        end: socket.socket,
        ledger: Ledger,
        begin: Begin,
        program: Program,
        settings: Settings,
        stem: Stem | None,
        folder: Path,
    ) -> None:
        self._end = end
        self._ledger = ledger
        self._begin = begin
        self._program = program
        self._settings = settings
        self._stem = stem
        self._folder = folder
        self._options = begin.options.with_settings(settings)
        self._log = logs.logger("ropeway.worker")
        self._quiet = False
        self._worker: Worker | None = None
        self._engine: Engine | None = None
        #: The parent beats for this process.
        self._kept = asyncio.Event()
        self._stop: asyncio.Future[float | None]
        self._line: Line
        #: Beats for its own leases, once the parent is gone.
        self._beating: asyncio.Task[None] | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        self._stop = loop.create_future()
        self._line = await Line.over(self._end, ToChild)
        self._line.send(
            Hello(
                msgspec.to_builtins(self._settings),
                sorted(self._program.registry.names()),
                self._program.schedules(),
            )
        )
        self._handle_signals(loop)
        listening = loop.create_task(self._listen())
        try:
            async with contextlib.AsyncExitStack() as stack:
                if not await self._until_stop(self._prepare(stack)):
                    return 0
                await self._work()
        except (ConfigurationError, UsageError) as error:
            self._line.send(Refused(str(error)))
            await self._line.drained()
            return 2
        except Exception as error:  # noqa: BLE001 - told in one place; the parent starts another
            self._log.error(names.CHILD_DIED, error=repr(error), exc_info=error)
            return 1
        finally:
            listening.cancel()
        return 0

    async def _until_stop(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do it, unless the child is told to stop before it is done."""
        task = asyncio.create_task(work)
        waiting: list[asyncio.Future[Any]] = [task, self._stop]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        task.cancel()
        await asyncio.wait([task])
        return False

    async def _prepare(self, stack: contextlib.AsyncExitStack) -> None:
        """All that has to be there before the first claim."""
        backoff = Backoff()
        outage = Outage(self._log)
        while self._engine is None:
            engine = engine_for(self._settings)
            try:
                await engine.open()
            except ConfigurationError:
                raise
            except EngineError as error:
                await engine.close()
                outage.failed("start", error)
                await asyncio.sleep(backoff.next())
            else:
                outage.worked("start")
                self._engine = engine
                stack.push_async_callback(engine.close)
        self._program.adopt(self._engine)
        await stack.enter_async_context(self._program.lifespan())
        await self._kept.wait()

    async def _work(self) -> None:
        begin, engine, options = self._begin, self._engine, self._options
        assert engine is not None  # noqa: S101 - prepared
        self._worker = worker = Worker(
            self._program,
            engine,
            options,
            worker=WorkerRef(begin.worker_id, begin.owner),
            ledger=self._ledger,
            processes=Processes(
                begin.target,
                self._settings,
                worker_id=begin.worker_id,
                tenant=options.tenant,
                kept=options.cpu_processes,
                folder=self._folder,
                stem=self._stem,
            ),
        )
        worker.quiet(self._quiet)
        loop = asyncio.get_running_loop()
        watchdog = Watchdog(loop, worker.runner, self._ledger)
        self._ledger.claimed(time.monotonic())
        watchdog.start()
        tasks = [loop.create_task(self._tick(worker, watchdog)), loop.create_task(self._retire(worker))]
        worker.start()
        self._line.send(Ready())
        drain_seconds = await self._stop
        await worker.drain(drain_seconds)
        if self._beating is not None:
            await give_back_the_rest(engine, begin.owner, options)
        self._ledger.leave()
        self._tell(worker)
        await self._line.drained()
        watchdog.stop()
        for task in tasks:
            task.cancel()

    def _handle_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_signal_handler(signal.SIGTERM, self._stop_after, self._options.drain_seconds)
        loop.add_signal_handler(signal.SIGUSR1, self._dump)
        # Beneath Python's own handler, so that a stack comes out while the interpreter is held by C code too. Only
        # that of the thread which takes the signal: reading the frames of a thread that runs ends the process.
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # no stderr, no stack
            faulthandler.register(signal.SIGUSR1, all_threads=False, chain=True)

    def _stop_after(self, drain_seconds: float | None) -> None:
        """Stop; once more only makes it sooner."""
        if not self._stop.done():
            self._stop.set_result(drain_seconds)
        elif self._worker is not None and drain_seconds is not None:
            self._worker.hurry(drain_seconds)

    def _dump(self) -> None:
        print_stacks()
        if self._worker is None:
            return
        runner = self._worker.runner
        for run in runner.runs():
            job = run.leased.job
            seconds = round(time.monotonic() - run.started, 1)
            self._log.warning(
                names.RUNNING_NOW, job_id=str(job.id), type=job.type, queue=job.queue, seconds=seconds
            )
        self._log.warning(names.RUNNING_NOW, running=runner.running, buffered=runner.buffered, note="in all")

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

    async def _listen(self) -> None:
        while (message := await self._line.receive()) is not None:
            worker = self._worker
            match message:
                case Stop():
                    self._stop_after(message.drain_seconds)
                case Kept():
                    self._kept.set()
                case Quiet():
                    self._quiet = message.on
                    if worker is not None:
                        worker.quiet(message.on)
                case Revoked() if worker is not None:
                    worker.recheck_soon(frozenset(message.ids))
                case Recheck() if worker is not None:
                    worker.recheck_soon()
        # The parent is gone: nobody beats for this process but itself. Finish what runs, claim nothing more.
        self._log.warning(names.CHILD_ORPHANED, note="the supervisor is gone; draining")
        if self._worker is not None and self._engine is not None:
            own = beat_for_itself(self._worker, self._engine, self._begin.owner, self._options)
            self._beating = asyncio.create_task(own)
        self._stop_after(self._options.drain_seconds)


if __name__ == "__main__":
    main()
