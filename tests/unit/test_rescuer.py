"""After an outage nobody has beaten for a while: those who live get the chance before anything is taken back."""

from __future__ import annotations

import pytest

from ropeway.core.errors import Unavailable
from ropeway.core.job import NewJob
from ropeway.core.states import State
from ropeway.engines.memory import MemoryEngine
from ropeway.engines.protocol import EngineRules, Rescued, WorkerRef
from ropeway.observability.logs import logger
from ropeway.runtime import ids
from ropeway.runtime.clock import ManualClock
from ropeway.upkeep.rescuer import GRACE, Rescuer


class SometimesAway(MemoryEngine):
    away = False

    async def rescue(self, *, limit: int = 1_000) -> list[Rescued]:
        if self.away:
            raise Unavailable("the store is away")
        return await super().rescue(limit=limit)

    async def now(self):  # type: ignore[no-untyped-def]
        if self.away:
            raise Unavailable("the store is away")
        return await super().now()


async def test_heartbeats_go_first_when_the_engine_is_back() -> None:
    clock = ManualClock()
    engine = SometimesAway(EngineRules(), clock=clock)
    time = [0.0]
    rescuer = Rescuer(engine, logger("test"), monotonic=lambda: time[0])
    alive, held = await one_alive_one_gone(engine)

    engine.away = True
    for _ in range(2):
        with pytest.raises(Unavailable):
            await rescuer.run_once()
    clock.advance(60)
    engine.away = False

    assert await rescuer.run_once() is False
    assert await states(engine, held) == {"alive": State.RUNNING, "gone": State.RUNNING}
    await engine.heartbeat_owner(alive.owner)
    for second in range(1, int(GRACE)):
        time[0] = float(second)
        assert await rescuer.run_once() is False
    time[0] = GRACE
    assert await rescuer.run_once() is True
    assert await states(engine, held) == {"alive": State.RUNNING, "gone": State.QUEUED}


async def test_who_stood_still_himself_lets_heartbeats_go_first() -> None:
    """He may have been stopped with others, one of them with the store in its hand."""
    clock = ManualClock()
    engine = MemoryEngine(EngineRules(), clock=clock)
    time = [0.0]
    rescuer = Rescuer(engine, logger("test"), monotonic=lambda: time[0])
    alive, held = await one_alive_one_gone(engine)
    assert await rescuer.run_once() is False

    clock.advance(60)
    time[0] = 60.0
    assert await rescuer.run_once() is False
    assert await states(engine, held) == {"alive": State.RUNNING, "gone": State.RUNNING}
    await engine.heartbeat_owner(alive.owner)
    for second in range(61, 64):
        time[0] = float(second)
        await rescuer.run_once()
    assert await states(engine, held) == {"alive": State.RUNNING, "gone": State.QUEUED}


async def test_who_is_always_late_takes_jobs_back_all_the_same() -> None:
    """A handler that blocks its loop again and again makes every look a late one."""
    clock = ManualClock()
    engine = MemoryEngine(EngineRules(), clock=clock)
    time = [0.0]
    rescuer = Rescuer(engine, logger("test"), monotonic=lambda: time[0])
    _, held = await one_alive_one_gone(engine)
    clock.advance(60)
    await rescuer.run_once()
    _, more = await one_alive_one_gone(engine)
    clock.advance(60)
    for look in range(1, 3):
        time[0] = 10.0 * look
        await rescuer.run_once()
    assert set((await states(engine, held | more)).values()) == {State.QUEUED}


async def one_alive_one_gone(engine: MemoryEngine) -> tuple[WorkerRef, dict[str, object]]:
    """Two workers with a job each: the one that will be heard of, and what both hold."""
    await engine.enqueue([NewJob("a"), NewJob("b")])
    alive, gone = (WorkerRef(name, ids.token()) for name in ("alive", "gone"))
    return alive, {who.id: (await engine.lease(["default"], 1, who)).leases[0].job.id for who in (alive, gone)}


async def states(engine: MemoryEngine, held: dict[str, object]) -> dict[str, State]:
    jobs = await engine.get(list(held.values()))  # type: ignore[arg-type]
    return {who: job.state for who, job in zip(held, jobs, strict=True) if job is not None}
