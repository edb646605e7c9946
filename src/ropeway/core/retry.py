"""How long to wait before the next attempt: backoff policies and the named presets.

A policy grows `d = base * factor^(n-1)` with the number of failures n (1, 2, 3 ...), so the first delay is
the base, and then spreads it, so that jobs that fail together do not come back together. Its cap is the
longest delay that can come out, jitter included. How the spread is made is its `shape` (j is its jitter):

- `around`: U(d(1-j), d(1+j)), the part above the cap left out, with d = min(cap, d). The range is cut, not
  the draw: min(cap, draw) would send half of a herd back in the same instant once d has reached the cap.
- `within`: U(d(1-j), d(1+j)), d growing no further than cap/(1+j), so that the whole range fits.
- `above`: d + U(0, d * j), d growing no further than cap/(1+j).
- `below`: U(d(1-j), d), with d = min(cap, d).
- `seconds`: d + U(0, 2 s * j), whatever d is, d growing no further than leaves room for it.

Pure arithmetic: the random draw comes in as an argument.
"""

from __future__ import annotations

import difflib
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, get_args

import msgspec

from ropeway.core.errors import FieldError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The largest cap: 30 days.
MAX_DELAY: Final = 2_592_000.0
MAX_FACTOR: Final = 100.0
#: Width of the spread of the `seconds` shape, at jitter 1.
SPREAD_SECONDS: Final = 2.0

Shape = Literal["around", "within", "above", "below", "seconds"]


def _check_number(value: object, field: str, low: float, high: float) -> None:
    # A bool is an int to Python, but no number here. NaN is not in any range.
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise FieldError(f"retry {field} must be a number from {low:g} to {high:g}", pointer=f"/retry/{field}")


class RetryPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """A backoff policy, in seconds. Creating one checks it, so that no delay can overflow or exceed the cap.

    base    0 to cap: the first delay
    factor  1 to 100: growth per failure
    cap     0 to 30 days: no delay is longer
    jitter  0 to 1: the spread, as a share of the delay (see the shapes above)
    """

    base: float = 5.0
    factor: float = 2.0
    cap: float = 1800.0
    jitter: float = 0.25
    shape: Shape = "around"

    def __post_init__(self) -> None:
        _check_number(self.cap, "cap", 0.0, MAX_DELAY)
        _check_number(self.base, "base", 0.0, MAX_DELAY)
        _check_number(self.factor, "factor", 1.0, MAX_FACTOR)
        _check_number(self.jitter, "jitter", 0.0, 1.0)
        if self.base > self.cap:
            raise FieldError(f"retry base must not exceed the cap, {self.cap:g} seconds", pointer="/retry/base")
        if self.shape not in get_args(Shape):
            raise FieldError(f"retry shape must be one of {', '.join(get_args(Shape))}", pointer="/retry/shape")


#: default      U(.75d, 1.25d) of d = 5 s * 2^(n-1), at most 30 min
#: atlas        5 s * 2^n + U(0, 2 s), so 10 s first; its document has no cap: here 30 days
#: dispatch     min(250 ms * 2^n, 60 s) * U(.75, 1.25), so 500 ms first, and 75 s with the most jitter
#: openqueue    2^(n-1) s, so 1 s first; no jitter; its document has no cap: here 30 days
#: article      min(30 s * 2^(n-1), 30 min) + U(0, d/4), so 30 s first, and 37.5 min with the most jitter
#: full_jitter  U(0, d) of the default's d
PRESETS: Final[Mapping[str, RetryPolicy]] = MappingProxyType(
    {
        "default": RetryPolicy(),
        "atlas": RetryPolicy(base=10.0, cap=MAX_DELAY, jitter=1.0, shape="seconds"),
        "dispatch": RetryPolicy(base=0.5, cap=75.0, jitter=0.25, shape="within"),
        "openqueue": RetryPolicy(base=1.0, cap=MAX_DELAY, jitter=0.0),
        "article": RetryPolicy(base=30.0, cap=2250.0, jitter=0.25, shape="above"),
        "full_jitter": RetryPolicy(jitter=1.0, shape="below"),
    }
)


def retry_policy(
    policy: str = "default",
    *,
    base: float | None = None,
    factor: float | None = None,
    cap: float | None = None,
    jitter: float | None = None,
) -> RetryPolicy:
    """A preset, with some of its numbers replaced. Raises FieldError for what no policy may hold."""
    preset = PRESETS.get(policy) if isinstance(policy, str) else None
    if preset is None:
        near = difflib.get_close_matches(policy[:64], PRESETS, n=1) if isinstance(policy, str) else []
        raise FieldError(
            f"unknown retry policy, the presets are {', '.join(PRESETS)}",
            code="invalid_field",
            pointer="/retry/policy",
            hint=f"did you mean {near[0]}?" if near else None,
        )
    return RetryPolicy(
        base=preset.base if base is None else base,
        factor=preset.factor if factor is None else factor,
        cap=preset.cap if cap is None else cap,
        jitter=preset.jitter if jitter is None else jitter,
        shape=preset.shape,
    )


def delay(policy: RetryPolicy, failures: int, jitter: float) -> float:
    """Seconds to wait after failure number `failures` (1, 2, ...; less counts as 1): from 0 to the cap.

    `jitter` is a uniform draw from [0, 1). Never overflows, however many failures there were.
    """
    cap, share = policy.cap, policy.jitter
    if policy.shape == "around":
        middle = _grown(policy, failures, cap)
        low, high = middle * (1 - share), middle * (1 + share)
    elif policy.shape == "within":
        middle = _grown(policy, failures, cap / (1 + share))
        low, high = middle * (1 - share), middle * (1 + share)
    elif policy.shape == "above":
        low = _grown(policy, failures, cap / (1 + share))
        high = low * (1 + share)
    elif policy.shape == "below":
        high = _grown(policy, failures, cap)
        low = high * (1 - share)
    else:
        spread = SPREAD_SECONDS * share
        low = _grown(policy, failures, max(cap - spread, 0.0))
        high = low + spread
    high = min(high, cap)
    # Rounding may put the sum a hair above `high`.
    return min(low + (high - low) * jitter, high)


def encode(policy: RetryPolicy) -> str:
    """Short text to keep with a job: only what differs from the default."""
    return msgspec.json.encode(policy).decode()


def decode(text: str) -> RetryPolicy:
    """The policy that `encode` wrote. Raises FieldError for text that is none."""
    try:
        return msgspec.json.decode(text, type=RetryPolicy)
    except msgspec.DecodeError as error:
        raise FieldError(f"not a stored retry policy: {error}", pointer="/retry") from None


def _grown(policy: RetryPolicy, failures: int, limit: float) -> float:
    """base * factor^(failures-1), at most `limit`."""
    if policy.base == 0:
        return 0.0
    try:
        grown = policy.base * float(policy.factor) ** (max(failures, 1) - 1)
    except OverflowError:
        return limit
    return min(grown, limit)
