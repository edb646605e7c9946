"""Many jobs in steps: how far they go, and what is told when the store goes away in between."""

from __future__ import annotations

import pytest

from ropeway.core.errors import EngineError, Indeterminate, Unavailable
from ropeway.core.job import NewJob
from ropeway.core.query import JobFilter
from ropeway.core.states import State
from ropeway.service import bulk
from ropeway.service.bulk import Bulk
from ropeway.service.steps import Stepped, in_steps
from ropeway.testing.conformance.kit import state_of
from tests.unit.service_kit import CountingEngine, counting


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
    assert await in_steps(store.step, limit=None, size=10) == Stepped(10, 1, more=True)
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
