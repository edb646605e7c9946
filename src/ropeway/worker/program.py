"""What a worker needs of an app; an app builds it, so that the worker need not know apps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import SimpleNamespace

from ropeway.core.schedule import NewSchedule
from ropeway.engines.protocol import Engine
from ropeway.observability.metrics import WorkerMetrics
from ropeway.runtime.service import Outage
from ropeway.settings import Settings
from ropeway.task.middleware import Middleware
from ropeway.task.registry import Registry

#: Makes the maintenance loops of a worker's process, entered while it runs: upkeep is another room.
Chores = Callable[[Engine, Settings, WorkerMetrics, Outage], AbstractAsyncContextManager[object]]


@dataclass(frozen=True)
class Program:
    """An app as its workers see it."""

    settings: Settings
    registry: Registry
    middleware: Sequence[Middleware]
    #: What the app's lifespan hooks put there, for handlers.
    state: SimpleNamespace
    #: Runs the app's lifespan hooks round everything a process does.
    lifespan: Callable[[], AbstractAsyncContextManager[None]]
    #: The schedules that the code declares.
    schedules: Callable[[], list[NewSchedule]]
    #: Enqueues made in this process use this engine from now on.
    adopt: Callable[[Engine], None]
