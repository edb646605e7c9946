"""Jobs in processes of their own: kept ones for CPU-bound handlers, one for each suspect of a crash.

The processes are forked from a server that has imported the app and does nothing else (`forkserver`), so one is
there in milliseconds and inherits no thread, lock or connection.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ropeway.core.outcome import Lost, Outcome, Released
from ropeway.worker import isolated, preload
from ropeway.worker.line import Line
from ropeway.worker.run import Run, StopReason
from ropeway.worker.runner import HARD_GRACE

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

    from ropeway.settings import Settings
    from ropeway.worker.reporter import Reporter

#: Suspects that run at once: after the crash of a child with many slots each of its jobs needs a process.
MOST_SUSPECTS = 100


class Processes:
    """`perform` runs a job in a process; a process that dies makes its own job lost, no other."""

    def __init__(self, target: str, settings: Settings, *, worker_id: str, tenant: str, kept: int) -> None:
        self._target = target
        self._context = multiprocessing.get_context("forkserver")
        # All that a process needs: what the server has imported none of them has to.
        self._context.set_forkserver_preload([preload.__name__, isolated.__name__, "ropeway.worker.child"])
        self._settings = msgspec.msgpack.encode(settings)
        self._worker_id = worker_id
        self._tenant = tenant
        self._idle: deque[_Process] = deque()
        self._places = asyncio.Semaphore(kept)
        self._cells = asyncio.Semaphore(MOST_SUSPECTS)
        self._all: set[_Process] = set()
        self._reporter: Reporter | None = None

    def attach(self, reporter: Reporter) -> None:
        """Where progress and log lines go."""
        self._reporter = reporter

    async def perform(self, run: Run) -> Outcome | None:
        suspect = run.leased.job.lease_lost_count > 0
        places = self._cells if suspect else self._places
        if not await self._got(places, run):
            return None if run.stop is StopReason.REVOKED else Released()
        try:
            process = None if suspect else self._kept()
            return await self._in(process or await self._started(), run, keep=not suspect)
        finally:
            places.release()

    async def _got(self, places: asyncio.Semaphore, run: Run) -> bool:
        """Wait for a place; False when the job must stop before it has begun."""
        waiting = _Waiting()
        run.place = waiting
        place = asyncio.create_task(places.acquire())
        told = asyncio.create_task(waiting.told.wait())
        await asyncio.wait([place, told], return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        run.place = None
        if run.stop is None:
            return True
        if place.done():
            places.release()
        place.cancel()
        return False

    def _kept(self) -> _Process | None:
        """A process that has run such jobs before and lives."""
        while self._idle:
            process = self._idle.popleft()
            if process.usable and process.answers:
                return process
            self._end(process)
        return None

    async def _in(self, process: _Process, run: Run, *, keep: bool) -> Outcome | None:
        try:
            if run.on_begin is not None:
                run.on_begin(run)
            return await process.perform(run, self._reporter)
        finally:
            if keep and process.usable:
                self._idle.append(process)
            else:
                self._end(process)

    async def _started(self) -> _Process:
        ours, theirs = socket.socketpair()
        try:
            made = self._context.Process(
                target=isolated.main,
                args=(theirs, self._target, self._settings, self._worker_id, self._tenant),
                daemon=True,
            )
            # The first start also starts the server, which imports the app.
            await asyncio.to_thread(self._start, made)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        process = _Process(made, await Line.over(ours, isolated.Progressed | isolated.Logged | isolated.Performed))
        self._all.add(process)
        return process

    def _start(self, made: ForkServerProcess) -> None:
        with _starting:
            os.environ[preload.VARIABLE] = self._target
            try:
                made.start()
            finally:
                del os.environ[preload.VARIABLE]

    def _end(self, process: _Process) -> None:
        self._all.discard(process)
        process.kill()
        process.close()

    def close(self) -> None:
        for process in list(self._all):
            self._end(process)


#: One start at a time: the environment tells the server what to load.
_starting = threading.Lock()


class _Waiting:
    """A job that has no process yet."""

    def __init__(self) -> None:
        self.told = asyncio.Event()

    def interrupt(self, reason: StopReason) -> None:
        self.told.set()


class _Process:
    """One process and the line to it."""

    def __init__(self, process: ForkServerProcess, line: Line) -> None:
        self._process = process
        self._line = line
        self._dead = asyncio.Event()
        self._peak = 0
        self.usable = True
        asyncio.get_running_loop().add_reader(process.sentinel, self._died)

    def _died(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._dead.set()
        self.usable = False

    @property
    def answers(self) -> bool:
        """That it died is told by its server, a moment later; its line is closed before that."""
        return not self._line.hung_up()

    async def perform(self, run: Run, reporter: Reporter | None) -> Outcome | None:
        run.place = self
        self._line.send(isolated.Perform(run.leased))
        if run.stop is not None:
            self.interrupt(run.stop)
        watch = asyncio.create_task(self._watch(run))
        try:
            while (message := await self._line.receive()) is not None:
                if isinstance(message, isolated.Performed):
                    run.committed = message.committed
                    run.unknown_commit = message.unknown_commit
                    self.usable = self.usable and not message.leaving
                    return None if run.stop is StopReason.REVOKED else message.outcome()
                # A thread that an earlier job left behind may still tell of that one.
                if reporter is not None and message.lease == run.leased.lease:
                    run.reported = True
                    if isinstance(message, isolated.Progressed):
                        reporter.progress(run.leased.lease, message.progress)
                    else:
                        reporter.log(run.leased.lease, message.level, message.message)
            return await self._ended_without_answer(run)
        finally:
            watch.cancel()
            run.place = None
            if run.reported and reporter is not None:
                await reporter.flush()

    async def _ended_without_answer(self, run: Run) -> Outcome | None:
        """The line closed: the process is dead, or will be."""
        self.usable = False
        self.kill()
        await self._dead.wait()
        if run.stop is StopReason.REVOKED:
            return None
        if run.stop is StopReason.SHUTDOWN:
            return Released()  # it did not stop in time and was killed from here
        code = self._process.exitcode or 0
        return Lost(
            "timeout" if run.stop is StopReason.TIMEOUT else "crashed",
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            peak_rss_bytes=self._peak or None,
        )

    async def _watch(self, run: Run) -> None:
        """Notes the memory it takes, and kills what does not stop when it is told to."""
        loop = asyncio.get_running_loop()
        told_at: float | None = None
        while not self._dead.is_set():
            self._peak = max(self._peak, _peak_rss(self._process.pid))
            if run.stop is not None:
                told_at = told_at if told_at is not None else loop.time()
                patience = HARD_GRACE if run.stop is StopReason.TIMEOUT else 0.4
                if loop.time() - told_at >= patience:
                    self.kill()
                    return
            await asyncio.sleep(0.1)

    def interrupt(self, reason: StopReason) -> None:
        self._line.send(isolated.Interrupt(reason))

    def kill(self) -> None:
        if self._process.pid is not None and not self._dead.is_set():
            try:
                os.kill(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                return

    def close(self) -> None:
        self._line.close()


def _peak_rss(pid: int | None) -> int:
    """The most memory a process has held, in bytes; 0 where that cannot be known."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), "VmHWM: 0")
    return int(line.split()[1]) * 1024
