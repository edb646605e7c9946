"""Backoff: the presets reproduce their documents, every policy stays in bounds, a herd spreads out (T6)."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeway.core import retry
from ropeway.core.errors import FieldError
from ropeway.core.retry import MAX_DELAY, PRESETS, RetryPolicy, Shape, delay, retry_policy

#: The largest draw there can be.
ALMOST_ONE = math.nextafter(1.0, 0.0)

draws = st.floats(0, ALMOST_ONE)
failures = st.integers(1, 40) | st.integers(1, 10**6)


@st.composite
def policies(draw: st.DrawFn) -> RetryPolicy:
    cap = draw(st.floats(0, MAX_DELAY))
    return RetryPolicy(
        base=draw(st.floats(0, cap)),
        factor=draw(st.floats(1, 100)),
        cap=cap,
        jitter=draw(st.floats(0, 1)),
        shape=draw(st.sampled_from(get_args(Shape))),
    )


# Each preset against the formula of its document: n is the number of failures, u the draw.

FORMULAS = {
    "default": lambda n, u: min(1800, 5 * 2 ** (n - 1)) * (0.75 + 0.5 * u),
    "atlas": lambda n, u: 5 * 2**n + 2 * u,
    "dispatch": lambda n, u: min(0.250 * 2**n, 60) * (0.75 + 0.5 * u),
    "openqueue": lambda n, u: 2 ** (n - 1),
    "article": lambda n, u: min(30 * 2 ** (n - 1), 1800) * (1 + u / 4),
    "full_jitter": lambda n, u: min(1800, 5 * 2 ** (n - 1)) * u,
}
#: How many failures until the default's range reaches its cap, or until 30 days stand in for "no cap".
UNTIL = {"default": 9, "atlas": 18, "openqueue": 22}


def test_every_preset_has_a_formula():
    assert set(FORMULAS) == set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("draw", [0.0, 0.25, 0.5, 0.9, ALMOST_ONE])
def test_a_preset_reproduces_its_document(name, draw):
    for n in range(1, UNTIL.get(name, 40) + 1):
        assert delay(PRESETS[name], n, draw) == pytest.approx(FORMULAS[name](n, draw))


@pytest.mark.parametrize(
    ("name", "shortest", "longest"),
    [
        ("default", 3.75, 6.25),
        ("atlas", 10, 12),
        ("dispatch", 0.375, 0.625),
        ("openqueue", 1, 1),
        ("article", 30, 37.5),
        ("full_jitter", 0, 5),
    ],
)
def test_first_delay(name, shortest, longest):
    assert delay(PRESETS[name], 1, 0.0) == shortest
    assert delay(PRESETS[name], 1, ALMOST_ONE) == pytest.approx(longest)


@pytest.mark.parametrize(
    ("name", "shortest", "longest"),
    [
        ("default", 1350, 1800),
        ("atlas", MAX_DELAY - 2, MAX_DELAY),
        ("dispatch", 45, 75),
        ("openqueue", MAX_DELAY, MAX_DELAY),
        ("article", 1800, 2250),
        ("full_jitter", 0, 1800),
    ],
)
@pytest.mark.parametrize("n", [25, 1_000, 10**6])
def test_last_delays(name, shortest, longest, n):
    assert delay(PRESETS[name], n, 0.0) == shortest
    assert delay(PRESETS[name], n, ALMOST_ONE) == pytest.approx(longest)


def test_the_default_is_the_default():
    assert retry_policy() == PRESETS["default"] == RetryPolicy()


def test_no_failure_counts_as_the_first():
    assert delay(RetryPolicy(), 0, 0.5) == delay(RetryPolicy(), 1, 0.5) == 5.0


# Bounds


@given(policies(), failures, draws)
def test_a_delay_is_between_zero_and_the_cap(policy, n, draw):
    assert 0 <= delay(policy, n, draw) <= policy.cap


@given(policies(), st.integers(1, 200), draws)
def test_a_later_failure_never_waits_less(policy, n, draw):
    """For one draw, so in particular without jitter."""
    assert delay(policy, n, draw) <= delay(policy, n + 1, draw) * (1 + 1e-12)


@given(policies(), failures)
def test_without_jitter_every_shape_is_plain_exponential(policy, n):
    plain = msgspec.structs.replace(policy, jitter=0.0)
    expected = policy.cap
    if policy.base == 0:
        expected = 0.0
    elif math.log(policy.base) + (n - 1) * math.log(policy.factor) < math.log(MAX_DELAY) + 1:
        expected = min(policy.cap, policy.base * policy.factor ** (n - 1))
    assert delay(plain, n, 0.5) == pytest.approx(expected)


@given(policies(), failures, draws, draws)
def test_a_larger_draw_never_waits_less(policy, n, one, other):
    low, high = sorted((one, other))
    assert delay(policy, n, low) <= delay(policy, n, high)


def test_integers_are_numbers_too():
    assert delay(RetryPolicy(base=1, factor=2, cap=100, jitter=0), 10**6, 0.5) == 100


# A herd (T6)


def largest_bucket(times: list[float]) -> float:
    """The share of the fullest second."""
    return max(Counter(math.floor(time) for time in times).values()) / len(times)


@pytest.mark.parametrize("name", ["default", "full_jitter"])
def test_a_herd_spreads_out(name):
    """10,000 jobs that fail together, again and again: few of them come back in the same second."""
    draw = random.Random(6).random
    herd = [0.0] * 10_000
    for n in range(1, 26):
        wait = [delay(PRESETS[name], n, draw()) for _ in herd]
        herd = [time + seconds for time, seconds in zip(herd, wait, strict=True)]
        if n >= 5:
            assert largest_bucket(wait) <= 0.05
            assert largest_bucket(herd) <= 0.05


def test_a_herd_does_not_gather_at_the_cap():
    """Half of the draws would lie above the cap: they must not all become the cap itself."""
    draw = random.Random(6).random
    wait = [delay(PRESETS["default"], 20, draw()) for _ in range(10_000)]
    assert largest_bucket(wait) <= 0.01
    assert max(wait) > 1790


def test_the_measure_of_a_herd_can_tell():
    """`atlas` spreads over two seconds, `openqueue` not at all: kept for those who ask for them by name."""
    draw = random.Random(6).random
    assert largest_bucket([delay(PRESETS["atlas"], 5, draw()) for _ in range(10_000)]) > 0.4
    assert largest_bucket([delay(PRESETS["openqueue"], 5, draw()) for _ in range(10_000)]) == 1.0


# Validation


def test_numbers_of_a_preset_can_be_replaced():
    policy = retry_policy("article", base=1, factor=3, cap=60, jitter=0.5)
    assert policy == RetryPolicy(base=1.0, factor=3.0, cap=60.0, jitter=0.5, shape="above")
    assert retry_policy("dispatch", base=2.0).cap == PRESETS["dispatch"].cap


@pytest.mark.parametrize(
    "numbers",
    [
        {"base": 0},
        {"base": 0, "cap": 0},
        {"base": 1800},
        {"factor": 1},
        {"factor": 100},
        {"cap": MAX_DELAY},
        {"jitter": 0},
        {"jitter": 1},
    ],
    ids=repr,
)
def test_accepted(numbers):
    policy = retry_policy(**numbers)
    assert all(getattr(policy, field) == value for field, value in numbers.items())


@pytest.mark.parametrize(
    "value", [True, "5", [5], b"5", 1j, math.nan, math.inf, -math.inf, 10**400, -1], ids=lambda v: repr(v)[:9]
)
@pytest.mark.parametrize("field", ["base", "factor", "cap", "jitter"])
def test_what_is_no_number_in_range_is_refused(field, value):
    with pytest.raises(FieldError) as refused:
        retry_policy(**{field: value})
    assert refused.value.code == "invalid_field"
    assert refused.value.pointer == f"/retry/{field}"


@pytest.mark.parametrize(
    ("numbers", "field"),
    [
        ({"base": 1e308, "factor": 10}, "base"),
        ({"base": 1800.1}, "base"),
        ({"base": 2, "cap": 1}, "base"),
        ({"cap": 4}, "base"),
        ({"factor": 0}, "factor"),
        ({"factor": 0.99}, "factor"),
        ({"factor": 100.1}, "factor"),
        ({"cap": MAX_DELAY + 1}, "cap"),
        ({"jitter": 1.01}, "jitter"),
    ],
    ids=repr,
)
def test_refused(numbers, field):
    with pytest.raises(FieldError) as refused:
        retry_policy(**numbers)
    assert refused.value.pointer == f"/retry/{field}"


def test_a_policy_made_by_hand_is_checked_too():
    with pytest.raises(FieldError):
        RetryPolicy(base=1e308)
    with pytest.raises(FieldError):
        RetryPolicy(shape="sideways")


def test_an_unknown_preset_is_refused_with_the_nearest_name():
    with pytest.raises(FieldError) as refused:
        retry_policy("ful_jitter")
    assert refused.value.code == "invalid_field"
    assert refused.value.pointer == "/retry/policy"
    assert refused.value.hint == "did you mean full_jitter?"
    with pytest.raises(FieldError) as refused:
        retry_policy("zzz")
    assert refused.value.hint is None
    with pytest.raises(FieldError):
        retry_policy(["default"])


# Stored form


def test_only_what_differs_is_stored():
    assert retry.encode(RetryPolicy()) == "{}"
    assert retry.encode(RetryPolicy(base=1.0)) == '{"base":1.0}'
    assert retry.decode("{}") == RetryPolicy()


@given(policies() | st.sampled_from(list(PRESETS.values())))
def test_a_stored_policy_comes_back(policy):
    assert retry.decode(retry.encode(policy)) == policy


@pytest.mark.parametrize(
    "text", ["", "[]", "null", '{"base":"5"}', '{"base":-1}', '{"base":1e999}', '{"shape":"sideways"}', "{"]
)
def test_text_that_is_no_policy_is_refused(text):
    with pytest.raises(FieldError):
        retry.decode(text)
