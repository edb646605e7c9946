"""Settling: what becomes of a run, and the fence: only the current ticket changes anything."""

from __future__ import annotations

from datetime import timedelta
from math import inf, nan

import msgspec
import pytest

from ropeway.core.decide import Rules
from ropeway.core.errors import FieldError, JobEnded, LeaseLost
from ropeway.core.lease import Lease
from ropeway.core.outcome import Done, Failed, Lost, Outcome, Released, Snoozed
from ropeway.core.payload import JobError
from ropeway.core.retry import MAX_DELAY, RetryPolicy
from ropeway.core.states import DeadReason, EventName, State
from ropeway.engines.protocol import Settled, Settlement
from ropeway.runtime import ids
from ropeway.testing.conformance.kit import (
    BOOM,
    DAY,
    HOUR,
    accepted,
    ack,
    answer_to,
    check_log,
    enqueue_many,
    enqueue_one,
    forged,
    inside_json,
    job_of,
    lease_one,
    lease_some,
    leased_ids,
    lose,
    nack,
    new_job,
    nothing_changes,
    refused,
    release,
    settle,
    snooze,
    state_of,
)
from ropeway.testing.conformance.subject import TEST_RULES, Harness

#: Delays without luck: 10 s, 20 s, 40 s ...
STEADY = RetryPolicy(base=10.0, factor=2.0, cap=3_600.0, jitter=0.0)

STEADY_RULES = msgspec.structs.replace(TEST_RULES, decisions=Rules(retry=STEADY))


class TestSuccess:
    async def test_what_is_left_of_a_finished_job(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            started = await engine.now()
            id = await enqueue_one(engine)
            leased = await lease_one(engine)
            await subject.advance(1.5)
            answer = await ack(engine, leased, b'{"n": 1.10}')
            assert answer == Settled(id, State.SUCCEEDED)
            job = await job_of(engine, id)
            assert (job.state, job.result) == (State.SUCCEEDED, b'{"n": 1.10}')
            assert (job.started_at, job.finished_at) == (started, started + timedelta(seconds=1.5))
            assert (job.locked_by, job.locked_until) == (None, None)
            assert (job.attempt, job.attempts) == (1, 1)
            assert not job.result_sanitized
            assert not job.result_too_large

    async def test_no_result_is_not_the_result_null(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            wanted = await enqueue_many(engine, 2)
            first, second = await lease_some(engine)
            await ack(engine, first)
            await ack(engine, second, b"null")
            null = None if inside_json(harness) else b"null"
            assert [(await job_of(engine, id)).result for id in wanted] == [None, null]

    @pytest.mark.parametrize(
        ("result", "kept"),
        [
            pytest.param(b'"a\\u0000b"', '"a\N{REPLACEMENT CHARACTER}b"'.encode(), id="NUL"),
            pytest.param(b'"\\ud800"', '"\N{REPLACEMENT CHARACTER}"'.encode(), id="surrogate"),
            pytest.param(b'{"n":NaN}', b'{"n":null}', id="NaN"),
            pytest.param(b"18446744073709551616", b'"18446744073709551616"', id="big integer"),
            pytest.param(b"<not json>", b'"<not json>"', id="not JSON"),
            pytest.param(b"\xff", '"\N{REPLACEMENT CHARACTER}"'.encode(), id="not UTF-8"),
            pytest.param(b"", b'""', id="empty"),
        ],
    )
    async def test_a_bad_result_is_repaired_and_the_job_has_succeeded(
        self, harness: Harness, result: bytes, kept: bytes
    ) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            answer = await ack(engine, await lease_one(engine), result)
            assert (answer.state, answer.sanitized) == (State.SUCCEEDED, True)
            job = await job_of(engine, id)
            assert (job.state, job.result, job.result_sanitized) == (State.SUCCEEDED, kept, True)

    async def test_a_result_that_is_too_large_is_dropped_and_the_job_has_succeeded(self, harness: Harness) -> None:
        rules = msgspec.structs.replace(TEST_RULES, max_payload_bytes=100)
        async with harness.subject(rules) as subject:
            engine = subject.engine
            wanted = await enqueue_many(engine, 2)
            large, fitting = await lease_some(engine)
            answer = await ack(engine, large, b'"' + b"x" * 99 + b'"')
            assert (answer.state, answer.result_too_large) == (State.SUCCEEDED, True)
            job = await job_of(engine, wanted[0])
            assert (job.state, job.result, job.result_too_large) == (State.SUCCEEDED, None, True)
            await ack(engine, fitting, b'"' + b"x" * 98 + b'"')
            assert (await job_of(engine, wanted[1])).result == b'"' + b"x" * 98 + b'"'


class TestFailure:
    async def test_a_failed_job_is_retried_by_the_rules(self, harness: Harness) -> None:
        async with harness.subject(STEADY_RULES) as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            for delay in (10, 20, 40, 80):
                now = await engine.now()
                answer = await nack(engine, await lease_one(engine))
                assert (answer.state, answer.retry_in) == (State.RETRYING, delay)
                assert answer.run_at == now + timedelta(seconds=delay)
                job = await job_of(engine, id)
                assert (job.state, job.run_at) == (State.RETRYING, now + timedelta(seconds=delay))
                assert (job.locked_by, job.locked_until, job.finished_at) == (None, None, None)
                await subject.advance(delay)
            answer = await nack(engine, await lease_one(engine))
            assert (answer.state, answer.run_at, answer.retry_in) == (State.DEAD, None, None)
            job = await job_of(engine, id)
            assert (job.state, job.dead_reason, job.attempts) == (State.DEAD, DeadReason.MAX_ATTEMPTS, 5)
            assert job.dead_at == job.finished_at == await engine.now()
            assert job.failures == 5

    async def test_a_jobs_own_policy_goes_before_the_rules(self, harness: Harness) -> None:
        async with harness.subject(STEADY_RULES) as subject:
            engine = subject.engine
            await enqueue_one(engine, retry=RetryPolicy(base=3.0, factor=10.0, cap=25.0, jitter=0.0))
            for delay in (3, 25):
                assert (await nack(engine, await lease_one(engine))).retry_in == delay
                await subject.advance(delay)

    async def test_jobs_that_fail_together_do_not_come_back_together(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_many(engine, 100)
            leased = await lease_some(engine, 100)
            answers = await engine.settle([Settlement(one.lease, Failed(BOOM)) for one in leased])
            delays = [accepted(answer).retry_in for answer in answers]
            assert all(delay is not None and 3.75 <= delay <= 6.25 for delay in delays)
            assert len(set(delays)) > 90

    async def test_retry_after_goes_before_every_policy_and_has_a_cap(self, harness: Harness) -> None:
        async with harness.subject(STEADY_RULES) as subject:
            engine = subject.engine
            id = await enqueue_one(engine, max_attempts=25)
            for asked, delay in ((7.5, 7.5), (0.0, 0.0), (-5.0, 0.0), (1e300, MAX_DELAY), (inf, MAX_DELAY)):
                now = await engine.now()
                answer = await nack(engine, await lease_one(engine), retry_after=asked)
                assert answer.retry_in == delay
                assert (await job_of(engine, id)).run_at == now + timedelta(seconds=delay)
                await subject.advance(delay)
            answer = await nack(engine, await lease_one(engine), retry_after=nan)
            assert answer.retry_in is not None
            assert 0 < answer.retry_in <= STEADY.cap, "what is not a number is not an answer: the policy decides"

    async def test_retry_after_gives_no_attempt_back(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_one(engine, max_attempts=1)
            assert (await nack(engine, await lease_one(engine), retry_after=1.0)).state is State.DEAD

    async def test_a_failure_without_retry_is_dead_at_once(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            wanted = await enqueue_many(engine, 2)
            first, second = await lease_some(engine)
            answer = await nack(engine, first, retry=False)
            assert (answer.state, answer.attempts, answer.run_at) == (State.DEAD, 1, None)
            await nack(engine, second, retry=False, reason=DeadReason.BAD_PAYLOAD)
            reasons = [(await job_of(engine, id)).dead_reason for id in wanted]
            assert reasons == [DeadReason.REJECTED, DeadReason.BAD_PAYLOAD]

    async def test_the_last_error_is_kept(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            error = JobError("app.Error", "é 'quoted' \\ 日本", "Traceback\n  line\napp.Error")
            await nack(engine, await lease_one(engine), error=error, retry_after=0.0)
            assert (await job_of(engine, id)).last_error == error
            leased = await lease_one(engine)
            assert leased.job.last_error == error, "the next attempt can see why the last one failed"
            await nack(engine, leased, error=BOOM, retry=False)
            assert (await job_of(engine, id)).last_error == BOOM

    async def test_a_bad_error_is_cleaned_and_the_job_moves_on(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            error = JobError("a\0b", "lone \ud800 and \0", "trace \udfff")
            answer = await nack(engine, await lease_one(engine), error=error)
            assert (answer.state, answer.sanitized, answer.truncated) == (State.RETRYING, True, False)
            mark = "\N{REPLACEMENT CHARACTER}"
            kept = (await job_of(engine, id)).last_error
            assert kept is not None
            assert (kept.type, kept.message) == (f"a{mark}b", f"lone {mark} and {mark}")
            assert kept.traceback == f"trace {mark}"
            assert kept.sanitized

    async def test_ten_megabytes_of_error_are_cut(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            huge = "x" * 10_000_000
            answer = await nack(engine, await lease_one(engine), error=JobError("E", huge, huge + " the end"))
            assert (answer.state, answer.truncated) == (State.RETRYING, True)
            kept = (await job_of(engine, id)).last_error
            assert kept is not None
            assert kept.traceback is not None
            assert (len(kept.message), len(kept.traceback), kept.truncated) == (4_096, 16_384, True)
            assert kept.traceback.endswith("the end")


class TestSnoozeAndRelease:
    async def test_a_snooze_by_delay_or_time(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            now = await engine.now()
            wanted = await enqueue_many(engine, 2)
            first, second = await lease_some(engine)
            answer = await snooze(engine, first, 120.0)
            assert (answer.state, answer.run_at) == (State.SCHEDULED, now + timedelta(seconds=120))
            assert answer.attempts == 0
            then = now + timedelta(hours=1)
            answer = await settle(engine, second, Snoozed(run_at=then))
            assert (answer.state, answer.run_at) == (State.SCHEDULED, then)
            assert [(await job_of(engine, id)).run_at for id in wanted] == [now + timedelta(seconds=120), then]

    async def test_a_snooze_into_the_past_is_due_now(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            now = await engine.now()
            await settle(engine, await lease_one(engine), Snoozed(run_at=now - timedelta(days=1)))
            assert (await job_of(engine, id)).run_at == now
            assert await leased_ids(engine) == [id]
            await check_log(engine, id)

    async def test_a_bad_snooze_is_refused_alone(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            wanted = await enqueue_many(engine, 5)
            tickets = [leased.lease for leased in await lease_some(engine)]
            now = await engine.now()
            outcomes: list[Outcome] = [
                Released(),
                Snoozed(delay=-1.0),
                Snoozed(delay=nan),
                Snoozed(run_at=now.replace(tzinfo=None)),
                Done(),
            ]
            async with nothing_changes(engine, *wanted[1:4]):
                answers = await engine.settle(
                    [Settlement(lease, outcome) for lease, outcome in zip(tickets, outcomes, strict=True)]
                )
            assert accepted(answers[0]).state is State.QUEUED
            for answer in answers[1:4]:
                refused(answer, FieldError)
            assert accepted(answers[4]).state is State.SUCCEEDED

    async def test_a_released_job_is_as_if_never_started(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            before = await job_of(engine, id)
            await subject.advance(5)
            answer = await release(engine, await lease_one(engine))
            assert (answer.state, answer.run_at, answer.attempts) == (State.QUEUED, before.run_at, 0)
            job = await job_of(engine, id)
            assert (job.state, job.run_at, job.failures) == (State.QUEUED, before.run_at, 0)
            assert (job.locked_by, job.locked_until, job.last_error) == (None, None, None)


class TestFence:
    """Only the current ticket changes anything (C5); a ticket used up is told what came of it."""

    async def test_a_ticket_must_fit_job_attempt_and_token(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            wanted = await enqueue_many(engine, 2)
            first, second = await lease_some(engine)
            third_job = await enqueue_one(engine)
            third = await lease_one(engine)
            async with nothing_changes(engine, *wanted, third_job):
                for lease in (
                    forged(first.lease),
                    Lease(first.job.id, 2, first.lease.token),
                    Lease(first.job.id, 0, first.lease.token),
                    Lease(first.job.id, 1, third.lease.token),
                    Lease(ids.uuid7(), 1, first.lease.token),
                ):
                    for outcome in (Done(b"1"), Failed(BOOM), Snoozed(delay=1.0), Released(), Lost()):
                        refused(await answer_to(engine, lease, outcome), LeaseLost)
            assert await ack(engine, second)

    @pytest.mark.parametrize(
        "outcome",
        [Done(b"1"), Failed(BOOM), Failed(BOOM, retry=False), Snoozed(delay=HOUR), Released(), Lost()],
        ids=["ack", "nack", "reject", "snooze", "release", "lose"],
    )
    async def test_the_same_call_again_is_answered_as_before(self, harness: Harness, outcome: Outcome) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            leased = await lease_one(engine)
            first = await settle(engine, leased, outcome)
            async with nothing_changes(engine, id):
                again = await settle(engine, leased, outcome)
            assert (again.state, again.already) == (first.state, True)
            assert not first.already

    async def test_after_its_end_a_ticket_is_told_so(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            wanted = await enqueue_many(engine, 2)
            done, dead = await lease_some(engine)
            await ack(engine, done)
            await nack(engine, dead, retry=False)
            async with nothing_changes(engine, *wanted):
                later: list[Outcome] = [Snoozed(delay=1.0), Released(), Lost()]
                for outcome in [Failed(BOOM), *later]:
                    assert refused(await answer_to(engine, done, outcome), JobEnded).status == "succeeded"
                for outcome in [Done(), *later]:
                    assert refused(await answer_to(engine, dead, outcome), JobEnded).status == "dead"

    async def test_a_ticket_whose_job_died_in_its_hands_has_lost_it(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            wanted = await enqueue_many(engine, 2, max_attempts=1)
            first, second = await lease_some(engine, lease_seconds=30)
            await lose(engine, first)
            await subject.advance(31)
            await engine.rescue()
            async with nothing_changes(engine, *wanted):
                for leased in (first, second):
                    for outcome in (Done(), Failed(BOOM), Released()):
                        refused(await answer_to(engine, leased, outcome), LeaseLost)
                    again = await settle(engine, leased, Lost())
                    assert (again.state, again.already) == (State.DEAD, True)

    @pytest.mark.parametrize(
        "outcome",
        [Failed(BOOM, retry_after=0.0), Snoozed(delay=0.0), Released(), Lost()],
        ids=["nack", "snooze", "release", "lose"],
    )
    async def test_a_replay_after_the_next_delivery_has_lost_its_lease(
        self, harness: Harness, outcome: Outcome
    ) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            old = await lease_one(engine)
            await settle(engine, old, outcome)
            new = await lease_one(engine)
            assert new.job.id == id
            async with nothing_changes(engine, id):
                for late in (outcome, Done(), Failed(BOOM), Released(), Lost()):
                    refused(await answer_to(engine, old, late), LeaseLost)
            await ack(engine, new)
            for late in (outcome, Done(), Failed(BOOM)):
                refused(await answer_to(engine, old, late), LeaseLost)

    async def test_a_replay_after_a_redrive_has_lost_its_lease(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            old = await lease_one(engine)
            await nack(engine, old, retry=False)
            await engine.redrive([id])
            async with nothing_changes(engine, id):
                for late in (Failed(BOOM, retry=False), Done()):
                    refused(await answer_to(engine, old, late), LeaseLost)

    async def test_a_late_ack_counts_until_somebody_took_the_job_back(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            wanted = await enqueue_many(engine, 2)
            first, second = [await lease_one(engine, lease_seconds=30) for _ in wanted]
            await subject.advance(HOUR)
            assert (await ack(engine, first)).state is State.SUCCEEDED
            assert [rescued.id for rescued in await engine.rescue()] == [wanted[1]]
            async with nothing_changes(engine, wanted[1]):
                refused(await answer_to(engine, second, Done()), LeaseLost)

    async def test_a_job_cancelled_while_it_runs_is_out_of_its_workers_hands(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            leased = await lease_one(engine)
            await engine.cancel([id])
            async with nothing_changes(engine, id):
                for outcome in (Done(), Failed(BOOM), Snoozed(delay=1.0), Released(), Lost()):
                    refused(await answer_to(engine, leased, outcome), LeaseLost)
            assert await state_of(engine, id) is State.CANCELLED

    async def test_one_stale_ticket_in_a_batch_harms_no_other(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            wanted = await enqueue_many(engine, 100)
            leased = await lease_some(engine, 100)
            items = [Settlement(one.lease, Done(b"%d" % n)) for n, one in enumerate(leased)]
            items[40] = Settlement(forged(leased[40].lease), Done())
            answers = await engine.settle(items)
            refused(answers[40], LeaseLost)
            for number, (id, answer) in enumerate(zip(wanted, answers, strict=True)):
                if number != 40:
                    assert accepted(answer) == Settled(id, State.SUCCEEDED)
                    assert (await job_of(engine, id)).result == b"%d" % number
            assert await state_of(engine, wanted[40]) is State.RUNNING

    async def test_a_batch_may_mix_all_outcomes(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            wanted = await enqueue_many(engine, 6)
            tickets = [leased.lease for leased in await lease_some(engine)]
            outcomes: list[Outcome] = [
                Released(),
                Done(),
                Failed(BOOM),
                Lost(),
                Snoozed(delay=HOUR),
                Failed(BOOM, retry=False),
            ]
            answers = await engine.settle(
                [Settlement(lease, outcome) for lease, outcome in zip(tickets, outcomes, strict=True)]
            )
            states = [
                State.QUEUED,
                State.SUCCEEDED,
                State.RETRYING,
                State.QUEUED,
                State.SCHEDULED,
                State.DEAD,
            ]
            assert [accepted(answer).state for answer in answers] == states
            assert [accepted(answer).id for answer in answers] == wanted
            assert [await state_of(engine, id) for id in wanted] == states

    async def test_one_job_twice_in_a_batch_is_settled_in_order(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            wanted = await enqueue_many(engine, 2)
            first, second = [leased.lease for leased in await lease_some(engine)]
            answers = await engine.settle(
                [
                    Settlement(first, Failed(BOOM, retry=False)),
                    Settlement(second, Done(b"1")),
                    Settlement(first, Done()),
                    Settlement(second, Done(b"2")),
                    Settlement(first, Failed(BOOM, retry=False)),
                ]
            )
            assert accepted(answers[0]).state is State.DEAD
            assert accepted(answers[1]) == Settled(wanted[1], State.SUCCEEDED)
            assert refused(answers[2], JobEnded).status == "dead"
            assert accepted(answers[3]).already
            assert accepted(answers[4]).already
            assert (await job_of(engine, wanted[1])).result == b"1"
            for id in wanted:
                assert len(await check_log(engine, id)) == 3

    async def test_an_empty_batch_is_answered_empty(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            assert await subject.engine.settle([]) == []
            assert await subject.engine.heartbeat([]) == []
            assert await subject.engine.progress([]) == []
            assert await subject.engine.get([]) == []
            assert await subject.engine.cancel([]) == []


class TestOneLife:
    async def test_a_long_life_leaves_a_whole_log(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            (answer,) = await engine.enqueue([new_job(delay=10, max_attempts=3)])
            await engine.reschedule(answer.id, delay=5)
            await subject.advance(5)
            await release(engine, await lease_one(engine))
            await nack(engine, await lease_one(engine), retry_after=1.0)
            await subject.advance(1)
            await snooze(engine, await lease_one(engine), 1.0)
            await subject.advance(1)
            await lose(engine, await lease_one(engine))
            await nack(engine, await lease_one(engine))
            await engine.redrive([answer.id])
            await ack(engine, await lease_one(engine))
            await subject.advance(DAY)
            assert [event.event for event in await check_log(engine, answer.id)] == [
                EventName.ENQUEUED,
                EventName.RESCHEDULED,
                EventName.STARTED,
                EventName.RELEASED,
                EventName.STARTED,
                EventName.FAILED,
                EventName.STARTED,
                EventName.SNOOZED,
                EventName.STARTED,
                EventName.RECLAIMED,
                EventName.STARTED,
                EventName.DLQ,
                EventName.RETRIED,
                EventName.STARTED,
                EventName.COMPLETED,
            ]
