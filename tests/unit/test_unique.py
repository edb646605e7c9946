"""Idempotency and unique keys: what counts as the same request, and how long a key holds."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ropeway.core.errors import FieldError
from ropeway.core.job import NewJob
from ropeway.core.retry import PRESETS, RetryPolicy
from ropeway.core.states import LIVE_STATES, TERMINAL_STATES, State
from ropeway.core.unique import Unique, key_is_free, key_until, unique_key

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text('aä\N{PARTY POPPER}"\\/', max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3),
    max_leaves=8,
)


def fingerprint(**fields: Any) -> bytes:
    return NewJob(**{"type": "t", **fields}).body_fingerprint()


# ── fingerprints ──


def shuffled(value: Any) -> Any:
    """The same JSON with the keys of every object the other way round."""
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


@given(json_values)
def test_order_of_keys_spaces_and_escapes_do_not_count(value: Any) -> None:
    plain = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    other = json.dumps(shuffled(value), indent=3, ensure_ascii=True).encode()
    assert fingerprint(payload=plain) == fingerprint(payload=other)


@given(json_values, json_values)
def test_another_payload_is_another_request(one: Any, other: Any) -> None:
    def text(value: Any) -> str:
        return json.dumps(value, sort_keys=True)

    assume(text(one) != text(other))
    assert fingerprint(payload=text(one).encode()) != fingerprint(payload=text(other).encode())


@pytest.mark.parametrize(
    ("one", "other"), [("1", "1.0"), ("1.0", "1.00"), ("0", "-0"), ("100", "1e2"), ("1e2", "1E2")]
)
def test_numbers_count_as_they_are_written(one: str, other: str) -> None:
    payloads = [f'{{"n":{number}}}'.encode() for number in (one, other)]
    assert fingerprint(payload=payloads[0]) != fingerprint(payload=payloads[1])


def test_the_order_of_a_list_counts() -> None:
    assert fingerprint(payload=b"[1,2]") != fingerprint(payload=b"[2,1]")


OTHERS: dict[str, Any] = {
    "type": "other",
    "queue": "other",
    "priority": 4,
    "max_attempts": 4,
    "run_at": NOW,
    "delay": 1.0,
    "retry": RetryPolicy(base=1.0),
    "timeout": 60.0,
    "expires_at": NOW,
    "expires_in": 1.0,
    "tags": ("a",),
    "headers": {"a": "b"},
    "unique": Unique(),
    "payload": b"[]",
}


@pytest.mark.parametrize("field", OTHERS)
def test_every_other_field_counts(field: str) -> None:
    assert fingerprint(**{field: OTHERS[field]}) != fingerprint()


def test_no_field_is_forgotten() -> None:
    apart = {"idempotency_key", "key_window", "fingerprint"}
    assert set(OTHERS) == set(NewJob.__struct_fields__) - apart


def test_no_two_fields_are_taken_for_one_another() -> None:
    prints = [fingerprint(**{field: value}) for field, value in OTHERS.items()]
    assert len(set(prints)) == len(prints)


def test_a_default_that_is_said_is_still_the_default() -> None:
    assert fingerprint(priority=5, queue="default", timeout=3_600, tags=(), payload=b" { } ") == fingerprint()


@pytest.mark.parametrize(
    "rule", [Unique(by="key", key="k"), Unique(within=5.0), Unique(states=frozenset({State.DEAD}))]
)
def test_each_rule_of_uniqueness_counts(rule: Unique) -> None:
    assert fingerprint(unique=rule) != fingerprint(unique=Unique())


def test_the_key_and_its_window_are_not_the_body() -> None:
    assert fingerprint(idempotency_key="k", key_window=5.0) == fingerprint()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"delay": 5}, {"delay": 5.0}),
        ({"timeout": 7}, {"timeout": 7.0}),
        ({"expires_in": 9}, {"expires_in": 9.0}),
        ({"unique": Unique(within=5)}, {"unique": Unique(within=5.0)}),
        ({"retry": RetryPolicy(base=1, cap=9)}, {"retry": RetryPolicy(base=1.0, cap=9.0)}),
        (
            {"run_at": datetime(2030, 1, 1, 12, tzinfo=UTC)},
            {"run_at": datetime(2030, 1, 1, 14, tzinfo=timezone(timedelta(hours=2)))},
        ),
    ],
)
def test_equal_values_are_the_same_body_however_they_are_given(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert fingerprint(**one) == fingerprint(**other)


def test_a_fingerprint_without_the_time() -> None:
    job = NewJob("t", delay=5.0, priority=1)
    assert job.fields_fingerprint(timeless=True) == NewJob("t", priority=1).body_fingerprint()
    assert job.fields_fingerprint(timeless=True) != NewJob("t").body_fingerprint()


def test_a_fingerprint_that_is_given_is_kept() -> None:
    assert fingerprint(fingerprint=b"as it came") == b"as it came"


def test_it_stays_the_same_from_release_to_release() -> None:
    """Stored keys outlive an upgrade: a changed fingerprint would refuse every repeated request as a mismatch."""
    assert fingerprint() == hashlib.sha256(b'{"queue":"default","type":"t"}\n{}').digest()
    said = fingerprint(payload=b'{"b": 1.0, "a": []}', queue="q", delay=5.0)
    assert said == hashlib.sha256(b'{"delay":5.0,"queue":"q","type":"t"}\n{"a":[],"b":1.0}').digest()


@pytest.mark.parametrize(
    "policy",
    [RetryPolicy(), RetryPolicy(base=0.2, cap=1.0), RetryPolicy(factor=3.0, shape="above"), *PRESETS.values()],
)
def test_a_retry_policy_is_the_same_however_it_was_read(policy: RetryPolicy) -> None:
    """A server that reads it from JSON has other objects, and all of them: what counts is their value."""
    whole = {name: getattr(policy, name) for name in RetryPolicy.__struct_fields__}
    read = msgspec.json.decode(msgspec.json.encode(whole), type=RetryPolicy)
    assert fingerprint(retry=read) == fingerprint(retry=policy)
    assert fingerprint(retry=read) != fingerprint(retry=RetryPolicy(base=7.0))


def test_a_retry_policy_stays_the_same_from_release_to_release() -> None:
    said = fingerprint(retry=RetryPolicy(base=1, cap=60.0))
    assert said == hashlib.sha256(b'{"queue":"default","retry":{"base":1.0,"cap":60.0},"type":"t"}\n{}').digest()


# ── unique keys ──


def key(**fields: Any) -> str | None:
    return unique_key(NewJob(**{"type": "t", "unique": Unique(), **fields}))


def test_a_job_that_is_not_unique_has_no_key() -> None:
    assert key(unique=None) is None


def test_by_args_is_type_queue_and_payload() -> None:
    assert key(payload=b'{"a":1,"b":2}') == key(payload=b'{ "b": 2, "a": 1 }', priority=1, delay=5.0)
    assert len({key(), key(type="u"), key(queue="q"), key(payload=b"[]")}) == 4


def test_by_key_is_type_and_key() -> None:
    by_key = Unique(by="key", key="k")
    assert key(unique=by_key) == key(unique=by_key, queue="q", payload=b"[]")
    others = {key(unique=by_key, type="u"), key(unique=Unique(by="key", key="l")), key()}
    assert len(others | {key(unique=by_key)}) == 4


def test_the_window_and_states_do_not_make_another_key() -> None:
    assert key(unique=Unique(within=5.0, states=frozenset({State.DEAD}))) == key()


# ── when an existing job keeps a new one out ──


@pytest.mark.parametrize("state", State)
def test_live_jobs_block_by_default(state: State) -> None:
    long_ago = NOW - timedelta(days=900)
    assert Unique().hit(state=state, enqueued_at=long_ago, now=NOW) == (state in LIVE_STATES)


@pytest.mark.parametrize("state", State)
def test_within_a_window_success_blocks_too(state: State) -> None:
    rule = Unique(within=60.0)
    blocks = state in LIVE_STATES or state is State.SUCCEEDED
    assert rule.hit(state=state, enqueued_at=NOW - timedelta(seconds=59.999), now=NOW) == blocks
    assert not rule.hit(state=state, enqueued_at=NOW - timedelta(seconds=60), now=NOW)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("within", [None, 60.0])
def test_states_that_are_named_are_the_only_ones(state: State, within: float | None) -> None:
    rule = Unique(states=frozenset({State.QUEUED, State.DEAD}), within=within)
    assert rule.hit(state=state, enqueued_at=NOW, now=NOW) == (state in {State.QUEUED, State.DEAD})


def test_a_pruned_job_blocks_nothing() -> None:
    for rule in (Unique(), Unique(within=60.0), Unique(states=frozenset(State))):
        assert not rule.hit(state=None, enqueued_at=NOW, now=NOW)


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"by": "payload"}, "/unique/by"),
        ({"by": "key"}, "/unique/key"),
        ({"by": "args", "key": "k"}, "/unique/key"),
        ({"by": "key", "key": ""}, "/unique/key"),
        ({"within": 0}, "/unique/within"),
        ({"within": -1.0}, "/unique/within"),
        ({"within": True}, "/unique/within"),
        ({"within": float("nan")}, "/unique/within"),
    ],
)
def test_what_no_rule_may_be(fields: dict[str, Any], pointer: str) -> None:
    with pytest.raises(FieldError) as caught:
        Unique(**fields)
    assert caught.value.pointer == pointer


def test_a_rule_is_a_rule() -> None:
    with pytest.raises(FieldError) as caught:
        NewJob(type="t", unique=True)  # type: ignore[arg-type]
    assert caught.value.pointer == "/unique"


# ── how long an idempotency key holds ──


def test_a_window_of_0_is_for_ever() -> None:
    assert key_until(NOW, 0) is None
    assert key_until(NOW, 86_400.0) == NOW + timedelta(days=1)
    assert not key_is_free(until=None, now=NOW + timedelta(days=9_000), job_ended=True)


@pytest.mark.parametrize(
    ("late", "job_ended", "free"), [(-1, True, False), (0, True, True), (1, True, True), (1, False, False)]
)
def test_a_key_is_free_after_its_window_and_the_end_of_its_job(late: int, job_ended: bool, free: bool) -> None:
    assert key_is_free(until=NOW, now=NOW + timedelta(microseconds=late), job_ended=job_ended) == free


def test_states_are_live_or_terminal() -> None:
    assert set(State) == LIVE_STATES | TERMINAL_STATES
    assert not LIVE_STATES & TERMINAL_STATES
