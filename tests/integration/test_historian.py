"""The historian on real engines: a sample for each queue and step, once, and long steps from short ones."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from ropeway.core.history import ALL_QUEUES, LONG_STEP, STEP, Observed, Sample, last_step, step_of
from ropeway.engines.protocol import Engine
from ropeway.service.history import History
from ropeway.testing.conformance.kit import ack, enqueue_many, lease_some
from ropeway.testing.conformance.subject import Harness, Subject
from ropeway.testing.harness import MemoryHarness, SqliteHarness
from ropeway.testing.postgres import PostgresHarness
from ropeway.upkeep.historian import Historian


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def harness(request: pytest.FixtureRequest) -> Harness:
    if request.param == "postgres":
        return PostgresHarness(request.getfixturevalue("postgres_module_database"))
    return MemoryHarness() if request.param == "memory" else SqliteHarness()


async def to_the_next(subject: Subject, step: int, *, more: float = 0.0) -> datetime:
    """Let the clock go on to the beginning of a step, and some seconds further; when that step began."""
    now = await subject.engine.now()
    begins = step_of(now, step) + timedelta(seconds=step)
    await subject.advance((begins - now).total_seconds() + more)
    return begins


async def kept(engine: Engine, step: int = STEP) -> list[Sample]:
    """The samples of queues."""
    samples = await engine.history(step=step, since=await engine.now() - timedelta(hours=1))
    return [sample for sample in samples if sample.queue != ALL_QUEUES]


async def test_a_step_is_kept_when_it_is_over(harness: Harness) -> None:
    async with harness.subject() as subject:
        engine = subject.engine
        historian = Historian(engine)
        began = await to_the_next(subject, STEP, more=1)
        await enqueue_many(engine, 3, queue="a")
        (leased,) = await lease_some(engine, 1, "a")
        await ack(engine, leased)
        await lease_some(engine, 1, "a", lease_seconds=600)
        await historian.run_once()
        assert [one for one in await kept(engine) if one.at == began] == [], "it is not over"
        await subject.advance(STEP + 2)
        await historian.run_once()
        (sample,) = [one for one in await kept(engine) if one.at == began]
        assert (sample.queue, sample.enqueued, sample.succeeded, sample.failed) == ("a", 3, 1, 0)
        assert (sample.waiting, sample.running) == (1, 1)
        assert sum(sample.waits) == sum(sample.runs) == 1


async def test_a_queue_in_which_nothing_moves_is_kept_as_well(harness: Harness) -> None:
    async with harness.subject() as subject:
        engine = subject.engine
        await enqueue_many(engine, 2, queue="stuck")
        await to_the_next(subject, STEP)
        await subject.advance(10 * STEP + 3)
        await Historian(engine).run_once()
        (sample,) = await kept(engine)
        assert (sample.at, sample.queue, sample.enqueued, sample.waiting) == (
            last_step(await engine.now()), "stuck", 0, 2,
        )  # fmt: skip
        assert sample.oldest is not None
        assert sample.oldest > 10 * STEP


async def test_of_many_processes_one_does_it(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    async with harness.subject() as subject:
        engine = subject.engine
        looks: list[datetime] = []
        observe = engine.observe

        async def noted(since: datetime, until: datetime) -> list[Observed]:
            looks.append(since)
            return await observe(since, until)

        monkeypatch.setattr(engine, "observe", noted)
        await enqueue_many(engine, 5, queue="a")
        await to_the_next(subject, STEP, more=3)
        historians = [Historian(engine) for _ in range(8)]
        await asyncio.gather(*(historian.run_once() for historian in historians))
        (sample,) = await kept(engine)
        assert sample.enqueued == 5
        assert len(looks) == 1


async def test_long_steps_are_made_of_short_ones(harness: Harness) -> None:
    async with harness.subject() as subject:
        engine = subject.engine
        historian = Historian(engine)
        began = await to_the_next(subject, LONG_STEP)
        for _ in range(LONG_STEP // STEP):
            await subject.advance(3)
            await historian.run_once()
            await enqueue_many(engine, 2, queue="a")
            await subject.advance(STEP - 3)
        await subject.advance(3)
        await historian.run_once()
        (whole,) = await kept(engine, LONG_STEP)
        assert whole.at == began
        assert whole.enqueued == 2 * LONG_STEP // STEP
        assert whole.waiting == 2 * LONG_STEP // STEP
        series = await History(engine).series("6h")
        assert [value for value in series.enqueued if value] == [whole.enqueued * 60 / LONG_STEP]


async def test_a_quiet_time_is_none_in_which_nobody_looked(harness: Harness) -> None:
    async with harness.subject() as subject:
        engine = subject.engine
        historian = Historian(engine)
        await to_the_next(subject, STEP, more=3)
        await historian.run_once()
        await subject.advance(3 * STEP)
        await historian.run_once()
        series = await History(engine).series("15m")
        known = [value for value in series.enqueued if value is not None]
        assert known == [0, 0], "two steps were looked at, and nothing happened in them"
        assert series.waiting.count(0) == 2
        assert series.wait_p50.count(None) == len(series.at)
