"""A worker that a signal has woken: the job that it brought begins before anything else is looked for."""

from __future__ import annotations

from typing import Any

from ropeway import Ropeway
from ropeway.core.job import NewJob
from ropeway.core.states import State
from ropeway.engines.memory import MemoryEngine
from ropeway.engines.protocol import LeaseBatch
from tests.worker.inside import NEVER, working
from tests.worker.kit import Store, until


class TellingEngine(MemoryEngine):
    """Notes when it is asked for work."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    async def lease(self, *args: Any, **kwargs: Any) -> LeaseBatch:
        self.told.append("asked")
        return await super().lease(*args, **kwargs)


async def test_the_job_begins_before_the_next_claim() -> None:
    app = Ropeway("memory://")
    async with TellingEngine() as engine:

        @app.task
        async def noted() -> None:
            engine.told.append("began")

        store = Store(engine)
        async with working(app, engine, poll_seconds=NEVER) as inside:
            fetching = inside.worker._fetcher
            await until(lambda: fetching._listener is not None and not fetching._claiming, "it listens")
            engine.told.clear()
            (answer,) = await engine.enqueue([NewJob("noted", b"{}")])
            await store.reach([answer.id], State.SUCCEEDED, within=20)
    assert engine.told[:3] == ["asked", "began", "asked"]
