"""Operating: cancel, redrive, reschedule, delete, pause: what people do to jobs and queues."""

from __future__ import annotations

from datetime import timedelta
from math import nan
from typing import Any

import pytest

from ropeway.core.errors import FieldError, InvalidState, JobEnded, NotFound, RopewayError
from ropeway.core.query import JobFilter, RedriveReport
from ropeway.core.states import CancelReason, DeadReason, EventName, State
from ropeway.engines.protocol import Changed, Enqueued
from ropeway.runtime import ids
from ropeway.testing.conformance.kit import (
    FAR,
    HOUR,
    OTHER_TENANT,
    QUEUE,
    REACHABLE,
    ack,
    changed,
    check_log,
    drive_to,
    enqueue_many,
    enqueue_one,
    event_names,
    job_of,
    last_event,
    lease_one,
    lease_some,
    leased_ids,
    nack,
    new_job,
    nothing_changes,
    refused,
    state_of,
    states_of,
)
from ropeway.testing.conformance.subject import Harness


class TestCancel:
    async def test_a_job_that_waits_never_runs(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            queued, scheduled = await enqueue_one(engine), await enqueue_one(engine, delay=1)
            await subject.advance(0.5)
            answers = await engine.cancel([queued, scheduled])
            assert answers == [
                Changed(queued, State.QUEUED, State.CANCELLED),
                Changed(scheduled, State.SCHEDULED, State.CANCELLED),
            ]
            await subject.advance(HOUR)
            assert await leased_ids(engine) == []
            job = await job_of(engine, queued)
            assert (job.state, job.cancel_reason) == (State.CANCELLED, CancelReason.REQUESTED)
            assert job.finished_at is not None
            assert (await last_event(engine, queued)).data == {"reason": "requested"}

    async def test_a_running_job_ends_at_once(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            driven = await drive_to(subject, State.RUNNING)
            assert await engine.cancel([driven.id]) == [Changed(driven.id, State.RUNNING, State.CANCELLED)]
            job = await job_of(engine, driven.id)
            assert (job.state, job.locked_by, job.locked_until) == (State.CANCELLED, None, None)
            assert await leased_ids(engine) == []

    async def test_each_of_a_batch_has_its_own_answer(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            done = (await drive_to(subject, State.SUCCEEDED)).id
            live = await enqueue_one(engine)
            answers = await engine.cancel([live, done, ids.uuid7(), live])
            assert changed(answers[0]).state is State.CANCELLED
            assert refused(answers[1], JobEnded).status == "succeeded"
            refused(answers[2], NotFound)
            assert refused(answers[3], JobEnded).status == "cancelled"
            assert len(await check_log(engine, live)) == 2


class TestRedrive:
    @pytest.mark.parametrize("state", [State.DEAD, State.CANCELLED])
    async def test_an_ended_job_runs_again_with_a_fresh_budget(self, harness: Harness, state: State) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            driven = await drive_to(subject, state, payload=b"[7]", priority=3, max_attempts=2)
            before = await job_of(engine, driven.id)
            await subject.advance(5)
            answers = await engine.redrive([driven.id], by="ada")
            assert answers == [Changed(driven.id, state, State.QUEUED)]
            job = await job_of(engine, driven.id)
            assert (job.state, job.attempts, job.failures) == (State.QUEUED, 0, 0)
            assert (job.attempt, job.max_attempts) == (before.attempt, 2)
            assert (job.payload, job.priority, job.created_at) == (b"[7]", 3, before.created_at)
            assert (job.finished_at, job.dead_at, job.dead_reason, job.cancel_reason) == (None,) * 4
            assert job.run_at == await engine.now()
            event = await last_event(engine, driven.id)
            assert (event.event, event.data) == (EventName.RETRIED, {"by": "ada"})
            leased = await lease_one(engine)
            assert leased.job.id == driven.id
            await ack(engine, leased)
            await check_log(engine, driven.id)

    async def test_each_of_a_batch_has_its_own_answer(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            dead = (await drive_to(subject, State.DEAD)).id
            done = (await drive_to(subject, State.SUCCEEDED)).id
            answers = await engine.redrive([dead, done, ids.uuid7(), dead])
            assert changed(answers[0]).state is State.QUEUED
            refused(answers[1], InvalidState)
            refused(answers[2], NotFound)
            refused(answers[3], InvalidState)
            assert len(await check_log(engine, dead)) == 4

    async def test_an_old_expiry_does_not_cancel_it_again(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine, expires_in=10)
            await subject.advance(11)
            assert await engine.expire() == [id]
            await engine.redrive([id])
            assert await engine.expire() == []
            assert await leased_ids(engine) == [id]

    async def test_by_filter_the_dead_that_match(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            dead = [(await drive_to(subject, State.DEAD, type=kind)).id for kind in ("a", "b", "a")]
            cancelled = (await drive_to(subject, State.CANCELLED, type="a")).id
            live = (await drive_to(subject, State.SCHEDULED, type="a")).id
            done = (await drive_to(subject, State.SUCCEEDED, type="a")).id
            theirs = await enqueue_one(engine, type="a", tenant=OTHER_TENANT)
            await engine.cancel([theirs], tenant=OTHER_TENANT)
            report = await engine.redrive_where(JobFilter(type="a"), by="ada")
            assert (report.matched, sorted(report.retried)) == (2, sorted([dead[0], dead[2]]))
            assert (report.more, report.dry_run) == (False, False)
            assert await states_of(engine, [*dead, cancelled, live, done]) == [
                State.QUEUED,
                State.DEAD,
                State.QUEUED,
                State.CANCELLED,
                State.SCHEDULED,
                State.SUCCEEDED,
            ]
            assert (await last_event(engine, dead[0])).data == {"by": "ada"}
            assert (await engine.redrive_where(JobFilter(type="a"))).retried == []

    async def test_by_filter_other_states_only_when_asked_for(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            dead = (await drive_to(subject, State.DEAD)).id
            cancelled = (await drive_to(subject, State.CANCELLED)).id
            asked = frozenset({State.CANCELLED, State.QUEUED})
            assert (await engine.redrive_where(JobFilter(states=asked))).retried == [cancelled]
            assert await state_of(engine, dead) is State.DEAD
            for states in ({State.QUEUED}, {State.SUCCEEDED, State.RUNNING}):
                with pytest.raises(FieldError):
                    await engine.redrive_where(JobFilter(states=frozenset(states)))

    async def test_by_reason_of_death(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            rejected = (await drive_to(subject, State.DEAD)).id
            await enqueue_one(engine, max_attempts=1)
            await nack(engine, await lease_one(engine))
            report = await engine.redrive_where(JobFilter(reason=DeadReason.REJECTED))
            assert report.retried == [rejected]

    async def test_a_dry_run_changes_nothing(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            dead = [(await drive_to(subject, State.DEAD)).id for _ in range(3)]
            async with nothing_changes(engine, *dead):
                report = await engine.redrive_where(JobFilter(), dry_run=True)
            assert report == RedriveReport(3, [], dry_run=True)

    async def test_a_limit_leaves_more_for_the_next_call(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            dead = [(await drive_to(subject, State.DEAD)).id for _ in range(5)]
            retried = []
            for size, more in ((2, True), (2, True), (1, False)):
                report = await engine.redrive_where(JobFilter(), limit=2)
                assert (len(report.retried), report.more) == (size, more)
                retried += report.retried
            assert sorted(retried) == sorted(dead)


class TestReschedule:
    async def test_to_another_time(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            await subject.advance(1)
            now = await engine.now()
            then = now + timedelta(hours=1)
            assert await engine.reschedule(id, run_at=then) == Changed(id, State.QUEUED, State.SCHEDULED)
            job = await job_of(engine, id)
            assert (job.run_at, job.updated_at) == (then, now)
            event = await last_event(engine, id)
            assert event.event is EventName.RESCHEDULED
            assert event.data["run_at"].endswith("Z")
            assert await leased_ids(engine) == []
            assert await engine.reschedule(id, delay=60) == Changed(id, State.SCHEDULED, State.SCHEDULED)
            assert (await job_of(engine, id)).run_at == now + timedelta(seconds=60)
            past = now - timedelta(days=1)
            assert await engine.reschedule(id, run_at=past) == Changed(id, State.SCHEDULED, State.QUEUED)
            assert (await job_of(engine, id)).run_at == now
            assert await leased_ids(engine) == [id]
            await check_log(engine, id)

    async def test_a_retry_may_be_brought_forward(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            driven = await drive_to(subject, State.RETRYING)
            answer = await engine.reschedule(driven.id, delay=0)
            assert answer == Changed(driven.id, State.RETRYING, State.QUEUED)
            leased = await lease_one(engine)
            assert (leased.job.attempts, leased.job.failures) == (2, 1)

    async def test_to_another_priority_in_its_place(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            wanted = await enqueue_many(engine, 3)
            run_at = (await job_of(engine, wanted[2])).run_at
            await subject.advance(5)
            assert await engine.reschedule(wanted[2], priority=1) == Changed(wanted[2], State.QUEUED, State.QUEUED)
            job = await job_of(engine, wanted[2])
            assert (job.priority, job.run_at) == (1, run_at), "only the priority was to change"
            assert await leased_ids(engine) == [wanted[2], wanted[0], wanted[1]]

    async def test_to_another_queue(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            await engine.reschedule(id, queue="slow")
            assert await leased_ids(engine) == []
            leased = await lease_one(engine, "slow")
            assert (leased.job.id, leased.job.queue) == (id, "slow")

    async def test_bad_changes_are_refused(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            now = await engine.now()
            async with nothing_changes(engine, id):
                bad: list[dict[str, Any]] = [
                    {},
                    {"run_at": now, "delay": 1},
                    {"run_at": now.replace(tzinfo=None)},
                    {"run_at": now + timedelta(days=4_000)},
                    {"delay": -1},
                    {"delay": nan},
                    {"priority": 0},
                    {"priority": 10},
                    {"queue": "a b"},
                ]
                for change in bad:
                    with pytest.raises(FieldError):
                        await engine.reschedule(id, **change)


class TestDelete:
    @pytest.mark.parametrize("state", [state for state in REACHABLE if state is not State.RUNNING])
    async def test_a_job_that_does_not_run_is_gone_and_its_log_has_an_end(
        self, harness: Harness, state: State
    ) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            driven = await drive_to(subject, state)
            assert await engine.delete([driven.id]) == [Changed(driven.id, state, None)]
            assert await engine.get([driven.id]) == [None]
            await subject.advance(FAR)
            assert await leased_ids(engine) == []
            assert (await engine.count()).number == 0
            await check_log(engine, driven.id)
            refused((await engine.delete([driven.id]))[0], NotFound)

    async def test_a_running_job_is_refused(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            driven = await drive_to(subject, State.RUNNING)
            async with nothing_changes(engine, driven.id):
                refused((await engine.delete([driven.id]))[0], InvalidState)

    async def test_each_of_a_batch_has_its_own_answer(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            running = (await drive_to(subject, State.RUNNING, queue="r")).id
            done = (await drive_to(subject, State.SUCCEEDED)).id
            live = await enqueue_one(engine)
            answers = await engine.delete([running, done, ids.uuid7(), live, live])
            refused(answers[0], InvalidState)
            assert changed(answers[1]) == Changed(done, State.SUCCEEDED, None)
            refused(answers[2], NotFound)
            assert changed(answers[3]) == Changed(live, State.QUEUED, None)
            refused(answers[4], NotFound)
            assert await event_names(engine, live) == [EventName.ENQUEUED, EventName.CANCELLED]

    async def test_its_key_remembers_it(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine, idempotency_key="k")
            await engine.delete([id])
            (answer,) = await engine.enqueue([new_job(idempotency_key="k")])
            assert answer == Enqueued(id, None, deduplicated=True)


class TestPause:
    async def test_pausing_twice_is_pausing_once(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_one(engine)
            await engine.pause(QUEUE)
            await engine.pause(QUEUE)
            assert await leased_ids(engine) == []
            await engine.resume(QUEUE)
            assert len(await leased_ids(engine)) == 1
            await engine.resume(QUEUE)
            await engine.resume("never-paused")

    async def test_tenants_pause_their_own_queues(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            await engine.pause(QUEUE, tenant=OTHER_TENANT)
            assert await leased_ids(engine) == [id]

    async def test_what_comes_back_to_a_paused_queue_waits(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            driven = await drive_to(subject, State.DEAD)
            await engine.pause(QUEUE)
            await engine.redrive([driven.id])
            assert await state_of(engine, driven.id) is State.QUEUED
            assert await lease_some(engine) == []
            await engine.resume(QUEUE)
            assert await leased_ids(engine) == [driven.id]

    async def test_a_queue_has_a_name(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            for name in ("", "a b", "q" * 129, "a\0"):
                with pytest.raises(FieldError):
                    await subject.engine.pause(name)
                with pytest.raises(FieldError):
                    await subject.engine.resume(name)


class TestForeignIds:
    """G11: what belongs to somebody else answers exactly like what does not exist."""

    @pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.DEAD])
    async def test_a_foreign_id_answers_like_a_missing_one(self, harness: Harness, state: State) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            driven = await drive_to(subject, state)
            async with nothing_changes(engine, driven.id):
                for verb in (engine.cancel, engine.redrive, engine.delete):
                    foreign, missing = await verb([driven.id, ids.uuid7()], tenant=OTHER_TENANT)
                    assert _words(refused(foreign, NotFound)) == _words(refused(missing, NotFound))
                words = []
                for id in (driven.id, ids.uuid7()):
                    with pytest.raises(NotFound) as refusal:
                        await engine.reschedule(id, delay=0, tenant=OTHER_TENANT)
                    words.append(_words(refusal.value))
                assert words[0] == words[1]
                assert (await engine.redrive_where(JobFilter(), tenant=OTHER_TENANT)).matched == 0
                assert await engine.get([driven.id], tenant=OTHER_TENANT) == [None]
                assert await engine.events_of(driven.id, tenant=OTHER_TENANT) == []


def _words(error: RopewayError) -> tuple[str, str, str | None]:
    return error.code, error.message, error.hint
