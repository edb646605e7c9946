"""Jobs in processes of their own: kept ones for CPU-bound handlers, one for each suspect of a crash."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropeway.core.outcome import Lost, Outcome, Released
from ropeway.worker import isolated
from ropeway.worker.line import Line
from ropeway.worker.run import Run, StopReason
from ropeway.worker.runner import HARD_GRACE
from ropeway.worker.stem import Ended
from ropeway.worker.stem_handle import Offspring, Stem, StemGone

if TYPE_CHECKING:
    from ropeway.settings import Settings
    from ropeway.worker.reporter import Reporter

#: Suspects that run at once: after the crash of a child with many slots each of its jobs needs a process.
MOST_SUSPECTS = 100
#: Seconds after the end of a process until nothing more of what it has said is waited for.
LAST_WORDS = 0.5
#: So many are tried before it is said that none can live.
STEMS = 3


class Processes:
    """`perform` runs a job in a process; a process that dies makes its own job lost, no other."""

    def __init__(
        self,
        target: str,
        settings: Settings,
        *,
        worker_id: str,
        tenant: str,
        kept: int,
        folder: Path | None = None,
        stem: Stem | None = None,
    ) -> None:
        """`folder`: where the target was loaded; `stem`: what they are forked from, if it is there already."""
        self._folder = folder
        self._serve = isolated.Serve(target, settings, worker_id, tenant)
        self._stem = stem
        self._planting = asyncio.Lock()
        self._closed = False
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
                run.on_begin(run, time.monotonic())
            return await process.perform(run, self._reporter)
        finally:
            if keep and process.usable:
                self._idle.append(process)
            else:
                self._end(process)

    async def _started(self) -> _Process:
        ours, theirs = socket.socketpair()
        try:
            stem, offspring = await self._forked(theirs)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        line = await Line.over(ours, isolated.Progressed | isolated.Logged | isolated.Performed)
        line.send(self._serve)
        process = _Process(offspring, stem, line)
        self._all.add(process)
        return process

    async def _forked(self, end: socket.socket) -> tuple[Stem, Offspring]:
        for _ in range(STEMS):
            if self._closed:
                raise StemGone("the worker ends")
            stem = await self._living_stem()
            try:
                return stem, await stem.fork(end)
            except StemGone:
                await stem.close()
        raise StemGone("the process that others are forked from dies as soon as it is started")

    async def _living_stem(self) -> Stem:
        async with self._planting:
            if self._stem is not None and self._stem.gone.is_set():
                await self._stem.close()
                self._stem = None
            if self._stem is None:
                stem = await asyncio.to_thread(Stem.spawned, self._serve.target, self._folder)
                if self._closed:
                    await stem.close()
                    raise StemGone("the worker ends")
                self._stem = stem
            return self._stem

    def _end(self, process: _Process) -> None:
        self._all.discard(process)
        process.kill()
        process.close()

    async def close(self) -> None:
        self._closed = True
        for process in list(self._all):
            self._end(process)
        if self._stem is not None:
            await self._stem.close()


class _Waiting:
    """A job that has no process yet."""

    def __init__(self) -> None:
        self.told = asyncio.Event()

    def interrupt(self, reason: StopReason) -> None:
        self.told.set()


class _Process:
    """One process and the line to it."""

    def __init__(self, offspring: Offspring, stem: Stem, line: Line) -> None:
        self._offspring = offspring
        self._stem = stem
        self._line = line
        self.usable = True
        offspring.ended.add_done_callback(self._died)

    def _died(self, _ended: object) -> None:
        self.usable = False
        # What it has started may hold its end of the line, and live for ever.
        asyncio.get_running_loop().call_later(LAST_WORDS, self._line.close)

    @property
    def answers(self) -> bool:
        """That it died is told by its stem, a moment later; its line is closed before that."""
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
        ended = await self._end()
        if run.stop is StopReason.REVOKED:
            return None
        if run.stop is StopReason.SHUTDOWN:
            return Released()  # it did not stop in time and was killed from here
        return Lost(
            "timeout" if run.stop is StopReason.TIMEOUT else "crashed",
            exit_code=ended.exit_code if ended is not None and ended.exit_code >= 0 else None,
            signal=-ended.exit_code if ended is not None and ended.exit_code < 0 else None,
            peak_rss_bytes=ended.peak_rss_bytes if ended is not None else None,
        )

    async def _end(self) -> Ended | None:
        """How it ended; None when its stem went before it, and nobody knows."""
        alone = asyncio.create_task(self._stem.gone.wait())
        either: list[asyncio.Future[Any]] = [self._offspring.ended, alone]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            alone.cancel()
        return self._offspring.ended.result() if self._offspring.ended.done() else None

    async def _watch(self, run: Run) -> None:
        """Kills what does not stop when it is told to."""
        loop = asyncio.get_running_loop()
        told_at: float | None = None
        while not self._offspring.ended.done():
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
        # Nobody tells of its end when its stem is gone, and its number may be another's by now.
        gone = self._offspring.ended.done() or (self._stem.gone.is_set() and self._line.hung_up())
        if not gone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._offspring.pid, signal.SIGKILL)

    def close(self) -> None:
        self._line.close()
