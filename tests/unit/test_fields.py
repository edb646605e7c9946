"""Fields of a new job: the rows of the bad-input corpus (guarantees.md §4) that core decides, and their edges."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeway.core import fields
from ropeway.core.errors import FieldError, PayloadError
from ropeway.core.job import NewJob
from ropeway.core.retry import RetryPolicy
from ropeway.core.unique import Unique

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
#: Fixed offsets: the rules of a real zone know hours that happen twice, or never.
zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


def refused(**asked: Any) -> FieldError:
    with pytest.raises(FieldError) as caught:
        NewJob(**{"type": "a", **asked})
    return caught.value


def accepted(**asked: Any) -> NewJob:
    return NewJob(**{"type": "a", **asked})


@pytest.mark.parametrize("number", [0, -1, 26, 1001, 3.5, 3.0, "3", True, None, 10**400])
def test_51_attempts(number: object) -> None:
    error = refused(max_attempts=number)
    assert (error.code, error.pointer) == ("invalid_field", "/max_attempts")


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 0, 10, 5.0, "5", True, None])
def test_52_priority(number: object) -> None:
    error = refused(priority=number)
    assert (error.code, error.pointer) == ("invalid_field", "/priority")


def test_the_edges_of_attempts_and_priority() -> None:
    assert [accepted(max_attempts=n).max_attempts for n in (1, 25)] == [1, 25]
    assert [accepted(priority=n).priority for n in (1, 9)] == [1, 9]


def test_priorities_have_names() -> None:
    assert {name: fields.parse_priority(name) for name in fields.PRIORITY_NAMES} == fields.PRIORITY_NAMES
    assert fields.parse_priority(4) == 4
    for unknown in ("urgent", "5", True, 0):
        with pytest.raises(FieldError) as caught:
            fields.parse_priority(unknown)
        assert "critical" in (caught.value.hint or "")


def test_53_a_field_that_does_not_exist() -> None:
    with pytest.raises(TypeError, match="tenant_id"):
        accepted(tenant_id="other")


@pytest.mark.parametrize(
    "name",
    ["", "__import__('os')", "a/../b", "a b", "a" * 129, "a\n", "a\0", "ä", "\ud800", 5, None, True, ["a"], b"a"],
)
@pytest.mark.parametrize("field", ["type", "queue"])
def test_55_names(field: str, name: object) -> None:
    error = refused(**{field: name})
    assert (error.code, error.pointer) == ("invalid_field", f"/{field}")


@pytest.mark.parametrize(
    "name", ["a", "a" * 128, "mail.send", "a:b-c_d.E9", "..", "__import__", "nobody-handles-this"]
)
def test_56_any_name_of_the_alphabet_is_a_name(name: str) -> None:
    job = accepted(type=name, queue=name)
    assert (job.type, job.queue) == (name, name)


def test_57_no_policy_can_overflow() -> None:
    with pytest.raises(FieldError) as caught:
        RetryPolicy(base=1e308, factor=10.0)
    assert caught.value.pointer == "/retry/base"
    with pytest.raises(FieldError):
        RetryPolicy(cap=10**400)
    assert refused(retry="default").pointer == "/retry"


@pytest.mark.parametrize("field", ["run_at", "expires_at"])
class TestTimes:
    def test_63_a_time_without_a_zone(self, field: str) -> None:
        error = refused(**{field: NOON.replace(tzinfo=None)})
        assert (error.code, error.pointer) == ("timezone_required", f"/{field}")

    @pytest.mark.parametrize(
        "text", ["2026-01-01", "2026-W01-1", "20260101T000000Z", "2026-06-30T23:59:60Z", "infinity", 1_767_268_800]
    )
    def test_64_65_68_text_is_no_time(self, field: str, text: object) -> None:
        error = refused(**{field: text})
        assert (error.code, error.pointer) == ("invalid_time", f"/{field}")

    @pytest.mark.parametrize(
        "edge",
        [
            datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(timedelta(hours=-14))),
            datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
        ],
    )
    def test_68_what_utc_cannot_write(self, field: str, edge: datetime) -> None:
        error = refused(**{field: edge})
        assert (error.code, error.pointer) == ("invalid_time", f"/{field}")

    def test_68_ten_years_ahead_and_no_more(self, field: str) -> None:
        fields.check_horizon(NOON + fields.HORIZON, field, NOON)
        with pytest.raises(FieldError) as caught:
            fields.check_horizon(NOON + fields.HORIZON + timedelta(microseconds=1), field, NOON)
        assert (caught.value.code, caught.value.pointer) == ("invalid_time", f"/{field}")

    def test_70_the_past_is_fine(self, field: str) -> None:
        long_ago = datetime(1970, 1, 1, tzinfo=UTC)
        assert getattr(accepted(**{field: long_ago}), field) == long_ago


@given(st.datetimes(timezones=zones, min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1)))  # noqa: DTZ001 - Hypothesis wants bounds without a zone
def test_a_time_is_the_same_instant_in_utc(at: datetime) -> None:
    checked = fields.check_time(at, "run_at")
    assert checked == at
    assert checked.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    "seconds", [-1, -0.001, float("nan"), float("inf"), 10**400, "1", True, fields.HORIZON_SECONDS + 1]
)
@pytest.mark.parametrize("field", ["delay", "expires_in", "key_window", "timeout"])
def test_seconds(field: str, seconds: object) -> None:
    error = refused(**{field: seconds})
    assert (error.code, error.pointer) == ("invalid_field", f"/{field}")


def test_the_edges_of_seconds() -> None:
    assert accepted(delay=0).delay == 0
    assert accepted(delay=fields.HORIZON_SECONDS).delay == fields.HORIZON_SECONDS
    assert accepted(key_window=0).key_window == 0
    assert refused(expires_in=0).pointer == "/expires_in"
    assert [accepted(timeout=t).timeout for t in (0, 1, 86_400.0)] == [0, 1, 86_400.0]
    for timeout in (0.5, 86_400.5, False, None):
        assert refused(timeout=timeout).pointer == "/timeout"


@pytest.mark.parametrize(
    "key", ["", "k" * 513, "ä" * 257, "a\nb", "a\tb", "a\0", "\x7f", "\ud800", 5, True, b"k", ["k"]]
)
def test_75_keys(key: object) -> None:
    error = refused(idempotency_key=key)
    assert (error.code, error.pointer) == ("invalid_field", "/idempotency_key")
    with pytest.raises(FieldError) as caught:
        Unique(by="key", key=key)  # type: ignore[arg-type]
    assert caught.value.pointer == "/unique/key"


@pytest.mark.parametrize("key", ["k", "k" * 512, "ä" * 256, "order 7/ünïcode \N{PARTY POPPER}"])
def test_75_any_printable_text_of_512_bytes_is_a_key(key: str) -> None:
    assert accepted(idempotency_key=key).idempotency_key == key


ID = "0198c0de-0000-7000-8000-00000000abcd"


@pytest.mark.parametrize(
    "text",
    [
        "not-a-uuid",
        "",
        ID.upper(),
        f"{{{ID}}}",
        f"urn:uuid:{ID}",
        ID.replace("-", ""),
        f"{ID}\n",
        f" {ID}",
        ID[:-1],
        f"{ID}0",
        ID.replace("0", "٠"),
        UUID(ID),
        None,
    ],
)
def test_82_ids_have_one_form(text: object) -> None:
    with pytest.raises(FieldError) as caught:
        fields.parse_id(text)  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.pointer) == ("invalid_id", "/id")


@given(st.uuids())
def test_82_the_canonical_form_is_read_back(id: UUID) -> None:
    assert fields.parse_id(str(id)) == id


@pytest.mark.parametrize("tags", ["abc", 5, (1,), ("",), ("a" * 129,), ("a\n",), ("a",) * 17, {"a": 1}])
def test_tags(tags: object) -> None:
    assert refused(tags=tags).pointer == "/tags"


@pytest.mark.parametrize(
    "headers",
    [
        [("a", "b")],
        {"a": 1},
        {"": "b"},
        {1: "b"},
        {"a": "\0"},
        {"a": "\ud800"},
        {str(n): "" for n in range(33)},
        {"a": "b" * 8_192},
        {"a": "ä" * 4_096},
    ],
)
def test_headers(headers: object) -> None:
    assert refused(headers=headers).pointer == "/headers"


def test_the_edges_of_tags_and_headers() -> None:
    assert len(accepted(tags=("t" * 128,) * 16).tags) == 16
    assert accepted(headers={"a": "b" * 8_191}).headers == {"a": "b" * 8_191}
    assert len(accepted(headers={str(n): "x\ny" for n in range(32)}).headers) == 32


@pytest.mark.parametrize("payload", ["{}", None, {}, bytearray(b"{}"), memoryview(b"{}")])
def test_a_payload_is_bytes(payload: object) -> None:
    assert refused(payload=payload).pointer == "/payload"


def test_a_payload_is_json() -> None:
    with pytest.raises(PayloadError):
        accepted(payload=b"{")


@pytest.mark.parametrize("number", [True, 1.0, "1", None, 0, 4])
def test_an_integer_is_an_integer(number: object) -> None:
    with pytest.raises(FieldError) as caught:
        fields.check_integer(number, "count", 1, 3)
    assert caught.value.pointer == "/count"


@pytest.mark.parametrize("text", ["", "a" * 9, "a\nb", "\0", "\ud800", 5, None])
def test_text(text: object) -> None:
    with pytest.raises(FieldError):
        fields.check_text(text, "worker_id", limit=8)  # type: ignore[arg-type]
    assert fields.check_text("host ü 1", "worker_id", limit=8) == "host ü 1"
