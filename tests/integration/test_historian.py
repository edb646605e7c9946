"""The historian on real engines: a sample for each queue and step, once, and long steps from short ones."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from ropeway.core.errors import Unavailable
from ropeway.core.history import ALL_QUEUES, LONG_STEP, STEP, Observed, Sample, last_step, step_of
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.outcome import Done
from ropeway.engines.postgres import remembering as of_postgres
from ropeway.engines.protocol import Engine, Settlement
from ropeway.engines.sqlite import remembering as of_sqlite
from ropeway.service.history import History
from ropeway.testing.conformance.kit import OTHER_TENANT, ack, enqueue_many, lease_some
from ropeway.testing.conformance.subject import Harness, Subject
from ropeway.testing.harness import MemoryHarness, SqliteHarness
from ropeway.testing.postgres import PostgresHarness
from ropeway.upkeep import historian as historian_module
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


async def totals(engine: Engine, step: int = STEP, *, tenant: str = OTHER_TENANT) -> list[Sample]:
    """The samples of all queues of a tenant together."""
    since = await engine.now() - timedelta(hours=2)
    return await engine.history(step=step, since=since, queue=ALL_QUEUES, tenant=tenant)


async def live_through(subject: Subject, historian: Historian, seconds: int) -> None:
    """Let so much time go by, a step at a time, and keep each."""
    for _ in range(seconds // STEP):
        await subject.advance(STEP)
        await historian.run_once()


def out_of_order(engine: Engine, monkeypatch: pytest.MonkeyPatch, *tenants: str) -> None:
    """Reading the history of these tenants fails."""
    history = engine.history

    async def broken(*, tenant: str = DEFAULT_TENANT, **asked: Any) -> list[Sample]:
        if tenant in tenants:
            raise Unavailable("away")
        return await history(tenant=tenant, **asked)

    monkeypatch.setattr(engine, "history", broken)


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


# ── Long steps are not lost ──


async def test_the_long_step_of_a_tenant_that_was_quiet_at_its_end(harness: Harness) -> None:
    async with harness.subject() as subject:
        engine = subject.engine
        began = await to_the_next(subject, LONG_STEP, more=3)
        await enqueue_many(engine, 3, queue="a", tenant=OTHER_TENANT)
        await live_through(subject, Historian(engine), LONG_STEP)
        samples = await engine.history(step=LONG_STEP, since=began, tenant=OTHER_TENANT)
        assert [(one.queue, one.at, one.enqueued, one.waiting) for one in samples] == [
            (ALL_QUEUES, began, 3, 3), ("a", began, 3, 3),
        ]  # fmt: skip


async def test_a_queue_without_a_sample_at_the_end_of_a_long_step_holds_nothing(harness: Harness) -> None:
    async with harness.subject() as subject:
        engine = subject.engine
        began = await to_the_next(subject, LONG_STEP)
        later = began + timedelta(seconds=STEP)
        first = [Sample(DEFAULT_TENANT, name, began, STEP, enqueued=5, waiting=5) for name in (ALL_QUEUES, "a")]
        await engine.remember([*first, Sample(DEFAULT_TENANT, ALL_QUEUES, later, STEP)])
        await subject.advance(LONG_STEP + 3)
        await Historian(engine).run_once()
        (whole,) = await kept(engine, LONG_STEP)
        assert (whole.queue, whole.enqueued, whole.waiting) == ("a", 5, 0)


async def test_a_long_step_that_could_not_be_merged_is_merged_later(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with harness.subject() as subject:
        engine = subject.engine
        historian = Historian(engine)
        began = await to_the_next(subject, LONG_STEP, more=3)
        await enqueue_many(engine, 2, queue="a")
        await live_through(subject, historian, LONG_STEP - STEP)
        with monkeypatch.context() as patch:
            out_of_order(engine, patch, DEFAULT_TENANT)
            await subject.advance(STEP)
            with pytest.raises(Unavailable):
                await historian.run_once()
        await historian.run_once()
        (whole,) = await kept(engine, LONG_STEP)
        assert (whole.at, whole.enqueued) == (began, 2)


async def test_another_process_merges_what_one_left(harness: Harness) -> None:
    """The last short step fell to a process that died with it, and nobody was there for two minutes."""
    async with harness.subject() as subject:
        engine = subject.engine
        began = await to_the_next(subject, LONG_STEP, more=3)
        await enqueue_many(engine, 2, queue="a")
        await live_through(subject, Historian(engine), LONG_STEP - STEP)
        await subject.advance(120)
        await Historian(engine).run_once()
        (whole,) = await kept(engine, LONG_STEP)
        assert (whole.at, whole.enqueued) == (began, 2)


async def test_a_merged_step_is_left_alone(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    async with harness.subject() as subject:
        engine = subject.engine
        await to_the_next(subject, LONG_STEP, more=3)
        await enqueue_many(engine, 2, queue="a")
        await live_through(subject, Historian(engine), LONG_STEP)
        assert len(await kept(engine, LONG_STEP)) == 1
        out_of_order(engine, monkeypatch, DEFAULT_TENANT)
        await live_through(subject, Historian(engine), STEP)


async def test_what_fails_for_one_tenant_is_done_for_the_others(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with harness.subject() as subject:
        engine = subject.engine
        historian = Historian(engine)
        tenants = ["a", DEFAULT_TENANT, "z"]
        await to_the_next(subject, LONG_STEP, more=3)
        for tenant in tenants:
            await enqueue_many(engine, 2, queue="a", tenant=tenant)
        await live_through(subject, historian, LONG_STEP - STEP)
        await subject.advance(STEP)
        with monkeypatch.context() as patch:
            out_of_order(engine, patch, "a", DEFAULT_TENANT)
            with pytest.raises(Unavailable):
                await historian.run_once()
        assert [len(await totals(engine, LONG_STEP, tenant=tenant)) for tenant in tenants] == [0, 0, 1]
        await historian.run_once()
        assert [len(await totals(engine, LONG_STEP, tenant=tenant)) for tenant in tenants] == [1, 1, 1]


async def test_a_step_that_could_not_be_kept_is_tried_again(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with harness.subject() as subject:
        engine = subject.engine
        historian = Historian(engine)
        await to_the_next(subject, STEP, more=1)
        await enqueue_many(engine, 3, queue="a")
        await to_the_next(subject, STEP, more=3)

        async def broken(since: datetime, until: datetime) -> list[Observed]:
            raise Unavailable("away")

        with monkeypatch.context() as patch:
            patch.setattr(engine, "observe", broken)
            with pytest.raises(Unavailable):
                await historian.run_once()
        await historian.run_once()
        (sample,) = await kept(engine)
        assert sample.enqueued == 3


# ── Tenants that are quiet, stuck or too many ──


async def test_a_stuck_tenant_stays_in_its_chart(harness: Harness) -> None:
    async with harness.subject() as subject:
        engine = subject.engine
        historian = Historian(engine)
        await to_the_next(subject, STEP, more=3)
        await enqueue_many(engine, 2, queue="a", tenant=OTHER_TENANT)
        await live_through(subject, historian, 5 * STEP)
        assert [(one.enqueued, one.waiting) for one in await totals(engine)] == [(2, 2), *[(0, 2)] * 4]


async def test_what_becomes_due_in_a_quiet_tenant_is_seen(harness: Harness) -> None:
    async with harness.subject() as subject:
        engine = subject.engine
        historian = Historian(engine)
        await to_the_next(subject, STEP, more=3)
        await enqueue_many(engine, 1, queue="a", tenant=OTHER_TENANT, delay=3 * STEP)
        await live_through(subject, historian, 5 * STEP)
        assert [one.waiting for one in await totals(engine)] == [0, 0, 1, 1, 1]


async def test_a_tenant_that_is_gone_is_asked_for_an_hour(harness: Harness) -> None:
    async with harness.subject() as subject:
        engine = subject.engine
        historian = Historian(engine)
        await to_the_next(subject, STEP, more=3)
        (job,) = await enqueue_many(engine, 1, queue="a", tenant=OTHER_TENANT)
        await engine.cancel([job], tenant=OTHER_TENANT)
        await live_through(subject, historian, 2 * STEP)
        await subject.advance(3_600 - STEP)
        await historian.run_once()
        assert len(await totals(engine)) == 3
        await live_through(subject, historian, 2 * STEP)
        assert len(await totals(engine)) == 3


async def test_a_tenant_that_is_not_counted_has_what_happened(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with harness.subject() as subject:
        engine = subject.engine
        historian = Historian(engine)
        await to_the_next(subject, STEP, more=3)
        await enqueue_many(engine, 3, queue="a", tenant=OTHER_TENANT)
        await live_through(subject, historian, STEP)
        monkeypatch.setattr(historian_module, "MOST_TENANTS", 0)
        await enqueue_many(engine, 1, queue="b", tenant=OTHER_TENANT)
        await live_through(subject, historian, STEP)
        assert [(one.enqueued, one.waiting) for one in await totals(engine)] == [(3, 3), (1, 4)]


# ── What is counted ──


async def test_a_line_that_is_not_counted_to_its_end_is_reckoned(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(historian_module, "MOST_COUNTED", 5)
    async with harness.subject() as subject:
        engine = subject.engine
        historian = Historian(engine)
        await to_the_next(subject, STEP, more=3)
        await enqueue_many(engine, 4, queue="a")
        await live_through(subject, historian, STEP)
        jobs = await enqueue_many(engine, 16, queue="a")
        await live_through(subject, historian, 2 * STEP)
        await engine.cancel(jobs[:8])
        await live_through(subject, historian, STEP)
        await engine.cancel(jobs[8:])
        await live_through(subject, historian, STEP)
        assert [one.waiting for one in await kept(engine)] == [4, 20, 20, 12, 4]
        assert [one.waiting for one in await totals(engine, tenant=DEFAULT_TENANT)] == [4, 20, 20, 12, 4]


async def test_only_what_is_kept_is_counted(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics of a queue count what has ended as well, and rates: the historian has no use for either."""
    async with harness.subject() as subject:
        engine = subject.engine

        async def too_much(**_: Any) -> list[Any]:
            raise AssertionError("far more than it uses")

        monkeypatch.setattr(engine, "queue_stats", too_much)
        await enqueue_many(engine, 2, queue="a")
        await to_the_next(subject, STEP, more=3)
        await Historian(engine).run_once()
        (sample,) = await kept(engine)
        assert sample.waiting == 2


async def test_a_loud_tenant_leaves_room_for_the_times_of_others(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (of_postgres, of_sqlite):
        monkeypatch.setattr(module, "FEW", 4)

    async def work(engine: Engine, number: int, tenant: str) -> None:
        await enqueue_many(engine, number, queue="a", tenant=tenant)
        for leased in await lease_some(engine, number, "a", tenant=tenant):
            await engine.settle([Settlement(leased.lease, Done())], tenant=tenant)

    async with harness.subject() as subject:
        engine = subject.engine
        since = await engine.now()
        await work(engine, 6, DEFAULT_TENANT)
        await work(engine, 1, OTHER_TENANT)
        await work(engine, 6, DEFAULT_TENANT)
        seen = await engine.observe(since, since + timedelta(seconds=STEP))
        times = {one.tenant: len(one.waits) for one in seen}
        assert times[OTHER_TENANT] == 1
        assert times[DEFAULT_TENANT] in (3, 12), "the rest of those few, or all where they are at hand"
