"""Ids and tokens. Job ids are UUIDv7: ordered by time, friendly to indexes, made by Ropeway alone."""

from __future__ import annotations

import os
import struct
import threading
import time
from datetime import UTC, datetime, timedelta
from uuid import UUID

_new = object.__new__
_set = object.__setattr__
_VERSION_7 = 0x7 << 76
_VARIANT = 0x2 << 62
_RANDOM_B = (1 << 62) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_lock = threading.Lock()
_last_moment = 0


def uuid7() -> UUID:
    """A new UUIDv7: 48 bits of milliseconds, 12 of a counter, 62 random ones."""
    return uuid7s(1)[0]


def uuid7s(count: int) -> list[UUID]:
    """`count` new ids, each higher than every id this process made before.

    The 12 bits after the milliseconds are a counter, so that ids keep the order in which jobs were accepted. When
    it overflows, or the clock stands still or goes back, it borrows from the next millisecond. One read of the
    kernel's random source serves the whole batch.
    """
    global _last_moment
    with _lock:
        first = max(time.time_ns() // 1_000_000 << 12, _last_moment + 1)
        _last_moment = first + count - 1
    random = struct.unpack(f"{count}Q", os.urandom(8 * count))
    return [
        _from_int((moment >> 12) << 80 | _VERSION_7 | (moment & 0xFFF) << 64 | _VARIANT | bits & _RANDOM_B)
        for moment, bits in enumerate(random, first)
    ]


def made_at(id: UUID) -> datetime | None:
    """When an id was made, by its own account; None when it is not one of ours."""
    if id.version != 7:
        return None
    return _EPOCH + timedelta(milliseconds=id.int >> 80)


def lowest_at(at: datetime, shift: timedelta = timedelta()) -> UUID:
    """The lowest id that is made at a time, moved by `shift`: all that are made before are lower."""
    return UUID(int=max(0, (at - _EPOCH + shift) // timedelta(milliseconds=1)) << 80)


def token() -> UUID:
    """128 random bits: a grant's secret. Not a version 4 UUID, whose six fixed bits would be wasted."""
    return uuid_from_bytes(os.urandom(16))


def uuid_from_bytes(raw: bytes) -> UUID:
    """`UUID(bytes=raw)` without its argument checks, which cost more than the rest of reading a row."""
    return _from_int(int.from_bytes(raw))


def _from_int(value: int) -> UUID:
    made = _new(UUID)
    _set(made, "int", value)
    _set(made, "is_safe", _UNKNOWN)
    return made


_UNKNOWN = UUID(int=0).is_safe
