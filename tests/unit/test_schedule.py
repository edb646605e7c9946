"""Schedules: what may be declared, the job each instant makes, and who is told of one that cannot be fired."""

from __future__ import annotations

from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from ropeway.core.errors import ConfigurationError, EngineError, FieldError, Unavailable
from ropeway.core.job import NewJob
from ropeway.core.retry import RetryPolicy
from ropeway.core.schedule import JobOptions, NewSchedule, job_for
from ropeway.core.states import State
from ropeway.core.unique import Unique
from ropeway.engines import firing
from ropeway.engines.firing import MOST_TOLD, TOLD_AGAIN_AFTER, Complaints

AT = datetime(2026, 3, 1, 4, tzinfo=UTC)
OPTIONS: dict[str, Any] = {
    "timeout": 30.0,
    "retry": RetryPolicy(base=1.0),
    "unique": Unique(within=60.0),
    "expires_in": 600.0,
    "tags": ("a", "b"),
    "headers": {"team": "x"},
}


def nightly(**fields: Any) -> NewSchedule:
    return NewSchedule("nightly", "0 3 * * *", "report", **fields)


# ── What may be declared ──


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"timeout": -1}, "timeout must be a number of seconds"),
        ({"timeout": False}, "timeout must be a number of seconds"),
        ({"retry": "default"}, "retry must be a RetryPolicy"),
        ({"unique": True}, "unique must be a Unique"),
        ({"expires_in": 0}, "expires_in must be a number of seconds"),
        ({"tags": "abc"}, "tags are a list of strings"),
        ({"tags": ("",)}, "tags must be 1 to 128 characters"),
        ({"headers": {"a": 1}}, "headers are pairs of strings"),
        ({"headers": {str(n): "" for n in range(33)}}, "at most 32 headers$"),
        ({"headers": {str(n): "" for n in range(31)}}, "at most 32 headers, with the two that the schedule adds"),
        ({"headers": {"a": "x" * 8_150}}, "8192 bytes in all, with the two that the schedule adds"),
        ({"max_attempts": 0}, "max_attempts must be an integer from 1 to 25"),
        ({"priority": 10}, "priority must be an integer from 1 to 9"),
        ({"queue": ""}, "queue must be"),
        ({"missed": "never"}, "missed must be"),
        ({"tz": "Mars"}, "unknown time zone 'Mars'"),
    ],
)
def test_what_no_job_could_have_is_refused_at_the_declaration(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(FieldError, match=told) as caught:
        nightly(**fields)
    assert caught.value.pointer == f"/{next(iter(fields))}"


def test_as_many_headers_as_fit_can_be_fired() -> None:
    spec = nightly(headers={str(n): "" for n in range(30)})
    assert len(job_for(spec, AT.replace(microsecond=123456)).headers) == 32


def test_tags_and_headers_have_one_form() -> None:
    spec = nightly(tags=["a"], headers=MappingProxyType({"x": "1"}))
    assert spec == nightly(tags=("a",), headers={"x": "1"})
    assert msgspec.json.decode(msgspec.json.encode(spec), type=NewSchedule) == spec
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=NewSchedule) == spec


# ── The job of an instant ──


def test_a_job_is_as_the_schedule_says() -> None:
    spec = nightly(queue="q", priority=2, max_attempts=3, payload=b"[1]", **OPTIONS)
    headers = {"team": "x", "ropeway-schedule": "nightly"}
    expected = NewJob("report", b"[1]", "q", 2, 3, **{**OPTIONS, "headers": headers})
    assert job_for(spec, None) == expected
    assert job_for(spec, AT).headers == {**headers, "ropeway-scheduled-for": "2026-03-01T04:00:00+00:00"}


def test_a_plain_schedule_makes_a_plain_job() -> None:
    assert job_for(nightly(), None) == NewJob("report", headers={"ropeway-schedule": "nightly"})
    assert nightly().options() == JobOptions()
    assert nightly(**OPTIONS).options() == JobOptions(**OPTIONS)


def test_nobody_can_pretend_to_be_another_schedule() -> None:
    assert job_for(nightly(headers={"ropeway-schedule": "other"}), None).headers == {"ropeway-schedule": "nightly"}


# ── What was declared, as text ──


def test_a_declaration_without_options_reads_as_it_always_did() -> None:
    """Databases hold this text: another one would look like a change of the code, and undo what operators did."""
    assert nightly(
        priority=2, max_attempts=3, missed="all", tz="Europe/Paris", payload=b'{"a":1}'
    ).definition() == ('["0 3 * * *","Europe/Paris","report","default","{\\"a\\":1}",2,3,"all"]')
    assert nightly(timeout=3600, retry=None, tags=[], headers={}).definition() == nightly().definition()


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_part_of_the_declaration(name: str) -> None:
    assert nightly(**{name: OPTIONS[name]}).definition() != nightly().definition()


def test_the_text_does_not_depend_on_the_way_a_value_came() -> None:
    states = frozenset({State.QUEUED, State.RUNNING, State.RETRYING})
    one = nightly(
        timeout=30,
        retry=RetryPolicy(base=5, factor=2.0),
        unique=Unique(within=60, states=states),
        headers={"a": "1", "b": "2"},
    )
    other = nightly(
        timeout=30.0, retry=RetryPolicy(), unique=Unique(within=60.0, states=states), headers={"b": "2", "a": "1"}
    )
    assert one.definition() == other.definition()
    travelled = msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=NewSchedule)
    assert travelled.definition() == one.definition()


# ── Those that cannot be fired ──


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "ropeway.schedules"]


def test_it_is_told_once_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    complaints = Complaints(clock)
    error = FieldError("unknown time zone 'Mars'", pointer="/tz", hint="a name such as UTC")
    for _ in range(100):
        complaints.tell("default", "nightly", error)
    (line,) = lines(caplog)
    assert line == (
        "schedule nightly of tenant default makes no jobs here: unknown time zone 'Mars' "
        "(install the time zone database here, the package tzdata; or replace or delete the schedule)"
    )
    clock.now += TOLD_AGAIN_AFTER - 1
    complaints.tell("default", "nightly", error)
    assert len(lines(caplog)) == 1
    clock.now += 1
    complaints.tell("default", "nightly", error)
    complaints.tell("default", "nightly", error)
    assert len(lines(caplog)) == 2


def test_another_reason_schedule_or_tenant_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(Clock())
    for tenant, name, error in [
        ("a", "x", ValueError("one")),
        ("a", "x", ValueError("two\nlines")),
        ("a", "y", ValueError("one")),
        ("b", "x", ValueError("one")),
        ("a", "x", ValueError("one")),
    ]:
        complaints.tell(tenant, name, error)
    advice = "(replace or delete it; it is tried again until then)"
    assert lines(caplog) == [
        f"schedule x of tenant a makes no jobs here: ValueError: one {advice}",
        f"schedule x of tenant a makes no jobs here: ValueError: two lines {advice}",
        f"schedule y of tenant a makes no jobs here: ValueError: one {advice}",
        f"schedule x of tenant b makes no jobs here: ValueError: one {advice}",
    ]
    assert all(record.exc_info is None for record in caplog.records)


def test_what_is_remembered_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(Clock())
    for n in range(MOST_TOLD + 1):
        complaints.tell("a", str(n), ValueError())
    caplog.clear()
    complaints.tell("a", str(MOST_TOLD), ValueError())
    assert not lines(caplog)
    complaints.tell("a", "0", ValueError())
    assert len(lines(caplog)) == 1, "the oldest was forgotten"


def test_one_that_was_asked_for_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigurationError) as caught, firing.reading("nightly"):
        raise msgspec.ValidationError("Object missing required field `cron`")
    assert str(caught.value) == (
        "the schedule 'nightly' cannot be read here: ValidationError: Object missing required field `cron` "
        "(replace or delete it; it is tried again until then)"
    )


def test_a_store_that_is_away_is_not_the_schedules_fault() -> None:
    away = Unavailable("gone")
    with pytest.raises(EngineError) as caught, firing.reading("nightly"):
        raise away
    assert caught.value is away
