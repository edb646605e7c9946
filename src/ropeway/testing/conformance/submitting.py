"""Submitting: batches, times, payloads kept exactly, and the keys that keep duplicates out."""

from __future__ import annotations

from datetime import timedelta, timezone
from uuid import UUID

import msgspec
import pytest

from ropeway.core.errors import BatchTooLarge, FieldError, IdempotencyMismatch, PayloadError
from ropeway.core.job import Alike, NewJob
from ropeway.core.retry import PRESETS, RetryPolicy
from ropeway.core.states import EventName, State
from ropeway.core.unique import Unique
from ropeway.engines.protocol import Engine, Enqueued
from ropeway.testing.conformance.kit import (
    DAY,
    HOUR,
    OTHER_TENANT,
    ack,
    enqueue_one,
    event_names,
    inside_json,
    job_of,
    lease_one,
    lease_some,
    leased_ids,
    nack,
    new_job,
    state_of,
)
from ropeway.testing.conformance.subject import TEST_RULES, Harness

#: Valid JSON that a store which parses, reorders or rewrites would give back as something else.
NASTY_PAYLOADS = (
    b"null",
    b"5",
    b'""',
    b"[]",
    b"-0",
    b"-0.0",
    b"1.10",
    b"1E+2",
    b"1e-400",
    b"9007199254740993",
    b"9223372036854775807",
    b"-9223372036854775808",
    b'{"a":[],"b":{}}',
    b'{"b":1,"a":2,"B":3}',
    b' {"spaced" :\t[ 1 ,\r\n 2 ] } ',
    b'"\\u00e9 \\/ \\ud83d\\ude00 \\u0001"',
    '"é 日本語 😀 \u202e \u200b"'.encode(),
    ('"e' + "\u0301" * 10_000 + '"').encode(),
    b'"%s $1 ? :name \\\\ \' ;--"',
    b"[" * 64 + b"]" * 64,
    b'"' + b"x" * (1_048_576 - 2) + b'"',
)


class TestBatches:
    async def test_a_payload_beyond_the_limit_is_refused_with_its_index(self, harness: Harness) -> None:
        async with harness.subject(msgspec.structs.replace(TEST_RULES, max_payload_bytes=100)) as subject:
            large = b'"' + b"x" * 99 + b'"'
            await subject.engine.enqueue([new_job(payload=b'"' + b"x" * 98 + b'"')])
            for jobs in ([new_job(payload=large)], [new_job(), new_job(payload=large)]):
                with pytest.raises(PayloadError) as refusal:
                    await subject.engine.enqueue(jobs)
                assert (refusal.value.code, refusal.value.index) == ("payload_too_large", len(jobs) - 1)
            assert (await subject.engine.count()).number == 1

    async def test_answers_come_in_order_and_so_do_the_jobs(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            answers = await subject.engine.enqueue([new_job(payload=b"%d" % n) for n in range(50)])
            assert all(answer.state is State.QUEUED and not answer.deduplicated for answer in answers)
            assert len({answer.id for answer in answers}) == 50
            jobs = await subject.engine.get([answer.id for answer in answers])
            assert [job and job.payload for job in jobs] == [b"%d" % n for n in range(50)]
            assert await leased_ids(subject.engine) == [answer.id for answer in answers]

    @pytest.mark.parametrize(
        "model",
        [
            new_job(),
            new_job(delay=5.0, queue="later", priority=2, max_attempts=3),
            new_job(tags=("a", "b"), headers={"x": "y"}, timeout=7.0, expires_in=60.0),
            new_job(unique=Unique()),
        ],
        ids=["plain", "delayed", "rare", "unique"],
    )
    @pytest.mark.parametrize("lines", [1, 2])
    async def test_jobs_that_differ_in_their_payloads_alone(
        self, harness: Harness, model: NewJob, lines: int
    ) -> None:
        payloads = [b'{"n":%s%d}' % (b"\n" * (lines - 1), n) for n in range(20)]
        async with harness.subject() as subject:
            answers = await subject.engine.enqueue(Alike(model, payloads))
            found = [job for job in await subject.engine.get([answer.id for answer in answers]) if job is not None]
            assert [(job.id, job.state, job.created_at, job.run_at) for job in found] == [
                (answer.id, answer.state, answer.created_at, answer.run_at) for answer in answers
            ]
            assert not any(answer.deduplicated for answer in answers)
            assert [job.payload for job in found] == payloads
            for name in ("type", "queue", "priority", "max_attempts", "timeout", "tags", "headers"):
                assert [getattr(job, name) for job in found] == [getattr(model, name)] * 20
            state = State.QUEUED if model.delay is None else State.SCHEDULED
            assert {job.state for job in found} == {state}
            assert {job.expires_at is None for job in found} == {model.expires_in is None}
            ids = [answer.id for answer in answers]
            again = await subject.engine.enqueue(Alike(model, payloads))
            assert [answer.deduplicated for answer in again] == [model.unique is not None] * 20
            if model.unique is not None:
                assert [answer.id for answer in again] == ids

    async def test_a_flaw_of_one_of_many_alike_keeps_all_out(self, harness: Harness) -> None:
        async with harness.subject(msgspec.structs.replace(TEST_RULES, max_payload_bytes=100)) as subject:
            with pytest.raises(PayloadError) as large:
                await subject.engine.enqueue(Alike(new_job(), [b"1", b'"' + b"x" * 99 + b'"', b"2"]))
            assert (large.value.code, large.value.index) == ("payload_too_large", 1)
            too_late = await subject.engine.now() + timedelta(days=4_000)
            for model in (new_job(run_at=too_late), new_job(expires_at=too_late)):
                with pytest.raises(FieldError) as late:
                    await subject.engine.enqueue(Alike(model, [b"1", b"2"]))
                assert late.value.index == 0
            with pytest.raises(BatchTooLarge):
                await subject.engine.enqueue(Alike(new_job(), [b"1"] * 10_001))
            assert (await subject.engine.count()).number == 0

    async def test_an_empty_batch_is_answered_empty(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            assert await subject.engine.enqueue([]) == []

    async def test_one_refused_job_keeps_the_whole_batch_out(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            too_late = await subject.engine.now() + timedelta(days=4_000)
            jobs = [new_job(idempotency_key="a"), new_job(), new_job(run_at=too_late), new_job()]
            with pytest.raises(FieldError) as refusal:
                await subject.engine.enqueue(jobs)
            assert (refusal.value.index, refusal.value.code) == (2, "invalid_time")
            await _store_is_empty(subject.engine)
            await enqueue_one(subject.engine, idempotency_key="a")

    async def test_a_batch_has_a_limit(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            with pytest.raises(BatchTooLarge):
                await subject.engine.enqueue([new_job()] * 10_001)
            await _store_is_empty(subject.engine)

    async def test_a_batch_of_a_thousand_is_stored(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            answers = await subject.engine.enqueue([new_job()] * 1_000)
            assert await leased_ids(subject.engine, 1_000) == [answer.id for answer in answers]


class TestTimes:
    async def test_run_at_and_delay_are_kept(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            now = await engine.now()
            then = (now + timedelta(hours=2)).astimezone(timezone(timedelta(hours=5, minutes=30)))
            answers = await engine.enqueue([new_job(run_at=then), new_job(delay=1.5), new_job(delay=0)])
            jobs = [await job_of(engine, answer.id) for answer in answers]
            assert [job.run_at for job in jobs] == [then, now + timedelta(seconds=1.5), now]
            assert [answer.state for answer in answers] == [State.SCHEDULED, State.SCHEDULED, State.QUEUED]
            assert [job.state for job in jobs] == [State.SCHEDULED, State.SCHEDULED, State.QUEUED]
            assert {job.created_at for job in jobs} == {now}

    async def test_the_past_means_now(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            now = await engine.now()
            id = await enqueue_one(engine, run_at=now - timedelta(days=365))
            assert (await job_of(engine, id)).run_at == now
            assert (await job_of(engine, id)).state is State.QUEUED

    async def test_a_past_time_gives_no_better_place_in_line(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            first = await enqueue_one(subject.engine)
            second = await enqueue_one(subject.engine, run_at=await subject.engine.now() - timedelta(hours=1))
            assert await leased_ids(subject.engine) == [first, second]

    @pytest.mark.parametrize("field", ["run_at", "expires_at"])
    async def test_ten_years_ahead_is_the_horizon(self, harness: Harness, field: str) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            now = await engine.now()
            await engine.enqueue([new_job(**{field: now + timedelta(days=3_652)})])
            for days in (3_654, 100_000):
                with pytest.raises(FieldError) as refusal:
                    await engine.enqueue([new_job(**{field: now + timedelta(days=days)})])
                assert (refusal.value.code, refusal.value.index) == ("invalid_time", 0)

    async def test_the_answer_has_the_times_that_a_look_will_show(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            now = await engine.now()
            asked = [
                new_job(),
                new_job(),
                new_job(delay=1.5),
                new_job(run_at=now + timedelta(days=1, microseconds=7)),
                new_job(run_at=now - timedelta(days=1)),
                new_job(idempotency_key="k"),
                new_job(unique=Unique()),
                new_job(queue="other", priority=1, expires_in=HOUR),
            ]
            for jobs in (asked[:1], asked[2:3], asked[5:6], asked):
                for answer in await engine.enqueue(jobs):
                    if answer.deduplicated:
                        assert (answer.created_at, answer.run_at) == (None, None)
                        continue
                    job = await job_of(engine, answer.id)
                    assert (answer.created_at, answer.run_at) == (job.created_at, job.run_at)

    async def test_expiry_is_kept_as_a_time(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            then = await engine.now() + timedelta(hours=1)
            ids = [await enqueue_one(engine, expires_at=then), await enqueue_one(engine, expires_in=HOUR)]
            assert [(await job_of(engine, id)).expires_at for id in ids] == [then, then]

    async def test_microseconds_are_kept(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            then = (await subject.engine.now() + timedelta(hours=1)).replace(microsecond=123_457)
            id = await enqueue_one(subject.engine, run_at=then)
            assert (await job_of(subject.engine, id)).run_at == then


class TestWhatIsKept:
    async def test_payloads_come_back_byte_for_byte(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            answers = await engine.enqueue([new_job(payload=payload) for payload in NASTY_PAYLOADS])
            ids = [answer.id for answer in answers]
            kept = [payload.strip() if inside_json(harness) else payload for payload in NASTY_PAYLOADS]
            for number, payload in enumerate(kept):
                assert (await job_of(engine, ids[number])).payload == payload
            for leased, payload, given in zip(await lease_some(engine), kept, NASTY_PAYLOADS, strict=True):
                assert leased.job.payload == payload
                await ack(engine, leased, given)
            for job, payload in zip(await engine.get(ids), kept, strict=True):
                assert job is not None
                result = None if inside_json(harness) and payload == b"null" else payload
                assert (job.payload, job.result, job.result_sanitized) == (payload, result, False)

    async def test_defaults(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            job = await job_of(engine, await enqueue_one(engine))
            assert (job.type, job.queue, job.priority, job.payload) == ("task", "default", 5, b"{}")
            assert (job.attempt, job.attempts, job.max_attempts, job.failures) == (0, 0, 5, 0)
            assert (job.timeout, job.retry, job.tags, dict(job.headers)) == (3_600.0, None, (), {})
            assert job.created_at == job.updated_at == job.run_at == await engine.now()
            for empty in (
                job.started_at,
                job.finished_at,
                job.locked_by,
                job.locked_until,
                job.last_error,
                job.result,
                job.dead_reason,
                job.cancel_reason,
                job.idempotency_key,
                job.expires_at,
                job.progress,
            ):
                assert empty is None

    async def test_everything_that_was_asked_for_is_kept(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            asked = new_job(
                type="a.b:c-d_e",
                queue="mail",
                priority=2,
                max_attempts=7,
                payload=b'{"to": "x"}',
                retry=RetryPolicy(base=1.5, factor=3.0, cap=60.0, jitter=0.0),
                timeout=0.0,
                tags=("a", "é 日本", "{},\"'"),
                headers={"traceparent": "00-ab", "é": 'x" \n {y}', "empty": ""},
                idempotency_key='k" é {}\\,',
            )
            (answer,) = await engine.enqueue([asked])
            ways = [await job_of(engine, answer.id)]
            leased = await lease_one(engine, "mail")
            ways.append(leased.job)
            await nack(engine, leased, retry=False)
            ways.append(await job_of(engine, answer.id))
            await engine.redrive([answer.id])
            ways.append(await job_of(engine, answer.id))
            for job in ways:
                assert (job.type, job.queue, job.priority) == (asked.type, asked.queue, asked.priority)
                assert (job.payload, job.max_attempts) == (asked.payload, asked.max_attempts)
                assert (job.retry, job.timeout) == (asked.retry, asked.timeout)
                assert (job.tags, dict(job.headers)) == (asked.tags, asked.headers)
                assert job.idempotency_key == asked.idempotency_key


class TestIdempotencyKeys:
    async def test_a_job_with_a_key_may_have_a_retry_policy(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            for number, policy in enumerate((RetryPolicy(base=0.2, cap=1.0), *PRESETS.values())):
                job = new_job(idempotency_key=f"k{number}", retry=policy)
                (first,) = await engine.enqueue([job])
                (again,) = await engine.enqueue([job])
                assert (again.id, again.deduplicated) == (first.id, True)

    async def test_the_same_body_gets_the_first_job(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            job = new_job(idempotency_key="k", payload=b'{"a": 1, "b": [1.0]}', delay=HOUR, tags=("x",))
            same = new_job(idempotency_key="k", payload=b'{"b":[1.0],"a":1}', delay=HOUR, tags=("x",))
            (first,) = await engine.enqueue([job])
            (again,) = await engine.enqueue([same])
            assert again == Enqueued(first.id, State.SCHEDULED, deduplicated=True)
            assert await event_names(engine, first.id) == [EventName.ENQUEUED]
            assert (await engine.count()).number == 1

    async def test_the_answer_tells_the_first_jobs_state_now(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            job = new_job(idempotency_key="k")
            await engine.enqueue([job])
            leased = await lease_one(engine)
            assert (await engine.enqueue([job]))[0].state is State.RUNNING
            await ack(engine, leased)
            assert (await engine.enqueue([job]))[0].state is State.SUCCEEDED

    @pytest.mark.parametrize(
        "other",
        [
            {"payload": b"[1]"},
            {"payload": b"1.0"},
            {"type": "other"},
            {"queue": "other"},
            {"priority": 6},
            {"delay": 1},
        ],
        ids=str,
    )
    async def test_another_body_is_a_mismatch(self, harness: Harness, other: dict[str, object]) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            (first,) = await engine.enqueue([new_job(idempotency_key="k", payload=b"1")])
            with pytest.raises(IdempotencyMismatch) as refusal:
                await engine.enqueue([new_job(**{"idempotency_key": "k", "payload": b"1", **other})])
            assert refusal.value.index == 0
            assert (await engine.count()).number == 1
            assert await event_names(engine, first.id) == [EventName.ENQUEUED]

    async def test_a_callers_own_fingerprint_counts_instead_of_the_body(self, harness: Harness) -> None:
        if inside_json(harness):
            pytest.skip("a server believes no fingerprint but that of the fields")
        async with harness.subject() as subject:
            engine = subject.engine
            job = new_job(idempotency_key="k", fingerprint=b"f" * 32)
            (first,) = await engine.enqueue([job])
            (again,) = await engine.enqueue([new_job(idempotency_key="k", fingerprint=b"f" * 32, priority=9)])
            assert again.id == first.id
            with pytest.raises(IdempotencyMismatch):
                await engine.enqueue([new_job(idempotency_key="k", fingerprint=b"g" * 32)])

    async def test_a_key_is_free_after_its_window_and_the_end_of_its_job(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            job = new_job(idempotency_key="k", key_window=DAY)
            (first,) = await engine.enqueue([job])
            await subject.advance(DAY + 1)
            assert (await engine.enqueue([job]))[0].id == first.id, "the window has passed, but the job lives"
            await ack(engine, await lease_one(engine))
            (second,) = await engine.enqueue([new_job(idempotency_key="k", key_window=DAY, payload=b"2")])
            assert not second.deduplicated
            assert second.id != first.id
            assert await state_of(engine, first.id) is State.SUCCEEDED
            (again,) = await engine.enqueue([new_job(idempotency_key="k", key_window=DAY, payload=b"2")])
            assert again == Enqueued(second.id, State.QUEUED, deduplicated=True), "the key has a new owner now"

    async def test_a_key_holds_for_its_window_after_its_job_ended(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            job = new_job(idempotency_key="k", key_window=2 * DAY)
            (first,) = await engine.enqueue([job])
            await ack(engine, await lease_one(engine))
            await subject.advance(2 * DAY - 1)
            assert (await engine.enqueue([job]))[0] == Enqueued(first.id, State.SUCCEEDED, deduplicated=True)
            await subject.advance(1)
            assert not (await engine.enqueue([job]))[0].deduplicated

    async def test_the_engines_window_is_the_default(self, harness: Harness) -> None:
        rules = msgspec.structs.replace(TEST_RULES, idempotency_window=50.0)
        async with harness.subject(rules) as subject:
            engine = subject.engine
            job = new_job(idempotency_key="k")
            await engine.enqueue([job])
            await ack(engine, await lease_one(engine))
            await subject.advance(49)
            assert (await engine.enqueue([job]))[0].deduplicated
            await subject.advance(2)
            assert not (await engine.enqueue([job]))[0].deduplicated

    async def test_window_0_is_for_ever_even_when_the_job_is_pruned(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            job = new_job(idempotency_key="k", key_window=0)
            (first,) = await engine.enqueue([job])
            await ack(engine, await lease_one(engine))
            await subject.advance(40 * DAY)
            assert (await engine.enqueue([job]))[0] == Enqueued(first.id, State.SUCCEEDED, deduplicated=True)
            await engine.prune()
            assert await engine.get([first.id]) == [None]
            assert (await engine.enqueue([job]))[0] == Enqueued(first.id, None, deduplicated=True)
            with pytest.raises(IdempotencyMismatch):
                await engine.enqueue([new_job(idempotency_key="k", priority=1)])
            assert (await engine.count()).number == 0

    async def test_tenants_have_their_own_keys(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            (first,) = await engine.enqueue([new_job(idempotency_key="k")])
            (theirs,) = await engine.enqueue([new_job(idempotency_key="k", payload=b"2")], tenant=OTHER_TENANT)
            assert not theirs.deduplicated
            assert theirs.id != first.id

    async def test_duplicates_within_a_batch_are_one_job(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            jobs = [new_job(idempotency_key=key) for key in ("a", "b", "a", "a", "c", "b")]
            answers = await engine.enqueue(jobs)
            assert [answer.deduplicated for answer in answers] == [False, False, True, True, False, True]
            assert answers[0].id == answers[2].id == answers[3].id
            assert answers[1].id == answers[5].id
            assert {answer.state for answer in answers} == {State.QUEUED}
            assert await leased_ids(engine) == [answers[0].id, answers[1].id, answers[4].id]

    async def test_a_batch_may_mix_known_and_new_keys(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            known = await enqueue_one(engine, idempotency_key="known")
            answers = await engine.enqueue(
                [new_job(), new_job(idempotency_key="known"), new_job(idempotency_key="new"), new_job()]
            )
            assert [answer.deduplicated for answer in answers] == [False, True, False, False]
            assert answers[1].id == known
            assert (await engine.count()).number == 4

    async def test_a_mismatch_within_a_batch_stores_nothing(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            jobs = [new_job(idempotency_key="a"), new_job(idempotency_key="b", unique=Unique()), new_job()]
            with pytest.raises(IdempotencyMismatch) as refusal:
                await engine.enqueue([*jobs, new_job(idempotency_key="a", payload=b"2")])
            assert refusal.value.index == 3
            await _store_is_empty(engine)
            answers = await engine.enqueue(jobs)
            assert [answer.deduplicated for answer in answers] == [False, False, False], "a key was left behind"

    async def test_a_mismatch_with_an_earlier_batch_stores_nothing(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_one(engine, idempotency_key="a")
            with pytest.raises(IdempotencyMismatch) as refusal:
                await engine.enqueue([new_job(), new_job(idempotency_key="a", payload=b"2"), new_job()])
            assert refusal.value.index == 1
            assert (await engine.count()).number == 1

    async def test_the_longest_key_is_kept_whole(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            keys = ["k" * 512, "k" * 511 + "l", "é" * 256]
            ids = [await enqueue_one(engine, idempotency_key=key) for key in keys]
            assert [(await job_of(engine, id)).idempotency_key for id in ids] == keys


class TestUniqueJobs:
    async def test_by_args_means_type_queue_and_payload(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            first = await enqueue_one(engine, unique=Unique(), payload=b'{"a":1,"b":[2]}')
            (again,) = await engine.enqueue(
                [new_job(unique=Unique(), payload=b'{ "b": [2], "a": 1 }', priority=1, delay=HOUR)]
            )
            assert again == Enqueued(first, State.QUEUED, deduplicated=True)
            for other in ({"payload": b'{"a":1.0,"b":[2]}'}, {"type": "other"}, {"queue": "other"}):
                job = new_job(**{"unique": Unique(), "payload": b'{"a":1,"b":[2]}', **other})
                assert not (await engine.enqueue([job]))[0].deduplicated, other
            await enqueue_one(engine, payload=b'{"a":1,"b":[2]}')

    async def test_by_key_means_type_and_key(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            unique = Unique(by="key", key="u:7")
            first = await enqueue_one(engine, unique=unique, payload=b"1")
            (again,) = await engine.enqueue([new_job(unique=unique, payload=b"2", queue="other")])
            assert again == Enqueued(first, State.QUEUED, deduplicated=True)
            await enqueue_one(engine, unique=unique, type="other")
            await enqueue_one(engine, unique=Unique(by="key", key="u:8"))
            await enqueue_one(engine, unique=unique, tenant=OTHER_TENANT)

    async def test_a_unique_job_makes_way_when_it_has_ended(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            job = new_job(unique=Unique())
            first = await _enqueue(engine, job)
            leased = await lease_one(engine)
            assert await _enqueue(engine, job) == first, "a running job keeps the next one out"
            await nack(engine, leased)
            assert await _enqueue(engine, job) == first, "so does one that will be retried"
            await engine.cancel([first])
            second = await _enqueue(engine, job)
            assert second != first
            await ack(engine, await lease_one(engine))
            third = await _enqueue(engine, job)
            assert third not in (first, second)
            assert await _enqueue(engine, job) == third

    async def test_within_counts_from_the_enqueue_and_succeeded_jobs_too(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            job = new_job(unique=Unique(within=100))
            first = await _enqueue(engine, job)
            await ack(engine, await lease_one(engine))
            await subject.advance(99)
            (again,) = await engine.enqueue([job])
            assert again == Enqueued(first, State.SUCCEEDED, deduplicated=True)
            await subject.advance(1)
            second = await _enqueue(engine, job)
            assert second != first
            await subject.advance(100)
            assert await _enqueue(engine, job) != second, "the window is over, although the job has not run yet"

    async def test_within_forgets_dead_and_cancelled_jobs(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            job = new_job(unique=Unique(within=100))
            first = await _enqueue(engine, job)
            await nack(engine, await lease_one(engine), retry=False)
            second = await _enqueue(engine, job)
            assert second != first
            await engine.cancel([second])
            assert await _enqueue(engine, job) not in (first, second)

    async def test_states_can_be_chosen(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            job = new_job(unique=Unique(states=frozenset({State.QUEUED, State.DEAD})))
            first = await _enqueue(engine, job)
            assert await _enqueue(engine, job) == first
            await nack(engine, await lease_one(engine), retry=False)
            assert (await engine.enqueue([job]))[0] == Enqueued(first, State.DEAD, deduplicated=True)
            await engine.redrive([first])
            await lease_one(engine)
            assert await _enqueue(engine, job) != first, "a running job is not among the states"

    async def test_duplicates_within_a_batch_are_one_job(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            answers = await engine.enqueue([new_job(unique=Unique()) for _ in range(3)])
            assert [answer.deduplicated for answer in answers] == [False, True, True]
            assert len({answer.id for answer in answers}) == 1
            assert (await engine.count()).number == 1

    async def test_unique_and_idempotency_keys_never_meet(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_one(engine, idempotency_key="key:task:k")
            await enqueue_one(engine, unique=Unique(by="key", key="k"))
            assert (await engine.count()).number == 2

    async def test_a_job_that_is_not_stored_takes_nobodys_unique_key(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            job = new_job(idempotency_key="k", unique=Unique())
            first = await _enqueue(engine, job)
            await nack(engine, await lease_one(engine), retry=False)
            assert await _enqueue(engine, job) == first, "its idempotency key answers; the unique one was free"
            await engine.redrive([first])
            assert await _enqueue(engine, new_job(unique=Unique())) == first

    async def test_a_job_that_is_not_stored_takes_nobodys_idempotency_key(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            job = new_job(idempotency_key="k", key_window=DAY, unique=Unique())
            first = await _enqueue(engine, job)
            await nack(engine, await lease_one(engine), retry=False)
            await subject.advance(DAY + 1)
            other = await _enqueue(engine, new_job(unique=Unique()))
            assert await _enqueue(engine, job) == other, "its idempotency key was free; the unique one is held"
            await engine.redrive([first])
            assert await _enqueue(engine, job) == first

    async def test_a_pruned_job_keeps_nobody_out(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            job = new_job(unique=Unique(within=100 * DAY))
            first = await _enqueue(engine, job)
            await engine.delete([first])
            assert await _enqueue(engine, job) != first


async def _enqueue(engine: Engine, job: NewJob) -> UUID:
    """The id that answers for a job, new or not."""
    (answer,) = await engine.enqueue([job])
    return answer.id


async def _store_is_empty(engine: Engine) -> None:
    assert (await engine.count()).number == 0
    assert (await engine.tail()).events == []
    assert await lease_some(engine) == []
