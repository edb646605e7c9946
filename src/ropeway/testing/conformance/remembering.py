"""Remembering: what is observed of a step, what is kept of it, and for how long."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from ropeway.core.history import (
    ALL_QUEUES,
    EMPTY,
    KEEP_LONG_STEPS,
    KEEP_STEPS,
    LONG_STEP,
    STEP,
    Depth,
    Observed,
    Sample,
    histogram,
)
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.outcome import Failed
from ropeway.core.payload import JobError
from ropeway.core.states import EventName
from ropeway.engines.capabilities import Capability
from ropeway.engines.protocol import Engine, Settlement
from ropeway.testing.conformance.kit import OTHER_TENANT, ack, enqueue_many, lease_some, new_job
from ropeway.testing.conformance.subject import Harness, Subject


def need_upkeep(subject: Subject) -> None:
    if Capability.UPKEEP not in subject.engine.capabilities:
        pytest.skip("a server remembers for its remote engines")


async def seen_of(engine: Engine, queue: str, since: datetime, *, tenant: str = DEFAULT_TENANT) -> Observed | None:
    until = await engine.now() + timedelta(seconds=1)
    found = [one for one in await engine.observe(since, until) if (one.tenant, one.queue) == (tenant, queue)]
    assert len(found) <= 1
    return found[0] if found else None


def sample(at: datetime, queue: str = "a", *, step: int = STEP, tenant: str = DEFAULT_TENANT) -> Sample:
    return Sample(
        tenant,
        queue,
        at,
        step,
        enqueued=1.5,
        succeeded=2.0,
        failed=3.0,
        dead=4.0,
        cancelled=5.0,
        waiting=6,
        running=7,
        oldest=8.25,
        waits=histogram([0.001, 0.2, 90_000.0]),
        runs=histogram([0.02]),
    )


class TestObserving:
    async def test_events_are_counted_by_tenant_and_queue(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            need_upkeep(subject)
            engine = subject.engine
            since = await engine.now()
            await enqueue_many(engine, 3, queue="a")
            await enqueue_many(engine, 1, queue="b")
            await engine.enqueue([new_job(queue="a")], tenant=OTHER_TENANT)
            leases = await lease_some(engine, 2, "a")
            await ack(engine, leases[0])
            await engine.settle([Settlement(leases[1].lease, Failed(JobError("E", "no"), retry=False))])
            a = await seen_of(engine, "a", since)
            assert a is not None
            assert a.events == {
                EventName.ENQUEUED: 3,
                EventName.STARTED: 2,
                EventName.COMPLETED: 1,
                EventName.DLQ: 1,
            }
            assert a.share == 1.0
            b = await seen_of(engine, "b", since)
            assert b is not None
            assert b.events == {EventName.ENQUEUED: 1}
            assert list(b.waits) == []
            other = await seen_of(engine, "a", since, tenant=OTHER_TENANT)
            assert other is not None
            assert other.events == {EventName.ENQUEUED: 1}

    async def test_how_long_jobs_waited_and_ran(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            need_upkeep(subject)
            engine = subject.engine
            since = await engine.now()
            await enqueue_many(engine, 1, queue="a")
            await subject.advance(2)
            (leased,) = await lease_some(engine, 1, "a")
            await subject.advance(5)
            await ack(engine, leased)
            seen = await seen_of(engine, "a", since)
            assert seen is not None
            assert list(seen.waits) == [pytest.approx(2, abs=0.5)]
            assert list(seen.runs) == [pytest.approx(5, abs=0.5)]

    async def test_only_the_time_that_was_asked_for(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            need_upkeep(subject)
            engine = subject.engine
            await enqueue_many(engine, 2, queue="a")
            await subject.advance(10)
            since = await engine.now()
            await enqueue_many(engine, 1, queue="a")
            await subject.advance(10)
            until = await engine.now()
            await enqueue_many(engine, 4, queue="a")
            (seen,) = await engine.observe(since, until)
            assert seen.events == {EventName.ENQUEUED: 1}
            assert await engine.observe(since - timedelta(days=1), since - timedelta(hours=1)) == []

    async def test_a_step_that_is_out_of_reach_is_told_by_what_is_not(self, harness: Harness) -> None:
        """So much was written since that a look does not reach back: it must not seem as if nothing happened."""
        async with harness.subject() as subject:
            need_upkeep(subject)
            engine = subject.engine
            since = await engine.now()
            await enqueue_many(engine, 10, queue="a")
            await subject.advance(STEP)
            until = await engine.now()
            await subject.advance(2)
            await enqueue_many(engine, 1_000, queue="a")
            (seen,) = await engine.observe(since, until, most=100)
            if seen.share == 1.0:
                assert seen.events == {EventName.ENQUEUED: 10}, "a look that reaches everything counts the step"
            else:
                assert 0 < seen.events[EventName.ENQUEUED] <= 1_000


class TestRemembering:
    async def test_a_sample_is_kept_as_it_is(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            need_upkeep(subject)
            engine = subject.engine
            at = (await engine.now()).replace(microsecond=0)
            kept = [sample(at), sample(at, "b"), Sample(DEFAULT_TENANT, "c", at, STEP)]
            await engine.remember(kept)
            await engine.remember([])
            assert await engine.history(step=STEP, since=at) == kept
            assert kept[2].waits == EMPTY

    async def test_the_first_one_stays(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            need_upkeep(subject)
            engine = subject.engine
            at = (await engine.now()).replace(microsecond=0)
            await engine.remember([sample(at)])
            await engine.remember([Sample(DEFAULT_TENANT, "a", at, STEP), sample(at, "b")])
            assert await engine.history(step=STEP, since=at) == [sample(at), sample(at, "b")]

    async def test_they_are_found_by_time_step_queue_and_tenant(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            need_upkeep(subject)
            engine = subject.engine
            at = (await engine.now()).replace(microsecond=0)
            later = at + timedelta(seconds=STEP)
            mine = [sample(at), sample(at, "b"), sample(later)]
            await engine.remember([mine[2], mine[1], mine[0]])
            await engine.remember([sample(at, step=LONG_STEP), sample(at, tenant=OTHER_TENANT)])
            assert await engine.history(step=STEP, since=at) == mine
            assert await engine.history(step=STEP, since=later) == mine[2:]
            assert await engine.history(step=STEP, since=at, until=later) == mine[:2]
            assert await engine.history(step=STEP, since=at, queue="b") == [mine[1]]
            assert await engine.history(step=LONG_STEP, since=at) == [sample(at, step=LONG_STEP)]
            assert await engine.history(step=STEP, since=at, tenant=OTHER_TENANT) == [
                sample(at, tenant=OTHER_TENANT)
            ]

    async def test_each_step_has_its_time(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            need_upkeep(subject)
            engine = subject.engine
            now = (await engine.now()).replace(microsecond=0)
            ages = {STEP: KEEP_STEPS, LONG_STEP: KEEP_LONG_STEPS}
            for step, kept in ages.items():
                old, young = now - timedelta(seconds=kept + 60), now - timedelta(seconds=kept - 600)
                await engine.remember([sample(old, step=step), sample(young, step=step)])
                await engine.remember([sample(old, step=step, tenant=OTHER_TENANT)])
            await engine.prune()
            for step, kept in ages.items():
                since = now - timedelta(seconds=kept + 600)
                found = await engine.history(step=step, since=since)
                assert [one.at for one in found] == [now - timedelta(seconds=kept - 600)]
                assert await engine.history(step=step, since=since, tenant=OTHER_TENANT) == []

    async def test_the_newest_of_each_tenant(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            need_upkeep(subject)
            engine = subject.engine
            at = (await engine.now()).replace(microsecond=0)
            later, end = at + timedelta(seconds=STEP), at + timedelta(seconds=2 * STEP)
            mine, other = sample(at, ALL_QUEUES), sample(at, ALL_QUEUES, tenant=OTHER_TENANT)
            idle = Sample(DEFAULT_TENANT, ALL_QUEUES, later, STEP)
            await engine.remember([mine, idle, other, sample(later, "b"), sample(later, "b", tenant="third")])
            await engine.remember([sample(later, ALL_QUEUES, step=LONG_STEP)])
            assert await engine.latest(step=STEP, since=at, until=end) == [idle, other]
            assert await engine.latest(step=STEP, since=at, until=end, busy=True) == [mine, other]
            assert await engine.latest(step=STEP, since=at, until=later) == [mine, other]
            assert await engine.latest(step=STEP, since=later, until=end) == [idle]
            assert await engine.latest(step=STEP, since=later, until=end, busy=True) == []
            assert await engine.latest(step=STEP, since=end, until=end + timedelta(days=1)) == []

    @pytest.mark.parametrize(
        "told", ["enqueued", "succeeded", "failed", "dead", "cancelled", "waiting", "running"]
    )
    async def test_busy_is_whatever_there_is_to_tell_of(self, harness: Harness, told: str) -> None:
        async with harness.subject() as subject:
            need_upkeep(subject)
            engine = subject.engine
            at = (await engine.now()).replace(microsecond=0)
            one = Sample(DEFAULT_TENANT, ALL_QUEUES, at, STEP, **{told: 1})  # type: ignore[arg-type]
            await engine.remember([one])
            assert await engine.latest(step=STEP, since=at, until=at + timedelta(seconds=STEP), busy=True) == [one]


class TestDepths:
    async def test_what_waits_and_runs_and_nothing_else(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            need_upkeep(subject)
            engine = subject.engine
            assert await engine.depths() == []
            await enqueue_many(engine, 4, queue="b")
            await subject.advance(10)
            await enqueue_many(engine, 1, queue="b", priority=1)
            await enqueue_many(engine, 1, queue="a")
            await enqueue_many(engine, 3, queue="a", delay=600)
            await enqueue_many(engine, 2, queue="ahead", delay=600)
            await enqueue_many(engine, 2, queue="b", tenant=OTHER_TENANT)
            await lease_some(engine, 1, "a", lease_seconds=600)
            _, done = await lease_some(engine, 2, "b", lease_seconds=600)
            await ack(engine, done)
            a, b = await engine.depths()
            assert a == Depth("a", 0, 1)
            assert (b.queue, b.waiting, b.running, b.capped) == ("b", 3, 1, False)
            assert b.oldest == pytest.approx(10, abs=1)
            (other,) = await engine.depths(tenant=OTHER_TENANT)
            assert (other.queue, other.waiting, other.running) == ("b", 2, 0)
            await subject.advance(700)
            later = await engine.depths()
            assert [(one.queue, one.waiting) for one in later] == [("a", 3), ("ahead", 2), ("b", 3)]
            assert later[1].oldest == pytest.approx(100, abs=1), "since it was due"

    async def test_a_long_line_is_not_counted_to_its_end(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            need_upkeep(subject)
            engine = subject.engine
            await enqueue_many(engine, 4, queue="a")
            (depth,) = await engine.depths(cap=4)
            assert (depth.waiting, depth.capped) == (4, False)
            await enqueue_many(engine, 1, queue="a", priority=9)
            (depth,) = await engine.depths(cap=4)
            assert (depth.waiting, depth.capped) == (4, True)
