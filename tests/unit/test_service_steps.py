"""Many jobs in steps: how far they go, and what is told when the store goes away in between."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec import structs

from ropeway.core.errors import EngineError, Indeterminate, Unavailable
from ropeway.core.job import NewJob
from ropeway.core.outcome import Failed
from ropeway.core.payload import clean_error
from ropeway.core.query import JobFilter, RedriveReport
from ropeway.core.states import State
from ropeway.engines.protocol import Settlement
from ropeway.service import bulk
from ropeway.service.bulk import Bulk
from ropeway.service.steps import STEP, Stepped, in_steps
from ropeway.testing.conformance.kit import enqueue_one, lease_some, state_of
from tests.unit.service_kit import CountingEngine, Time, counting


class Store:
    """So many jobs to be changed; goes away at a step."""

    def __init__(self, jobs: int, *, away_at: int | None = None, error: EngineError | None = None) -> None:
        self.jobs = jobs
        self.steps: list[int] = []
        self._away_at = away_at
        self._error = error or Unavailable("away")

    async def step(self, most: int) -> Stepped:
        if len(self.steps) == self._away_at:
            raise self._error
        self.steps.append(most)
        done = min(most, self.jobs)
        self.jobs -= done
        return Stepped(done, skipped=1, more=self.jobs > 0)


async def test_steps_go_on_until_there_is_no_more() -> None:
    store = Store(25)
    assert await in_steps(store.step, limit=None, size=10) == Stepped(25, 3, more=False)
    assert store.steps == [10, 10, 10]


async def test_steps_end_at_the_limit() -> None:
    store = Store(25)
    assert await in_steps(store.step, limit=15, size=10) == Stepped(15, 2, more=True)
    assert store.steps == [10, 5]
    assert await in_steps(Store(15).step, limit=15, size=10) == Stepped(15, 2, more=False)


@pytest.mark.parametrize("error", [Unavailable("away"), Indeterminate("perhaps")])
async def test_what_was_done_before_the_store_went_away_is_told(error: EngineError) -> None:
    store = Store(25, away_at=1, error=error)
    assert await in_steps(store.step, limit=None, size=10) == Stepped(10, 1, more=True, broken_off=True)
    with pytest.raises(type(error)):
        await in_steps(Store(25, away_at=0, error=error).step, limit=None, size=10)


async def enqueued(engine: CountingEngine, number: int) -> JobFilter:
    await engine.enqueue([NewJob("work", queue="mail") for _ in range(number)])
    await engine.enqueue([NewJob("work", queue="other")])
    return JobFilter(queue="mail")


async def test_jobs_are_cancelled_and_retried_by_filter_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "MAX_PAGE", 2)
    async with counting() as (engine, _):
        where, service = await enqueued(engine, 5), Bulk(engine)
        assert (await service.count_cancellable(where)).number == 5
        assert await service.cancel(where, limit=3) == Stepped(3, more=True)
        assert await service.cancel(where) == Stepped(2, more=False)
        assert await service.cancel(where) == Stepped(0, more=False)
        assert (await service.count_retriable(where)).number == 5
        assert await service.retry(where, limit=4) == Stepped(4, more=True)
        assert await service.retry(where) == Stepped(1, more=False)
        jobs = (await engine.find(where)).jobs
        assert {await state_of(engine, job.id) for job in jobs} == {State.QUEUED}


async def test_a_filter_that_can_find_nothing_asks_nobody() -> None:
    async with counting() as (engine, _):
        dead = JobFilter(states=frozenset({State.DEAD}))
        assert await Bulk(engine).cancel(dead) == Stepped(0, more=False)
        queued = JobFilter(states=frozenset({State.QUEUED}))
        assert await Bulk(engine).retry(queued) == Stepped(0, more=False)
        assert (await Bulk(engine).count_retriable(queued)).number == 0


class Deadly(CountingEngine):
    """Whatever is run again dies again at once."""

    def __init__(self, time: Time) -> None:
        super().__init__(time)
        self.time = time
        self.again: list[UUID] = []

    async def redrive_where(self, *arguments: Any, **options: Any) -> RedriveReport:
        report = await super().redrive_where(*arguments, **options)
        self.again += report.retried
        self.time.advance(1)
        for leased in await lease_some(self, len(report.retried), "mail"):
            await self.settle([Settlement(leased.lease, Failed(clean_error("E", "again"), retry=False))])
        return report


async def test_a_job_that_dies_again_at_once_is_not_retried_again() -> None:
    """It would stand before those that come after it, until the limit is used up by a few."""
    async with Deadly(Time()) as engine:
        where = await enqueued(engine, STEP + 1)
        service = Bulk(engine)
        await service.cancel(where)
        assert await service.retry(where) == Stepped(STEP + 1, more=False)
        assert len(set(engine.again)) == len(engine.again) == STEP + 1


async def test_a_yes_is_to_no_jobs_that_came_after_the_question() -> None:
    async with counting() as (engine, time):
        where, service = await enqueued(engine, 2), Bulk(engine)
        asked_at = await service.now()
        time.advance(0.000_001)
        await enqueued(engine, 3)
        assert await service.cancel(where, asked_at=asked_at) == Stepped(2, more=False)
        asked_at = await service.now()
        time.advance(0.000_001)
        assert await service.cancel(where) == Stepped(3, more=False)
        assert await service.retry(where, asked_at=asked_at) == Stepped(2, more=False)
        earlier = structs.replace(where, finished_before=asked_at)
        assert await service.retry(earlier, asked_at=await service.now()) == Stepped(0, more=False)


async def test_of_the_picked_jobs_those_are_told_that_can_be_changed() -> None:
    async with counting() as (engine, _):
        live, ended = [await enqueue_one(engine) for _ in range(2)]
        await engine.cancel([ended])
        service = Bulk(engine)
        assert await service.cancellable([ended, live, uuid4()]) == [live]
        assert await service.retriable([ended, live, uuid4()]) == [ended]
        assert await Bulk(engine, tenant="other").cancellable([live]) == []
