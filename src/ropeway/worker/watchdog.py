"""Names a handler that blocks the event loop, with its stack, while it still blocks."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING

from ropeway.observability import names
from ropeway.observability.logs import logger

if TYPE_CHECKING:
    from ropeway.worker.ledger import Ledger
    from ropeway.worker.run import Run
    from ropeway.worker.runner import Runner

#: A loop that has not turned for so long is blocked.
BLOCKED_SECONDS = 1.0
LOOK_EVERY = 0.25


def print_stacks() -> None:
    """Every thread's stack, on stderr. Under the interpreter's lock, so that no stack changes while it is read."""
    names_of = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"Thread {names_of.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()  # noqa: SLF001 - documented, for debuggers
    ]
    with contextlib.suppress(OSError, ValueError, AttributeError):  # no stderr, no stacks
        sys.stderr.write("\n".join(parts) + "\n")
        sys.stderr.flush()


class Watchdog(threading.Thread):
    """A thread beside the loop. The loop calls `beat` at least every LOOK_EVERY seconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, runner: Runner, ledger: Ledger) -> None:
        super().__init__(name="ropeway-watchdog", daemon=True)
        self._loop = loop
        self._runner = runner
        self._ledger = ledger
        self._loop_thread = threading.get_ident()
        self._log = logger("ropeway.worker")
        self._last = time.monotonic()
        self._told_of: float | None = None
        self._stopped = threading.Event()
        ledger.watched(self._last)

    def beat(self) -> None:
        now = time.monotonic()
        if self._told_of is not None:
            self._log.warning(names.LOOP_BLOCKED, note="over", seconds=round(now - self._told_of, 1))
            self._told_of = None
            self._ledger.blocked_by(None)
        self._last = now
        self._ledger.alive(now)

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        looked = time.monotonic()
        while not self._stopped.wait(LOOK_EVERY):
            now = time.monotonic()
            self._ledger.watched(now)
            stood_still, looked = now - looked > BLOCKED_SECONDS, now
            if self._told_of is None and now - self._last > BLOCKED_SECONDS:
                run = self._blocking_run()
                # When this thread stood still as well, it was the whole process, and its parent has told of it.
                if run is not None or not stood_still:
                    self._told_of = self._last
                    if run is not None:
                        self._ledger.blocked_by(run.slot)
                    self._tell(run, now - self._last)

    def _tell(self, run: Run | None, seconds: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - documented, for debuggers
        stack = "".join(traceback.format_stack(frame, limit=10)) if frame is not None else ""
        about = {} if run is None else {"job_id": str(run.leased.job.id), "type": run.leased.job.type}
        self._log.warning(
            names.LOOP_BLOCKED,
            **about,
            seconds=round(seconds, 1),
            note="no other job on this process moves; await, or make the handler a plain function",
            stack=stack,
        )

    def _blocking_run(self) -> Run | None:
        current = asyncio.current_task(self._loop)
        if current is None:
            return None  # a callback: no job's doing, nor that of one that has no task yet
        return next((run for run in self._runner.runs() if run.task is current), None)
