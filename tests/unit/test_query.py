"""What may be asked of an engine, and what each question means."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeway.core import query
from ropeway.core.errors import BadCursor, FieldError
from ropeway.core.job import Job
from ropeway.core.payload import JobError
from ropeway.core.query import JobFilter, matches
from ropeway.core.states import DeadReason, State

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
INSTANT = timedelta(microseconds=1)

JOB = Job(
    id=UUID(int=7),
    tenant="default",
    type="mail.send",
    queue="mail",
    state=State.DEAD,
    priority=5,
    payload=b"{}",
    attempt=3,
    attempts=3,
    max_attempts=3,
    run_at=NOON,
    created_at=NOON,
    updated_at=NOON + timedelta(hours=1),
    finished_at=NOON + timedelta(hours=1),
    locked_by="host-1",
    last_error=JobError("smtplib.SMTPError", "550 no such user"),
    dead_reason=DeadReason.MAX_ATTEMPTS,
    idempotency_key="order-7",
    tags=("nightly", "eu"),
)


def taken(**where: Any) -> bool:
    return matches(JOB, JobFilter(**where))


def job(**fields: Any) -> Job:
    return msgspec.structs.replace(JOB, **fields)


# ── filters ──


def test_an_empty_filter_takes_every_job() -> None:
    assert taken()
    assert matches(job(last_error=None, finished_at=None, locked_by=None, idempotency_key=None), JobFilter())


FITTING: dict[str, Any] = {
    "queue": "mail",
    "type": "mail.send",
    "states": frozenset({State.DEAD}),
    "idempotency_key": "order-7",
    "worker_id": "host-1",
    "error": "no such",
    "reason": DeadReason.MAX_ATTEMPTS,
    "created_after": NOON,
    "created_before": NOON + INSTANT,
    "finished_after": NOON + timedelta(hours=1),
    "finished_before": NOON + timedelta(hours=1) + INSTANT,
    "tag": "eu",
    "priority": JOB.priority,
}
OTHER: dict[str, Any] = {
    "queue": "mai",
    "type": "mail",
    "states": frozenset({State.SUCCEEDED, State.RETRYING}),
    "idempotency_key": "order-70",
    "worker_id": "host-2",
    "error": "NO SUCH",
    "reason": DeadReason.REJECTED,
    "created_after": NOON + INSTANT,
    "created_before": NOON,
    "finished_after": NOON + timedelta(hours=1) + INSTANT,
    "finished_before": NOON + timedelta(hours=1),
    "tag": "e",
    "priority": JOB.priority + 1,
}


def test_every_field_is_tried() -> None:
    assert set(FITTING) == set(OTHER) == set(JobFilter.__struct_fields__)


@pytest.mark.parametrize("field", FITTING)
def test_a_field_takes_what_fits_and_leaves_what_does_not(field: str) -> None:
    assert taken(**{field: FITTING[field]})
    assert not taken(**{field: OTHER[field]})


@pytest.mark.parametrize("field", FITTING)
def test_every_field_narrows(field: str) -> None:
    assert taken(**FITTING)
    assert not taken(**{**FITTING, field: OTHER[field]})


def test_one_of_several_states() -> None:
    assert taken(states=frozenset({State.SUCCEEDED, State.DEAD}))
    assert not taken(states=frozenset())


@pytest.mark.parametrize("part", ["550 no such user", "user", "SMTPError", "smtplib", " "])
def test_an_error_is_found_by_a_part_of_its_message_or_type(part: str) -> None:
    assert taken(error=part)


@pytest.mark.parametrize("part", ["smtperror", "550.*user", "%", "_", "SMTPError550", "userx"])
def test_an_error_is_plain_text_in_its_own_case(part: str) -> None:
    assert not taken(error=part)


def test_the_message_and_the_type_are_not_read_as_one_text() -> None:
    broken = job(last_error=JobError("ab", "cd"))
    assert not matches(broken, JobFilter(error="bc"))
    assert not matches(broken, JobFilter(error="da"))


def test_a_job_without_the_fact_is_not_taken() -> None:
    bare = job(last_error=None, finished_at=None, locked_by=None, idempotency_key=None, dead_reason=None)
    for field in ("error", "finished_after", "finished_before", "worker_id", "idempotency_key", "reason"):
        assert not matches(bare, JobFilter(**{field: FITTING[field]})), field


def test_times_are_half_open() -> None:
    first, second = JobFilter(created_before=NOON), JobFilter(created_after=NOON)
    for created in (NOON - INSTANT, NOON, NOON + INSTANT):
        made = job(created_at=created)
        assert matches(made, first) != matches(made, second), created


def test_times_are_instants_whatever_their_zone() -> None:
    there = NOON.astimezone(msgspec.convert("2026-01-01T00:00:00+09:00", datetime).tzinfo)
    assert taken(created_after=there)
    assert not taken(created_before=there)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("queue", ""),
        ("queue", "a b"),
        ("type", "' OR 1=1"),
        ("type", "id; DROP TABLE jobs--"),
        ("error", ""),
        ("error", "a" * 257),
        ("error", "\0"),
        ("idempotency_key", ""),
        ("idempotency_key", "k" * 513),
        ("worker_id", "a\n"),
        ("worker_id", "a" * 129),
        ("tag", ""),
        ("tag", "a" * 129),
        ("created_after", datetime(2026, 1, 1)),  # noqa: DTZ001 - the point
        ("created_before", "2026-01-01T00:00:00Z"),
        ("finished_after", datetime(2026, 1, 1)),  # noqa: DTZ001
        ("finished_before", 5),
    ],
)
def test_what_no_filter_may_ask(field: str, value: object) -> None:
    with pytest.raises(FieldError) as caught:
        JobFilter(**{field: value})
    assert caught.value.pointer == f"/{field}"


# ── states by name ──


@pytest.mark.parametrize("state", State)
def test_a_state_by_its_name(state: State) -> None:
    assert query.parse_state(state.value) is state


@pytest.mark.parametrize(
    ("word", "state"),
    [("pending", State.QUEUED), ("failed", State.RETRYING), ("dlq", State.DEAD), ("completed", State.SUCCEEDED)],
)
def test_a_state_by_an_older_word(word: str, state: State) -> None:
    assert query.parse_state(word) is state


def test_no_older_word_hides_a_state() -> None:
    assert not set(query.STATE_ALIASES) & {state.value for state in State}


@pytest.mark.parametrize("word", ["", "QUEUED", "pruned", "x" * 10_000])
def test_other_words_are_refused_in_few_words(word: str) -> None:
    with pytest.raises(FieldError) as caught:
        query.parse_state(word)
    assert caught.value.pointer == "/status"
    assert len(str(caught.value)) < 300


# ── pages ──


@pytest.mark.parametrize("limit", [0, -1, 501, True, 1.0, "5", None])
def test_page_sizes(limit: object) -> None:
    with pytest.raises(FieldError):
        query.check_page(limit)  # type: ignore[arg-type]
    assert [query.check_page(edge) for edge in (1, 500)] == [1, 500]


@given(st.uuids())
def test_a_position_in_a_list_by_id(id: UUID) -> None:
    assert query.parse_id_position(query.id_position(id)) == id


@given(st.uuids(), st.datetimes(datetime(1970, 1, 1), datetime(2500, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001 - Hypothesis wants bounds without a zone
def test_a_position_in_a_list_of_the_dead(id: UUID, finished: datetime) -> None:
    position = query.death_position(job(id=id, finished_at=finished))
    assert query.parse_death_position(position) == (finished, id)


def test_a_job_without_a_time_of_death_goes_by_its_last_change() -> None:
    position = query.death_position(job(finished_at=None))
    assert query.parse_death_position(position) == (JOB.updated_at, JOB.id)


HEX = JOB.id.hex


@pytest.mark.parametrize(
    "position", ["", "x", HEX[:-1], HEX + "0", f"{HEX}\n", str(JOB.id), f"0x{HEX[2:]}", "٠" * 32, "A" * 32]
)
def test_a_forged_position_by_id(position: str) -> None:
    with pytest.raises(BadCursor):
        query.parse_id_position(position)


@pytest.mark.parametrize(
    "position",
    [
        "",
        "-",
        HEX,
        f"-{HEX}",
        f"1_0-{HEX}",
        f"+1-{HEX}",
        f"1.5-{HEX}",
        f"{'9' * 18}-{HEX}",
        "5-",
        f"5-{HEX}\n",
        f"٣-{HEX}",
    ],
)
def test_a_forged_position_among_the_dead(position: str) -> None:
    with pytest.raises(BadCursor):
        query.parse_death_position(position)


def test_the_last_position_among_the_dead_is_a_time() -> None:
    finished, _ = query.parse_death_position(f"{'9' * 17}-{HEX}")
    assert finished.year > 3_000
