"""The fetcher beside a real engine in memory: when it claims, and when it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from ropeway import Ropeway
from ropeway.core.errors import RopewayError
from ropeway.core.job import DEFAULT_TENANT, NewJob
from ropeway.core.query import JobFilter
from ropeway.core.states import State
from ropeway.engines.memory import MemoryEngine
from ropeway.engines.protocol import Settled, Settlement
from ropeway.worker import fetcher
from ropeway.worker.inprocess import InProcessWorker

app = Ropeway("memory://")


@app.task
async def noop() -> None: ...


async def eventually(fact: Callable[[], bool]) -> None:
    while not fact():  # noqa: ASYNC110 - there is nothing that tells
        await asyncio.sleep(0)


class SlowToSettle(MemoryEngine):
    """Takes no outcome before its gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def settle(
        self, settlements: Sequence[Settlement], *, tenant: str = DEFAULT_TENANT
    ) -> list[Settled | RopewayError]:
        await self.gate.wait()
        return await super().settle(settlements, tenant=tenant)


async def test_claiming_pauses_for_outcomes_and_goes_on_when_they_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing else wakes it: no run ends any more, and its own look at the clock comes too late for this test."""
    monkeypatch.setattr(fetcher, "MOST_UNSETTLED", 500)
    monkeypatch.setattr(fetcher, "ROOM_SECONDS", 10_000.0)
    engine = SlowToSettle()
    await engine.enqueue([NewJob("noop") for _ in range(1_000)])
    await engine.enqueue([NewJob("noop") for _ in range(1_000)])
    succeeded = JobFilter(states=frozenset({State.SUCCEEDED}))
    async with InProcessWorker(app.program, engine) as worker:
        runner, completer = worker.worker.runner, worker.worker._completer
        await eventually(lambda: completer.unsettled > 500 and not runner.running)
        queued = (await engine.count(JobFilter(states=frozenset({State.QUEUED})))).number
        assert queued > 0, "it must not claim everything while no outcome is written"
        engine.gate.set()
        await worker.drain()
    assert (await engine.count(succeeded)).number == 2_000
