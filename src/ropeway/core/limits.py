"""The token bucket, as arithmetic: what is in it now, and what a taker gets."""

from __future__ import annotations

from datetime import datetime

import msgspec

#: A bucket that nobody took from for so many seconds is forgotten.
FORGET_AFTER = 86_400.0

#: Buckets with such names are of tickets, which are good for a minute and leave one each: forgotten much earlier.
TICKETS = "ticket:"
FORGET_TICKETS_AFTER = 600.0


class Taken(msgspec.Struct, frozen=True):
    """What a bucket gave. `left` is in it afterwards; `retry_in` is when a next token will be there, 0 for now."""

    granted: float
    left: float
    retry_in: float = 0.0


class Bucket(msgspec.Struct, frozen=True):
    """A bucket as it is stored: how much was in it, and when."""

    tokens: float
    at: datetime


def take(
    bucket: Bucket | None, wanted: float, *, rate: float, burst: float, now: datetime
) -> tuple[Bucket, Taken]:
    """Refill, then give as much of `wanted` as there is; a bucket that was never used is full.

    A clock that went back refills nothing and takes nothing away.
    """
    if bucket is None:
        tokens = burst
    else:
        passed = max(0.0, (now - bucket.at).total_seconds())
        tokens = min(burst, bucket.tokens + passed * rate)
    granted = max(0.0, min(wanted, tokens))
    left = tokens - granted
    missing = max(0.0, 1.0 - left)
    retry_in = 0.0 if missing == 0 else (missing / rate if rate > 0 else float("inf"))
    return Bucket(left, now), Taken(granted, left, retry_in)
