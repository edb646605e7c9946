"""Puts the parts of a running worker together: supervisor, upkeep, and, in development, reload."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
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


async def run_worker(
    target: str,
    options: WorkerOptions,
    flags: dict[str, object],
    *,
    processes: int = 1,
    upkeep: bool = True,
    watch: bool = False,
) -> int:
    """Run until told to stop; the exit code. `watch` replaces the children whenever a Python file changes.

    `memory://` runs in one process, because no other could see its jobs.
    """
    chores = upkeep_of if upkeep else None
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


def upkeep_of(engine: Engine, settings: Settings, metrics: WorkerMetrics, outage: Outage) -> Upkeep:
    """The chores of a worker's process, with a count of the queues for its metrics."""
    return Upkeep(engine, settings, metrics=metrics, outage=outage, survey=True)


async def _reload(supervisor: Supervisor) -> None:
    from watchfiles import PythonFilter, awatch

    async for _ in awatch(Path.cwd(), watch_filter=PythonFilter(), debounce=200):
        await supervisor.restart()
