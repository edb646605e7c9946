"""One run of one job, as the worker's parts hand it to one another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from ropeway.core.outcome import Outcome
    from ropeway.engines.protocol import Leased
    from ropeway.task.spec import TaskSpec


class StopReason(Enum):
    """Why a handler was told to stop."""

    #: It ran longer than its timeout.
    TIMEOUT = "timeout"
    #: The job was cancelled, or its lease was lost: nothing may be written for it any more.
    REVOKED = "revoked"
    #: The worker shuts down and the time to finish is over.
    SHUTDOWN = "shutdown"


class Interruptible(Protocol):
    """Where a handler runs when it is not on the event loop."""

    def interrupt(self, reason: StopReason) -> None: ...


class Run(msgspec.Struct, eq=False):
    """A leased job on its way through the worker. Times are the machine's monotonic clock."""

    leased: Leased
    spec: TaskSpec | None
    slot: int = -1
    started: float = 0.0
    seconds: float = 0.0
    soft_deadline: float = 0.0
    stop: StopReason | None = None
    task: asyncio.Task[None] | None = None
    #: The handler is at work: only then may its task be cancelled.
    interruptible: bool = False
    #: A thread or process that runs the handler; None while it runs on the loop.
    place: Interruptible | None = None
    #: Called with the time when the handler is about to run, if that is not at once.
    on_begin: Callable[[Run, float], None] | None = None
    outcome: Outcome | None = None
    #: The handler's own transaction has completed the job.
    committed: bool = False
    #: The handler's own transaction may have completed the job: the fence will tell.
    unknown_commit: bool = False
    #: Its outcome could not be kept and became a failure.
    replaced: bool = False
    #: Progress or log lines were told and may still be on their way.
    reported: bool = False

    def interrupt(self, reason: StopReason) -> None:
        """Tell the handler to stop, once; a revocation overrides every other reason."""
        if self.stop is not None:
            if reason is StopReason.REVOKED:
                self.stop = reason
            return
        self.stop = reason
        if self.place is not None:
            self.place.interrupt(reason)
        elif self.task is not None and self.interruptible:
            self.task.cancel()
