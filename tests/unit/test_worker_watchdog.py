"""Who is blamed when the loop does not turn: the job whose task is at it, and nobody else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from ropeway.core.job import NewJob
from ropeway.engines.memory import MemoryEngine
from ropeway.engines.protocol import EngineRules, Leased, WorkerRef
from ropeway.observability import names
from ropeway.runtime import ids
from ropeway.worker import watchdog
from ropeway.worker.ledger import Ledger
from ropeway.worker.run import Run
from ropeway.worker.watchdog import Watchdog


class Runs(list[Run]):
    """What the watchdog asks of a runner."""

    def runs(self) -> Iterable[Run]:
        return self


class Watched:
    """A loop that is watched, and two jobs on it: the first has no task yet."""

    def __init__(self, leases: list[Leased], told: list[Any]) -> None:
        self.runs = Runs(Run(leased, None, slot) for slot, leased in enumerate(leases))
        self.ledger = Ledger.create(len(leases))
        for run in self.runs:
            self.ledger.start(run.slot, run.leased.job.id, time.monotonic(), 0.0, isolated=False)
        self.watchdog = Watchdog(asyncio.get_running_loop(), self.runs, self.ledger)  # type: ignore[arg-type]
        self._told = told

    def block(self) -> tuple[str | None, UUID | None]:
        """Hold the loop until it is told who does; which job that is by the log, and by the ledger."""
        deadline = time.monotonic() + 30
        while not self._told and time.monotonic() < deadline:
            time.sleep(0.001)
        return self._told[0].get("job_id"), self.ledger.blocker()


@asynccontextmanager
async def watching(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    monkeypatch.setattr(watchdog, "BLOCKED_SECONDS", 0.05)
    monkeypatch.setattr(watchdog, "LOOK_EVERY", 0.01)
    engine = MemoryEngine(EngineRules())
    await engine.enqueue([NewJob("first"), NewJob("second")])
    leases = (await engine.lease(["default"], 2, WorkerRef("watched", ids.token()))).leases
    told: list[Any] = []
    made = Watched(leases, told)

    def warning(event: str, **about: Any) -> None:
        assert event == names.LOOP_BLOCKED
        told.append(about)

    monkeypatch.setattr(made.watchdog._log, "warning", warning)
    made.watchdog.start()
    try:
        yield made
    finally:
        made.watchdog.stop()
        made.watchdog.join(30)
        made.ledger.close()


async def test_a_handler_that_blocks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watching(monkeypatch) as watched:
        second = watched.runs[1]

        async def handler() -> tuple[str | None, UUID | None]:
            return watched.block()

        handling = asyncio.create_task(handler())
        second.task = handling  # type: ignore[assignment]
        assert await handling == (str(second.leased.job.id), second.leased.job.id)
        watched.watchdog.beat()
        assert watched.ledger.blocker() is None, "it turns again"


async def test_a_callback_is_no_jobs_doing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor that of a job that has no task yet."""
    async with watching(monkeypatch) as watched:
        loop = asyncio.get_running_loop()
        blamed: asyncio.Future[tuple[str | None, UUID | None]] = loop.create_future()
        loop.call_soon(lambda: blamed.set_result(watched.block()))
        assert await blamed == (None, None)
