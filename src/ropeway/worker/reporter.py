"""Progress and log lines on their way to the engine: gathered, the newest progress of a job wins."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING

from ropeway.core.errors import RopewayError
from ropeway.core.job import Progress
from ropeway.core.joblog import LogLine
from ropeway.core.lease import Lease
from ropeway.observability import names
from ropeway.observability.logs import logger

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine

#: Seconds between two writes: what a person watching sees as at once, and the engine as little.
INTERVAL = 0.2
#: Log lines that wait at most; more means the engine is away, and the oldest go.
MOST_LINES = 10_000
#: How long a job that has ended waits for its last notes to be written.
FLUSH_SECONDS = 1.0
LINES_AT_ONCE = 500


class Reporter:
    """`progress` and `log` may be called from any thread and never block; `flush` sends what a job has told."""

    def __init__(self, engine: Engine, tenant: str) -> None:
        self._engine = engine
        self._tenant = tenant
        self._loop = asyncio.get_running_loop()
        self._log = logger("ropeway.worker")
        self._progress: dict[Lease, Progress] = {}
        self._lines: deque[tuple[Lease, LogLine]] = deque(maxlen=MOST_LINES)
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    def progress(self, lease: Lease, progress: Progress) -> None:
        self._loop.call_soon_threadsafe(self._note_progress, lease, progress)

    def log(self, lease: Lease, level: str, message: str) -> None:
        self._loop.call_soon_threadsafe(self._note_line, lease, LogLine(message, level, lease.attempt))

    def _note_progress(self, lease: Lease, progress: Progress) -> None:
        self._progress[lease] = progress
        self._arm()

    def _note_line(self, lease: Lease, line: LogLine) -> None:
        self._lines.append((lease, line))
        self._arm()

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(INTERVAL, self._begin)

    def _begin(self) -> None:
        self._timer = None
        if self._sending is None or self._sending.done():
            self._sending = self._loop.create_task(self._send())
        else:
            self._arm()

    async def flush(self) -> None:
        """Send what was told so far: a job that ends can tell nothing more."""
        # What another thread told is a callback in the loop's queue; let it come first.
        await asyncio.sleep(0)
        # Bounded: while the engine is away, outcomes must not wait for notes.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                for _ in range(len(self._lines) // LINES_AT_ONCE + 1):
                    await self._send()

    async def _send(self) -> None:
        # One at a time: whoever flushes waits for what another took along for it.
        async with self._turn:
            await self._send_some()

    async def _send_some(self) -> None:
        progress, self._progress = self._progress, {}
        lines = [self._lines.popleft() for _ in range(min(len(self._lines), LINES_AT_ONCE))]
        # Hints for people: what the engine does not take is dropped, and no run fails for it.
        try:
            if progress:
                await self._engine.progress(list(progress.items()), tenant=self._tenant)
            if lines:
                await self._engine.log(lines, tenant=self._tenant)
        except RopewayError:
            pass
        except Exception as error:  # noqa: BLE001 - a note that cannot be written is no reason to lose an outcome
            self._log.error(names.LOOP_FAILED, loop="report", error=repr(error), exc_info=error)
        if self._lines:
            self._arm()
