"""How many jobs died within the last hour: one by one, or by the samples."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ropeway.core.history import STEP, Sample
from ropeway.core.query import Count
from ropeway.engines.memory import MemoryEngine
from ropeway.runtime.clock import ManualClock
from ropeway.service.deaths import LOOK_EVERY, MOST_JOBS, NEW, Deaths
from ropeway.testing.conformance.kit import enqueue_many, lease_some, nack

HOUR = NEW.total_seconds()


@asynccontextmanager
async def memory() -> AsyncIterator[tuple[MemoryEngine, ManualClock]]:
    clock = ManualClock()
    async with MemoryEngine(clock=clock) as engine:
        yield engine, clock


async def die(engine: MemoryEngine, number: int, queue: str) -> None:
    await enqueue_many(engine, number, max_attempts=1, queue=queue)
    for leased in await lease_some(engine, number, queue):
        await nack(engine, leased)


async def test_a_few_are_counted_one_by_one() -> None:
    async with memory() as (engine, clock):
        deaths = Deaths(engine)
        await die(engine, 2, "before")
        clock.advance(HOUR + 1)
        await die(engine, 3, "now")
        dead = {"before": 2, "now": 3}
        assert await deaths.within_the_hour(dead, clock.now()) == {"before": Count(0), "now": Count(3)}
        clock.advance(HOUR + 1)
        assert await deaths.within_the_hour(dead, clock.now()) == {"before": Count(0), "now": Count(0)}


async def test_of_many_the_samples_tell_how_many_they_were() -> None:
    async with memory() as (engine, clock):
        deaths = Deaths(engine)
        began = clock.now()
        await die(engine, MOST_JOBS + 5, "mails")
        dead = {"mails": MOST_JOBS + 5, "quiet": 4}
        told = await deaths.within_the_hour(dead, clock.now())
        assert told == {"mails": Count(MOST_JOBS, capped=True), "quiet": Count(0, capped=True)}, "nobody knows"

        samples = [
            Sample("default", "mails", began, STEP, dead=300.0),
            Sample("default", "quiet", began, STEP, enqueued=1.0),
            Sample("other", "mails", began, STEP, dead=9_000.0),
        ]
        await engine.remember(samples)
        clock.advance(STEP + 5)
        told = await deaths.within_the_hour(dead, clock.now())
        assert told == {"mails": Count(300), "quiet": Count(0)}

        await die(engine, 2, "mails")
        told = await deaths.within_the_hour({**dead, "mails": MOST_JOBS + 7}, clock.now())
        assert told["mails"] == Count(302), "those that no sample knows of yet are counted too"


async def test_the_store_is_asked_when_a_number_changed_or_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory() as (engine, clock):
        deaths = Deaths(engine)
        asked = 0
        find = engine.find

        async def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal asked
            asked += 1
            return await find(*arguments, **options)

        monkeypatch.setattr(engine, "find", counted)
        assert await deaths.within_the_hour({}, clock.now()) == {}
        assert asked == 0, "where nothing is dead nothing is new"
        for _ in range(3):
            await deaths.within_the_hour({"mails": 1}, clock.now())
        assert asked == 1
        await deaths.within_the_hour({"mails": 2}, clock.now())
        assert asked == 2
        clock.advance(LOOK_EVERY.total_seconds())
        await deaths.within_the_hour({"mails": 2}, clock.now())
        assert asked == 3
