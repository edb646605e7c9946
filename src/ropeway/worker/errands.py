"""What the parent does beside its main course; a defect in any of it ends the worker, in good order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from ropeway.observability import names

if TYPE_CHECKING:
    from ropeway.observability.logs import Logger


class Errands:
    """Tasks that nobody waits for."""

    def __init__(self, log: Logger, stopping: asyncio.Event) -> None:
        self._log = log
        self._stopping = stopping
        self._tasks: set[asyncio.Task[None]] = set()
        #: A defect of our own ended the worker.
        self.failed = False

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # It must not leave children without a parent that looks after them.
            self._log.error(names.LOOP_FAILED, error=repr(error), exc_info=error)
            self.failed = True
            self._stopping.set()
