"""A new job: its defaults, what excludes what, and that nothing about it can be changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from ropeway.core.errors import FieldError
from ropeway.core.job import Alike, Job, NewJob, Progress
from ropeway.core.states import State

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_defaults() -> None:
    job = NewJob(type="t")
    assert msgspec.structs.asdict(job) == {
        "type": "t",
        "payload": b"{}",
        "queue": "default",
        "priority": 5,
        "max_attempts": 5,
        "run_at": None,
        "delay": None,
        "idempotency_key": None,
        "key_window": None,
        "fingerprint": None,
        "unique": None,
        "retry": None,
        "timeout": 3_600.0,
        "expires_at": None,
        "expires_in": None,
        "tags": (),
        "headers": {},
    }


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"run_at": NOON, "delay": 1.0}, "/run_at"),
        ({"run_at": NOON, "delay": 0}, "/run_at"),
        ({"expires_at": NOON, "expires_in": 1.0}, "/expires_at"),
    ],
)
def test_a_time_and_a_duration_exclude_one_another(fields: dict[str, Any], pointer: str) -> None:
    with pytest.raises(FieldError) as caught:
        NewJob(type="t", **fields)
    assert (caught.value.code, caught.value.pointer) == ("conflicting_fields", pointer)


def test_a_start_and_an_expiry_may_be_given_either_way() -> None:
    for start in ({"run_at": NOON}, {"delay": 5.0}):
        for expiry in ({"expires_at": NOON}, {"expires_in": 5.0}):
            NewJob(type="t", **start, **expiry)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [NewJob, Job, Progress])
def test_records_are_frozen(kind: type[msgspec.Struct]) -> None:
    assert kind.__struct_config__.frozen


def test_a_job_cannot_be_made_valid_and_then_changed() -> None:
    job = NewJob(type="t")
    with pytest.raises(AttributeError):
        job.priority = 99  # type: ignore[misc]
    with pytest.raises(FieldError):
        msgspec.structs.replace(job, priority=99)


def test_decoding_checks_too() -> None:
    with pytest.raises(FieldError):
        msgspec.convert({"type": "t", "priority": 99}, NewJob)


def test_the_payload_is_kept_as_it_came() -> None:
    payload = b'{ "b": 1.10, "a": -0, "n": 9007199254740993, "e": [] }'
    assert NewJob(type="t", payload=payload).payload == payload


@pytest.mark.parametrize("state", State)
def test_the_time_of_death_is_the_end_of_a_dead_job(state: State) -> None:
    job = Job(
        id=UUID(int=1),
        tenant="default",
        type="t",
        queue="q",
        state=state,
        priority=5,
        payload=b"{}",
        attempt=1,
        attempts=1,
        max_attempts=1,
        run_at=NOON,
        created_at=NOON,
        updated_at=NOON,
        finished_at=NOON + timedelta(hours=1),
    )
    assert job.dead_at == (NOON + timedelta(hours=1) if state is State.DEAD else None)


def test_jobs_that_are_alike_are_a_sequence_of_jobs() -> None:
    model = NewJob("t", b"0", queue="q", tags=("a",))
    jobs = Alike(model, [b"1", b"2", b"3"])
    one_by_one = [NewJob("t", b"%d" % n, queue="q", tags=("a",)) for n in (1, 2, 3)]
    assert (list(jobs), len(jobs), jobs[-1], jobs[1:]) == (one_by_one, 3, one_by_one[-1], one_by_one[1:])
    assert jobs[0] is next(iter(jobs))
    assert model.payload == b"0"
    assert not Alike(model, [])
