"""Leasing: who gets what and when, and what each lease costs."""

from __future__ import annotations

from datetime import timedelta
from math import inf, nan

import msgspec
import pytest

from ropeway.core.decide import Rules
from ropeway.core.errors import FieldError, LeaseLost
from ropeway.core.outcome import Done, Failed, Lost, Released, Snoozed
from ropeway.core.states import DeadReason, EventName, State
from ropeway.engines.protocol import Weighted, WorkerRef
from ropeway.runtime import ids
from ropeway.testing.conformance.kit import (
    BOOM,
    OTHER_TENANT,
    QUEUE,
    ack,
    answer_to,
    check_log,
    enqueue_many,
    enqueue_one,
    event_names,
    job_of,
    last_event,
    lease_one,
    leased_ids,
    lose,
    nack,
    nothing_changes,
    refused,
    release,
    snooze,
    state_of,
    worker,
)
from ropeway.testing.conformance.subject import TEST_RULES, Harness


class TestLeaseCalls:
    async def test_at_most_count_jobs_come(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            wanted = await enqueue_many(subject.engine, 5)
            assert await leased_ids(subject.engine, 2) == wanted[:2]
            assert await leased_ids(subject.engine, 2) == wanted[2:4]
            assert await leased_ids(subject.engine, 2) == wanted[4:]
            assert await leased_ids(subject.engine, 2) == []

    @pytest.mark.parametrize("count", [0, -1, 1_001, True, 1.5, "1"])
    async def test_count_is_1_to_1000(self, harness: Harness, count: int) -> None:
        async with harness.subject() as subject:
            id = await enqueue_one(subject.engine)
            async with nothing_changes(subject.engine, id):
                with pytest.raises(FieldError):
                    await subject.engine.lease([QUEUE], count, worker())

    async def test_lease_seconds_are_1_to_12_hours(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            id = await enqueue_one(subject.engine)
            async with nothing_changes(subject.engine, id):
                for seconds in (0, 0.5, -1, 43_201, nan, inf):
                    with pytest.raises(FieldError):
                        await subject.engine.lease([QUEUE], 1, worker(), lease_seconds=seconds)

    async def test_a_worker_has_a_readable_name(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            id = await enqueue_one(subject.engine)
            async with nothing_changes(subject.engine, id):
                for name in ("", "w" * 129, "a\0b", "a\nb", "\ud800"):
                    with pytest.raises(FieldError):
                        await subject.engine.lease([QUEUE], 1, WorkerRef(name, ids.token()))
            await lease_one(subject.engine, by=worker("é" * 128))

    async def test_queues_are_named_once_and_well(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            bad: list[list[str | Weighted]] = [
                [],
                ["a", "a"],
                ["a b"],
                [""],
                ["q" * 129],
                [Weighted("a", 0)],
                ["a", Weighted("a", 1)],
            ]
            for queues in bad:
                with pytest.raises(FieldError):
                    await subject.engine.lease(queues, 1, worker())

    async def test_a_lease_carries_the_job_and_its_ticket(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            now = await engine.now()
            wanted = await enqueue_many(engine, 2, payload=b"[1]")
            by = worker("worker-7")
            batch = await engine.lease([QUEUE], 10, by, lease_seconds=45)
            assert batch.lease_seconds == 45
            for id, leased in zip(wanted, batch.leases, strict=True):
                job, lease = leased.job, leased.lease
                assert (job.id, job.state, job.payload) == (id, State.RUNNING, b"[1]")
                assert (job.attempt, job.attempts) == (1, 1)
                assert (job.started_at, job.updated_at) == (now, now)
                assert (job.locked_by, job.locked_until) == ("worker-7", now + timedelta(seconds=45))
                assert (lease.job_id, lease.attempt) == (id, 1)
                assert job == await job_of(engine, id), "the lease shows another job than a look at it does"

    async def test_every_lease_call_has_a_token_of_its_own(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            by = worker()
            await enqueue_many(subject.engine, 3)
            tokens = {(await lease_one(subject.engine, by=by)).lease.token for _ in range(3)}
            assert len(tokens) == 3
            assert by.owner not in tokens

    async def test_a_short_answer_tells_when_the_next_job_is_due(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            assert (await engine.lease(["a", "b"], 1, worker())).next_due_in is None, "nothing is known"
            await enqueue_one(engine, queue="a", delay=90)
            await enqueue_one(engine, queue="b", delay=60, priority=9)
            await enqueue_one(engine, queue="c", delay=10)
            await enqueue_one(engine, queue="a", delay=5, tenant=OTHER_TENANT)
            empty = await engine.lease(["a", "b"], 1, worker())
            assert empty.leases == []
            assert empty.next_due_in == pytest.approx(60)
            await enqueue_one(engine, queue="a")
            short = await engine.lease(["a", "b"], 2, worker())
            assert len(short.leases) == 1
            assert short.next_due_in == pytest.approx(60)
            await engine.pause("b")
            assert (await engine.lease(["a", "b"], 1, worker())).next_due_in == pytest.approx(90)

    async def test_tenants_never_see_each_other(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            mine = await enqueue_one(engine)
            theirs = await enqueue_one(engine, tenant=OTHER_TENANT)
            assert await leased_ids(engine, tenant="third") == []
            leased = await lease_one(engine, tenant=OTHER_TENANT)
            assert (leased.job.id, leased.job.tenant) == (theirs, OTHER_TENANT)
            async with nothing_changes(engine, theirs, tenant=OTHER_TENANT):
                for outcome in (Done(), Failed(BOOM), Released(), Snoozed(delay=1.0), Lost()):
                    refused(await answer_to(engine, leased, outcome), LeaseLost)
                refused((await engine.heartbeat([leased.lease]))[0], LeaseLost)
            assert await leased_ids(engine) == [mine]
            assert await engine.events_of(theirs) == []


class TestDueTimes:
    async def test_a_delayed_job_never_starts_before_its_time(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine, delay=60, priority=1)
            await subject.advance(59.999)
            assert await leased_ids(engine) == []
            assert await state_of(engine, id) is State.SCHEDULED
            await subject.advance(0.001)
            assert await state_of(engine, id) is State.QUEUED
            assert await event_names(engine, id) == [EventName.ENQUEUED], "becoming due is no transition"
            assert await leased_ids(engine) == [id]

    async def test_a_retry_and_a_snooze_never_start_before_their_time(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            await nack(engine, await lease_one(engine), retry_after=10.0)
            await subject.advance(9.999)
            assert await leased_ids(engine) == []
            await subject.advance(0.001)
            await snooze(engine, await lease_one(engine), 30.0)
            await subject.advance(29.999)
            assert await leased_ids(engine) == []
            await subject.advance(0.001)
            assert await leased_ids(engine) == [id]

    async def test_a_job_past_its_expiry_is_not_started(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            late = await enqueue_one(engine, expires_in=60)
            good = await enqueue_one(engine)
            await subject.advance(60)
            assert await leased_ids(engine) == [good]
            assert await leased_ids(engine) == []
            assert await engine.expire() == [late]

    async def test_expiry_is_about_the_first_start_only(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine, expires_in=60)
            await nack(engine, await lease_one(engine), retry_after=120.0)
            await subject.advance(120)
            assert await engine.expire() == []
            assert await leased_ids(engine) == [id]

    async def test_a_paused_queue_gives_nothing(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            paused = await enqueue_one(engine, queue="a")
            other = await enqueue_one(engine, queue="b")
            theirs = await enqueue_one(engine, queue="a", tenant=OTHER_TENANT)
            await engine.pause("a")
            assert await leased_ids(engine, 10, "a", "b") == [other]
            assert await leased_ids(engine, 10, "a", tenant=OTHER_TENANT) == [theirs]
            await enqueue_one(engine, queue="a")
            assert await leased_ids(engine, 10, "a") == []
            await engine.resume("a")
            assert (await lease_one(engine, "a")).job.id == paused

    async def test_a_running_job_can_finish_in_a_paused_queue(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_one(engine)
            leased = await lease_one(engine)
            await engine.pause(QUEUE)
            assert (await ack(engine, leased)).state is State.SUCCEEDED


class TestCounters:
    async def test_attempt_never_falls_and_attempts_is_the_budget(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine, max_attempts=2)

            async def counters() -> tuple[int, int]:
                job = await job_of(engine, id)
                return job.attempt, job.attempts

            assert await counters() == (0, 0)
            await release(engine, await lease_one(engine))
            assert await counters() == (1, 0), "a release gives the attempt back"
            await snooze(engine, await lease_one(engine), 0.0)
            assert await counters() == (2, 0), "so does a snooze"
            await nack(engine, await lease_one(engine), retry_after=0.0)
            assert await counters() == (3, 1)
            leased = await lease_one(engine)
            assert (leased.job.attempt, leased.lease.attempt, leased.job.attempts) == (4, 4, 2)
            answer = await nack(engine, leased)
            assert (answer.state, answer.attempts) == (State.DEAD, 2)
            await engine.redrive([id])
            assert await counters() == (4, 0), "a redrive gives a fresh budget, never an old attempt"
            assert (await lease_one(engine)).lease.attempt == 5
            assert await counters() == (5, 1)

    async def test_a_lost_lease_uses_an_attempt(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine, max_attempts=2)
            answer = await lose(engine, await lease_one(engine))
            assert (answer.state, answer.attempts) == (State.QUEUED, 1)
            assert (await job_of(engine, id)).lease_lost_count == 1
            await nack(engine, await lease_one(engine))
            job = await job_of(engine, id)
            assert (job.state, job.dead_reason) == (State.DEAD, DeadReason.MAX_ATTEMPTS)

    async def test_a_job_that_loses_its_last_attempt_is_dead(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine, max_attempts=1)
            assert (await lose(engine, await lease_one(engine))).state is State.DEAD
            assert (await job_of(engine, id)).dead_reason is DeadReason.MAX_ATTEMPTS

    async def test_three_losses_are_the_limit_whatever_the_budget(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine, max_attempts=25)
            for number in (1, 2):
                assert (await lose(engine, await lease_one(engine))).state is State.QUEUED
                assert (await job_of(engine, id)).lease_lost_count == number
                await nack(engine, await lease_one(engine), retry_after=0.0)  # a failure resets nothing
            assert (await lose(engine, await lease_one(engine))).state is State.DEAD
            job = await job_of(engine, id)
            assert (job.dead_reason, job.lease_lost_count) == (DeadReason.CRASH_LIMIT, 3)
            assert (await last_event(engine, id)).event is EventName.DLQ
            await check_log(engine, id)

    async def test_expiries_count_towards_the_crash_limit_too(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine, max_attempts=25)
            for state in (State.QUEUED, State.QUEUED, State.DEAD):
                await lease_one(engine, lease_seconds=30)
                await subject.advance(31)
                (rescued,) = await engine.rescue()
                assert (rescued.id, rescued.state) == (id, state)
            assert (await job_of(engine, id)).dead_reason is DeadReason.CRASH_LIMIT

    async def test_the_crash_limit_is_a_setting(self, harness: Harness) -> None:
        rules = msgspec.structs.replace(TEST_RULES, decisions=Rules(crash_limit=1))
        async with harness.subject(rules) as subject:
            await enqueue_one(subject.engine)
            assert (await lose(subject.engine, await lease_one(subject.engine))).state is State.DEAD

    async def test_a_redrive_forgets_old_losses_and_failures(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine, max_attempts=25)
            for _ in range(3):
                await lose(engine, await lease_one(engine))
            await engine.redrive([id])
            job = await job_of(engine, id)
            assert (job.lease_lost_count, job.failures, job.attempts) == (0, 0, 0)
            assert (await lose(engine, await lease_one(engine))).state is State.QUEUED
