"""Retention: what goes, what stays, by whole UTC days; and jobs that were not started in time."""

from __future__ import annotations

import json
import logging
from datetime import timedelta

import msgspec
import pytest

from ropeway.core.query import JobFilter
from ropeway.core.states import CancelReason, EventName, State
from ropeway.engines.protocol import EngineRules, Enqueued
from ropeway.testing.conformance.kit import (
    BOOM,
    DAY,
    HOUR,
    OTHER_TENANT,
    REACHABLE,
    ack,
    advance_to,
    check_log,
    drive_to,
    enqueue_many,
    enqueue_one,
    job_of,
    last_event,
    lease_one,
    leased_ids,
    midnight,
    nack,
    new_job,
    nothing_changes,
    release,
    state_of,
    states_of,
)
from ropeway.testing.conformance.subject import TEST_RULES, Harness


def keeping(**rules: float) -> EngineRules:
    return msgspec.structs.replace(TEST_RULES, **rules)


class TestPrune:
    async def test_each_outcome_has_its_own_time(self, harness: Harness) -> None:
        rules = keeping(keep_succeeded=1 * DAY, keep_cancelled=2 * DAY, keep_dead=3 * DAY)
        async with harness.subject(rules) as subject:
            engine = subject.engine
            ended = [
                (await drive_to(subject, state)).id for state in (State.SUCCEEDED, State.CANCELLED, State.DEAD)
            ]
            today = await midnight(engine, 0)
            for days, left in ((2, 3), (3, 2), (4, 1), (5, 0)):
                # A job is kept for the whole of its last day, and gone with the first sweep of the next one.
                await advance_to(subject, today + timedelta(days=days) - timedelta(seconds=1))
                await engine.prune()
                assert (await engine.count()).number == left, f"one second before day {days}"
                await subject.advance(1)
                pruned = await engine.prune()
                assert pruned.jobs == (1 if left else 0)
            assert await states_of(engine, ended) == [None, None, None]
            assert (await engine.prune()).jobs == 0

    async def test_live_jobs_stay_however_old(self, harness: Harness) -> None:
        async with harness.subject(keeping(keep_succeeded=0, keep_cancelled=0, keep_dead=0)) as subject:
            engine = subject.engine
            live = [state for state in REACHABLE if state not in (State.SUCCEEDED, State.CANCELLED, State.DEAD)]
            wanted = [(await drive_to(subject, state, queue=state.value)).id for state in live]
            await subject.advance(100 * DAY)
            before = await engine.get(wanted)
            assert (await engine.prune()).jobs == 0
            assert await engine.get(wanted) == before

    async def test_a_redriven_job_is_live_again(self, harness: Harness) -> None:
        async with harness.subject(keeping(keep_dead=DAY)) as subject:
            engine = subject.engine
            id = (await drive_to(subject, State.DEAD)).id
            await subject.advance(10 * DAY)
            await engine.redrive([id])
            assert (await engine.prune()).jobs == 0
            leased = await lease_one(engine)
            assert (leased.job.id, leased.job.payload) == (id, b"{}")
            await nack(engine, leased, retry=False)
            assert (await engine.prune()).jobs == 0, "its time begins anew with its new end"
            await subject.advance(3 * DAY)
            assert (await engine.prune()).jobs == 1

    async def test_it_works_for_all_tenants(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            for tenant in ("default", OTHER_TENANT):
                await enqueue_one(engine, tenant=tenant)
                leased = await lease_one(engine, tenant=tenant)
                await engine.cancel([leased.job.id], tenant=tenant)
            await subject.advance(30 * DAY)
            assert (await engine.prune()).jobs == 2

    async def test_each_dead_job_has_a_last_word_in_the_log(
        self, harness: Harness, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine, payload=b'{"n": 9007199254740993}', queue="mail", type="send")
            await nack(engine, await lease_one(engine, "mail"), retry=False)
            await drive_to(subject, State.SUCCEEDED, payload=b'"secret"')
            await drive_to(subject, State.CANCELLED, payload=b'"secret"')
            died = (await job_of(engine, id)).dead_at
            await subject.advance(30 * DAY)
            with caplog.at_level(logging.INFO, logger="ropeway.purged"):
                assert (await engine.prune()).jobs == 3
            lines = [record.getMessage() for record in caplog.records if record.name == "ropeway.purged"]
            (line,) = [json.loads(line) for line in lines]
            assert died is not None
            assert line == {
                "event": "job_purged",
                "id": str(id),
                "tenant": "default",
                "type": "send",
                "queue": "mail",
                "reason": "rejected",
                "error": BOOM.message,
                "attempts": 1,
                "dead_at": died.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                "payload": {"n": 9007199254740993},
            }
            assert "secret" not in caplog.text


class TestPrunedKeys:
    async def test_a_key_goes_when_its_window_and_its_job_have_ended(self, harness: Harness) -> None:
        async with harness.subject(keeping(keep_succeeded=5 * DAY)) as subject:
            engine = subject.engine
            await enqueue_one(engine, idempotency_key="ended", key_window=DAY)
            await ack(engine, await lease_one(engine))
            live = await enqueue_one(engine, idempotency_key="live", key_window=DAY, delay=10 * DAY)
            ever = await enqueue_one(engine, idempotency_key="ever", key_window=0)
            await ack(engine, await lease_one(engine))
            await subject.advance(DAY - 1)
            assert (await engine.prune()).keys == 0
            await subject.advance(1)
            assert (await engine.prune()).keys == 1
            again = [
                new_job(idempotency_key="ended"),
                new_job(idempotency_key="live", key_window=DAY, delay=10 * DAY),
                new_job(idempotency_key="ever", key_window=0),
            ]
            answers = await engine.enqueue(again)
            assert not answers[0].deduplicated
            assert answers[1] == Enqueued(live, State.SCHEDULED, deduplicated=True)
            assert answers[2] == Enqueued(ever, State.SUCCEEDED, deduplicated=True)

    async def test_a_key_outlives_its_pruned_job_for_the_rest_of_its_window(self, harness: Harness) -> None:
        async with harness.subject(keeping(keep_succeeded=0)) as subject:
            engine = subject.engine
            job = new_job(idempotency_key="k", key_window=5 * DAY)
            (first,) = await engine.enqueue([job])
            await ack(engine, await lease_one(engine))
            await subject.advance(2 * DAY)
            assert (await engine.prune()).jobs == 1
            assert (await engine.enqueue([job]))[0] == Enqueued(first.id, None, deduplicated=True)
            await subject.advance(4 * DAY)
            assert (await engine.prune()).keys == 1
            assert not (await engine.enqueue([job]))[0].deduplicated


class TestPrunedEvents:
    async def test_events_stay_as_long_as_the_job_they_tell_of(self, harness: Harness) -> None:
        rules = keeping(keep_succeeded=0, keep_cancelled=0, keep_dead=3 * DAY, keep_events=0)
        async with harness.subject(rules) as subject:
            engine = subject.engine
            id = (await drive_to(subject, State.DEAD)).id
            today = await midnight(engine, 0)
            for days in range(1, 5):
                await advance_to(subject, today + timedelta(days=days) - timedelta(seconds=1))
                await engine.prune()
                assert await state_of(engine, id) is State.DEAD
                assert len(await check_log(engine, id)) == 3, f"the job is there, its log is not, day {days}"
            await subject.advance(DAY)
            pruned = await engine.prune()
            assert (pruned.jobs, pruned.events) == (1, 3)
            assert await engine.events_of(id) == []

    async def test_events_may_outlive_their_jobs(self, harness: Harness) -> None:
        async with harness.subject(keeping(keep_succeeded=0, keep_events=10 * DAY)) as subject:
            engine = subject.engine
            id = (await drive_to(subject, State.SUCCEEDED)).id
            await subject.advance(2 * DAY)
            assert (await engine.prune()).jobs == 1
            assert len(await check_log(engine, id)) == 3

    async def test_seq_goes_on_when_old_events_are_gone(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine, delay=60 * DAY)
            await subject.advance(60 * DAY)
            assert (await engine.prune()).events == 1
            assert await engine.events_of(id) == []
            await lease_one(engine)
            assert (await last_event(engine, id)).seq == 2


class TestExpire:
    async def test_a_job_not_started_in_time_is_cancelled(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            due = await enqueue_one(engine, expires_in=60)
            later = await enqueue_one(engine, expires_in=60, delay=HOUR)
            never = await enqueue_one(engine)
            theirs = await enqueue_one(engine, expires_in=60, tenant=OTHER_TENANT)
            await subject.advance(59)
            assert await engine.expire() == []
            await subject.advance(1)
            assert set(await engine.expire()) == {due, later, theirs}
            job = await job_of(engine, due)
            assert (job.state, job.cancel_reason) == (State.CANCELLED, CancelReason.EXPIRED)
            assert job.finished_at == await engine.now()
            event = await last_event(engine, due)
            assert (event.event, event.data) == (EventName.CANCELLED, {"reason": "expired"})
            assert await leased_ids(engine) == [never]
            assert await engine.expire() == []

    async def test_a_job_that_has_started_does_not_expire(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            wanted = await enqueue_many(engine, 2, expires_in=60)
            leased = await lease_one(engine)
            await subject.advance(100)
            async with nothing_changes(engine, wanted[0]):
                assert await engine.expire() == [wanted[1]]
            await ack(engine, leased)

    async def test_a_job_that_was_given_back_has_not_started(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine, expires_in=60)
            await release(engine, await lease_one(engine))
            await subject.advance(60)
            assert await leased_ids(engine) == []
            assert await engine.expire() == [id]

    async def test_a_limit_leaves_the_rest_for_the_next_call(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            wanted = await enqueue_many(engine, 5, expires_in=60)
            await subject.advance(60)
            expired = []
            for size in (2, 2, 1, 0):
                answer = await engine.expire(limit=2)
                assert len(answer) == size
                expired += answer
            assert sorted(expired) == sorted(wanted)
            assert (await engine.count(JobFilter(states=frozenset({State.CANCELLED})))).number == 5
