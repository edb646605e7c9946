"""Puts the parts of a running worker together: supervisor, upkeep, and, in development, reload."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from ropeway.upkeep import Upkeep
from ropeway.worker.standalone import run_standalone
from ropeway.worker.supervisor import OnlyInMemory, Supervisor

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine
    from ropeway.observability.metrics import WorkerMetrics
    from ropeway.runtime.service import Outage
    from ropeway.settings import Settings
    from ropeway.worker.options import WorkerOptions
    from ropeway.worker.program import Chores


async def run_worker(
    target: str,
    options: WorkerOptions,
    flags: dict[str, object],
    *,
    processes: int = 1,
    upkeep: bool = True,
    watch: bool = False,
    beside: Chores | None = None,
) -> int:
    """Run until told to stop; the exit code. `watch` replaces the children whenever a Python file changes.
    `beside` is what else the parent does meanwhile, with its engine.

    `memory://` runs in one process, because no other could see its jobs.
    """

    def own(engine: Engine, settings: Settings, metrics: WorkerMetrics, outage: Outage) -> Upkeep:
        shown = settings.worker_http_port >= 0 or beside is not None
        return upkeep_of(engine, settings, metrics, outage, survey=shown)

    chores = _together(own if upkeep else None, beside)
    supervisor = Supervisor(target, options, flags=flags, processes=processes, chores=chores, wait_for_a_fix=watch)
    watching = asyncio.create_task(_reload(supervisor)) if watch else None
    try:
        return await supervisor.run()
    except OnlyInMemory:
        code = await run_standalone(target, options, flags, chores=chores)
        # Threads of handlers that would not stop must not keep the process.
        sys.stderr.flush()
        os._exit(code)
    finally:
        if watching is not None:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching


def upkeep_of(
    engine: Engine, settings: Settings, metrics: WorkerMetrics, outage: Outage, *, survey: bool = True
) -> Upkeep:
    """The chores of a process, with a count of the queues for its metrics if anybody can see them."""
    return Upkeep(engine, settings, metrics=metrics, outage=outage, survey=survey)


def _together(*parts: Chores | None) -> Chores | None:
    given = [part for part in parts if part is not None]

    @contextlib.asynccontextmanager
    async def all_of_them(
        engine: Engine, settings: Settings, metrics: WorkerMetrics, outage: Outage
    ) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for part in given:
                await stack.enter_async_context(part(engine, settings, metrics, outage))
            yield

    return all_of_them if given else None


async def _reload(supervisor: Supervisor) -> None:
    from watchfiles import PythonFilter, awatch

    async for _ in awatch(Path.cwd(), watch_filter=PythonFilter(), debounce=200):
        await supervisor.restart()
