"""Workers inside the test's own process, where a handler may be a function of the test itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ropeway import Ropeway
from ropeway.engines.open import engine_for
from ropeway.engines.protocol import Engine, WorkerRef
from ropeway.runtime import ids
from ropeway.settings import Settings
from ropeway.worker.inprocess import InProcessWorker
from ropeway.worker.ledger import Ledger
from ropeway.worker.options import WorkerOptions
from ropeway.worker.processes import Processes
from ropeway.worker.worker import Worker
from tests.worker.kit import ROOT, Store

#: Longer than any of these tests: whatever moves, moves for another reason.
NEVER = 600.0
APART = str(ROOT / "tests" / "worker" / "apart.py")


@asynccontextmanager
async def stored(url: str = "memory://") -> AsyncIterator[Store]:
    async with engine_for(Settings(url=url)) as engine:
        yield Store(engine)


def working(app: Ropeway, engine: Engine, processes: Processes | None = None, **options: Any) -> InProcessWorker:
    """`async with` it."""
    values = {"concurrency": 5, "drain_seconds": 0.1, **options}
    return InProcessWorker(app.program, engine, WorkerOptions(**values), processes=processes)


@asynccontextmanager
async def bare(app: Ropeway, engine: Engine, **options: Any) -> AsyncIterator[tuple[Worker, Ledger]]:
    """A worker as a child process has it: nobody beats for it, and its ledger can be read."""
    made = WorkerOptions(**{"concurrency": 5, **options})
    app.program.adopt(engine)
    ledger = Ledger.create(made.concurrency)
    worker = Worker(app.program, engine, made, worker=WorkerRef("bare", ids.token()), ledger=ledger)
    worker.start()
    try:
        yield worker, ledger
    finally:
        await worker.drain(0.1)
        ledger.close()


def processes(kept: int = 1, target: str = APART) -> Processes:
    """For jobs of the app beside this file, or of another one. Make it inside the loop."""
    return Processes(target, Settings(url="memory://"), worker_id="inside", tenant="default", kept=kept)
