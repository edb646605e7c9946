"""What crosses HTTP: times, tokens, cursors, fingerprints, and that objects and models say the same."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeway.core.access import ApiKey, Limits, Scope, Tenant
from ropeway.core.auditlog import Action
from ropeway.core.errors import BadCursor, FieldError
from ropeway.core.events import Attempt, Event, rfc3339
from ropeway.core.fleet import WorkerInfo
from ropeway.core.job import Job, NewJob, Progress
from ropeway.core.joblog import LogLine
from ropeway.core.lease import Lease
from ropeway.core.payload import JobError
from ropeway.core.query import QueueStats
from ropeway.core.retry import PRESETS, retry_policy
from ropeway.core.schedule import NewSchedule, Schedule
from ropeway.core.states import EventName, State
from ropeway.core.unique import Unique
from ropeway.wire import convert, cursors, models, objects, records, requests, tokens
from ropeway.wire.times import parse_time

NOW = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
SECRET = bytes(range(32))


# ── Times ──


@given(st.integers(0, 2**48).map(lambda micros: NOW + timedelta(microseconds=micros)))
def test_what_is_written_is_read_again(at: datetime) -> None:
    assert parse_time(rfc3339(at), "at") == at


def test_a_time_is_written_in_utc_with_microseconds() -> None:
    assert rfc3339(datetime(2026, 1, 1, tzinfo=UTC)) == "2026-01-01T00:00:00.000000Z"
    assert rfc3339(parse_time("2026-01-01t00:30:00.5+01:30", "at")) == "2025-12-31T23:00:00.500000Z"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("2026-01-01T00:00:00", "timezone_required"),
        ("2026-01-01T00:00", "invalid_time"),
        ("2026-01-01 00:00:00Z", "invalid_time"),
        ("2026-01-01T24:00:00Z", "invalid_time"),
        ("2026-01-01T00:00:00+24:00", "invalid_time"),
        ("2026-01-01T00:00:00+0100", "invalid_time"),
        ("2026-01-01T00:00:00.Z", "invalid_time"),
        ("0000-01-01T00:00:00Z", "invalid_time"),
        ("0001-01-01T00:00:00+01:00", "invalid_time"),
        ("\u0662026-01-01T00:00:00Z", "invalid_time"),
        ("2026-01-01T00:00:00Z\n", "invalid_time"),
        ("2026-01-01T00:00:00." + "1" * 100 + "Z", "invalid_time"),
        ("now", "invalid_time"),
        ("", "invalid_time"),
    ],
)
def test_what_is_no_time(text: str, code: str) -> None:
    with pytest.raises(FieldError) as refused:
        parse_time(text, "run_at")
    assert (refused.value.code, refused.value.pointer) == (code, "/run_at")


# ── Tokens ──


@given(st.uuids(), st.integers(0, 2**31 - 1), st.uuids())
def test_a_token_is_read_again(job: UUID, attempt: int, secret: UUID) -> None:
    lease = Lease(job, attempt, secret)
    text = tokens.format_token(lease)
    assert len(text) <= tokens.MAX_TOKEN
    assert tokens.parse_token(job, text) == lease
    assert tokens.parse_token(uuid4(), text) is None


@given(st.text(max_size=60))
def test_other_text_is_a_ticket_that_nobody_has(text: str) -> None:
    job = uuid4()
    lease = tokens.lease_of(job, text)
    assert (lease.job_id, lease.attempt) == (job, 0)


def test_a_token_has_one_spelling() -> None:
    job, secret = uuid4(), uuid4()
    text = tokens.format_token(Lease(job, 1, secret))
    for other in (text + "=", text[:-1], " " + text, text.replace("-", "+").replace("_", "/") + "\n", text * 2):
        assert tokens.parse_token(job, other) is None
    too_high = Lease(job, 2**31, secret)
    assert tokens.parse_token(job, tokens.format_token(too_high)) is None


# ── Cursors ──


@given(st.text(st.characters(exclude_categories=["Cs"])), st.lists(st.text(), max_size=4))
def test_a_cursor_is_opened_by_its_own_question(position: str, bound: list[str]) -> None:
    sealed = cursors.seal(SECRET, position, *bound)
    assert cursors.unseal(SECRET, sealed, *bound) == position
    for other in ((*bound, ""), ("x", *bound)):
        with pytest.raises(BadCursor):
            cursors.unseal(SECRET, sealed, *other)
    with pytest.raises(BadCursor):
        cursors.unseal(bytes(32), sealed, *bound)


def test_a_cursor_tells_nothing_of_its_place() -> None:
    """A place may count what other tenants do: neither its digits nor their number can be read."""
    sealed = [cursors.seal(SECRET, str(10**digits), "events", "a") for digits in range(15)]
    assert len({len(text) for text in sealed}) == 1
    raw = [urlsafe_b64decode(text + "=" * (-len(text) % 4)) for text in sealed]
    assert not [one for one in raw if b"100" in one]
    assert cursors.seal(SECRET, "1", "a") != cursors.seal(SECRET, "1", "a"), "nor whether it has moved"
    long = "x" * 1_000
    assert cursors.unseal(SECRET, cursors.seal(SECRET, long, "a"), "a") == long


@given(st.text())
def test_other_text_is_no_cursor(text: str) -> None:
    with pytest.raises(BadCursor):
        cursors.unseal(SECRET, text, "jobs", "default")


def test_parts_of_a_question_do_not_run_together() -> None:
    sealed = cursors.seal(SECRET, "1", "ab", "c")
    with pytest.raises(BadCursor):
        cursors.unseal(SECRET, sealed, "a", "bc")


# ── Fingerprints ──

SAME = [
    (b'{"type":"a","payload":{"x":1,"y":2}}', b'{ "payload" : {"y":2, "x":1}, "type":"a" }'),
    (b'{"type":"a"}', b'{"type":"a","idempotency_key":"k"}'),
    (b'{"type":"a"}', b'{"type":"\\u0061","idempotency\\u005fkey":"k"}'),
    (b'{"type":"a","headers":{"traceparent":"x"}}', b'{"type":"a"}'),
    (b'{"type":"a","headers":{"traceparent":"x","b":"1","a":"2"}}', b'{"headers":{"a":"2","b":"1"},"type":"a"}'),
]
OTHER = [
    (b'{"type":"a","payload":1}', b'{"type":"a","payload":1.0}'),
    (b'{"type":"a","payload":-0}', b'{"type":"a","payload":0}'),
    (b'{"type":"a","payload":{"idempotency_key":1}}', b'{"type":"a","payload":{}}'),
    (b'{"type":"a","payload":{"traceparent":1}}', b'{"type":"a","payload":{}}'),
    (b'{"type":"a","headers":{"x":"y"}}', b'{"type":"a"}'),
]


@pytest.mark.parametrize(("one", "two"), SAME)
def test_bodies_that_are_one(one: bytes, two: bytes) -> None:
    assert convert.body_fingerprint(one) == convert.body_fingerprint(two)


@pytest.mark.parametrize(("one", "two"), OTHER)
def test_bodies_that_are_two(one: bytes, two: bytes) -> None:
    assert convert.body_fingerprint(one) != convert.body_fingerprint(two)


def test_a_plain_body_is_hashed_as_promised() -> None:
    expected = hashlib.sha256(b'{"payload":{"a":1.10},"type":"x"}').digest()
    assert convert.body_fingerprint(b'{"type": "x", "payload": {"a": 1.10}, "idempotency_key": "k"}') == expected


# ── Both ends ──

JOB = Job(
    id=uuid4(),
    tenant="default",
    type="a",
    queue="q",
    state=State.RETRYING,
    priority=3,
    payload=b'{"x": 1.10}',
    attempt=2,
    attempts=2,
    max_attempts=5,
    run_at=NOW,
    created_at=NOW,
    updated_at=NOW,
    failures=2,
    lease_lost_count=1,
    timeout=60.0,
    retry=retry_policy("atlas"),
    started_at=NOW,
    last_error=JobError("T", "m", truncated=True),
    idempotency_key="k",
    expires_at=NOW,
    tags=("t",),
    headers={"h": "v"},
    progress=Progress(1, 2, "m", NOW),
    result_sanitized=True,
)
EVENT = Event(EventName.FAILED, "default", uuid4(), 3, NOW, "a", "q", State.RETRYING, 1, "w", {"retry_in_ms": 5})
SPEC = NewSchedule(
    name="n",
    cron="* * * * *",
    type="a",
    payload=b"[1]",
    retry=retry_policy("dispatch"),
    unique=Unique(),
    tags=("x",),
)
WORKER = WorkerInfo("w", "h", 1, "v", ("q",), ("a",), 2, 1, 5, "quiet", NOW, NOW)
LIMITS = Limits(rate_per_second=5.0, burst=1)
QUEUE = QueueStats(
    "q",
    True,
    {State.QUEUED: 3, State.DEAD: 1, State.SUCCEEDED: 3},
    frozenset({State.SUCCEEDED, State.QUEUED}),
    oldest_age_seconds=1.5,
    enqueued_per_minute=2.0,
    finished_per_minute=3.0,
)

SHAPES: list[tuple[Any, Any]] = [
    (objects.job_object(JOB), models.Job),
    (objects.detail_object(JOB, [Attempt(1, NOW, "w")], [EVENT], [LogLine("m")]), models.JobDetail),
    (objects.event_object(EVENT), models.Event),
    (objects.log_object(LogLine("m", "info", 1, 2, NOW)), models.LogEntry),
    (objects.attempt_object(Attempt(1, NOW, "w", NOW, "failed", JobError("t", "m", "b"))), models.Attempt),
    (objects.queue_object(QueueStats("q", False, {State.DEAD: 1})), models.Queue),
    (objects.schedule_object(Schedule(SPEC, NOW, NOW, uuid4())), models.Schedule),
    ({**objects.worker_object(WORKER), "running_jobs": []}, models.Worker),
    (objects.tenant_object(Tenant("t", "T", NOW, limits=LIMITS)), models.Tenant),
    (objects.key_object(ApiKey("k", "t", "K", frozenset(Scope), b"", NOW)), models.ApiKey),
    (objects.action_object(Action(1, NOW, "a", "b", "c", 2, "r")), models.AuditEntry),
]


@pytest.mark.parametrize(("shape", "model"), SHAPES, ids=lambda value: getattr(value, "__name__", ""))
def test_objects_and_models_have_the_same_members(shape: dict[str, Any], model: type[msgspec.Struct]) -> None:
    assert set(shape) == {field.name for field in msgspec.structs.fields(model)}
    read = msgspec.json.decode(msgspec.json.encode(shape), type=model)
    assert msgspec.json.decode(msgspec.json.encode(read)).keys() == shape.keys()


def test_records_survive_the_wire() -> None:
    sent = msgspec.json.encode(objects.job_object(JOB, traceback=True))
    assert records.job_of(msgspec.json.decode(sent, type=models.Job)) == JOB
    sent = msgspec.json.encode(objects.event_object(EVENT))
    assert records.event_of(msgspec.json.decode(sent, type=models.Event)) == EVENT
    schedule = Schedule(SPEC, NOW, NOW, uuid4())
    sent = msgspec.json.encode(objects.schedule_object(schedule))
    again = records.schedule_of(msgspec.json.decode(sent, type=models.Schedule))
    # The states of a unique rule are told in full.
    whole = msgspec.structs.replace(SPEC, unique=Unique(states=Unique().blocking_states))
    assert again == msgspec.structs.replace(schedule, spec=whole)
    sent = msgspec.json.encode({**objects.worker_object(WORKER), "running_jobs": []})
    assert records.worker_of(msgspec.json.decode(sent, type=models.Worker)) == WORKER
    sent = msgspec.json.encode(objects.queue_object(QUEUE))
    assert records.queue_stats_of(msgspec.json.decode(sent, type=models.Queue)) == QUEUE


def test_which_counts_are_capped_is_told_and_read() -> None:
    told = objects.queue_object(QUEUE)
    assert (told["counts_capped"], told["capped"]) == (True, ["queued", "succeeded"])
    # A server of before says only that some are.
    del told["capped"]
    read = msgspec.convert(told, models.Queue)
    assert records.queue_stats_of(read).capped == QUEUE.counts.keys()
    assert records.queue_stats_of(msgspec.structs.replace(read, counts_capped=False)).capped == frozenset()


JOBS = [
    NewJob(type="a"),
    NewJob(
        type="a",
        payload=b"[1.10]",
        queue="q",
        priority=1,
        max_attempts=25,
        run_at=NOW + timedelta(days=1),
        idempotency_key="k",
        key_window=0.0,
        unique=Unique(by="key", key="u", within=5.0, states=frozenset({State.DEAD})),
        timeout=0.0,
        expires_in=9.0,
        tags=("x", "y"),
        headers={"a": "b"},
    ),
    *(NewJob(type="a", delay=1.0, retry=policy, expires_at=NOW) for policy in PRESETS.values()),
]


@pytest.mark.parametrize("job", JOBS)
def test_any_job_can_be_asked_for(job: NewJob) -> None:
    body = msgspec.json.encode(records.enqueue_body(job))
    asked = convert.new_job(msgspec.json.decode(body, type=requests.EnqueueBody), body)
    assert msgspec.structs.replace(asked, fingerprint=None) == msgspec.structs.replace(job, fingerprint=None)


def test_a_schedule_can_be_sent() -> None:
    body = msgspec.json.encode(records.schedule_body(SPEC))
    assert convert.schedule_of(msgspec.json.decode(body, type=requests.ScheduleBody)) == SPEC
