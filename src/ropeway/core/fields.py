"""The rules of single fields, the same on every face. A broken rule is a FieldError that names the field."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from uuid import UUID

from ropeway.core.errors import FieldError

NAME_RULE = "1 to 128 of A-Z a-z 0-9 . _ : -"
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")
_CANONICAL_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")

#: 1 goes first. The names are the same on every face.
PRIORITY_NAMES: Mapping[str, int] = {"critical": 1, "high": 3, "default": 5, "low": 7, "bulk": 9}

MAX_ATTEMPTS_LIMIT = 25
MAX_KEY_BYTES = 512
MAX_TIMEOUT = 86_400.0
MAX_TAGS = 16
MAX_TAG_LENGTH = 128
MAX_HEADERS = 32
MAX_HEADER_BYTES = 8_192
MAX_BATCH = 1_000
MAX_LEASE_COUNT = 1_000
MAX_LEASE_SECONDS = 43_200.0

#: How far ahead a job may be scheduled.
HORIZON = timedelta(days=3_653)
HORIZON_SECONDS = HORIZON.total_seconds()


def check_name(name: str, field: str) -> str:
    """A task, queue or tenant name."""
    if not isinstance(name, str) or not _is_name(name):
        raise FieldError(f"{field} must be {NAME_RULE}", pointer=f"/{field}")
    return name


@lru_cache(maxsize=4_096)
def _is_name(text: str) -> bool:
    return _NAME.match(text) is not None


def check_text(text: str, field: str, *, limit: int) -> str:
    """Text that a person reads, such as a worker's name: 1 to `limit` characters, printable."""
    if not isinstance(text, str) or not 1 <= len(text) <= limit or _UNPRINTABLE.search(text):
        raise FieldError(
            f"{field} must be 1 to {limit} characters without control characters", pointer=f"/{field}"
        )
    return text


def parse_id(text: str) -> UUID:
    """A job id in its one canonical form: lower case, with dashes."""
    if not isinstance(text, str) or not _CANONICAL_ID.match(text):
        raise FieldError(
            "a job id is a lower-case UUID such as 0198c0de-0000-7000-8000-000000000000",
            code="invalid_id",
            pointer="/id",
        )
    return UUID(text)


def parse_priority(value: int | str) -> int:
    """1 to 9, or one of the names."""
    if isinstance(value, str) and value in PRIORITY_NAMES:
        return PRIORITY_NAMES[value]
    return check_integer(value, "priority", 1, 9, hint=f"or one of {', '.join(PRIORITY_NAMES)}")


def check_integer(value: object, field: str, low: int, high: int, *, hint: str | None = None) -> int:
    """An integer (a bool is none) within bounds."""
    if type(value) is not int or not low <= value <= high:
        raise FieldError(f"{field} must be an integer from {low} to {high}", pointer=f"/{field}", hint=hint)
    return value


def check_seconds(value: object, field: str, low: float, high: float) -> float:
    """A number of seconds within bounds."""
    # NaN is within no bounds, and an integer that is too large for a float is beyond these.
    if type(value) not in (int, float) or not low <= value <= high:  # type: ignore[operator]
        raise FieldError(f"{field} must be a number of seconds from {low:g} to {high:g}", pointer=f"/{field}")
    return float(value)  # type: ignore[arg-type]


def check_time(value: datetime, field: str) -> datetime:
    """A time with a zone, returned in UTC."""
    if not isinstance(value, datetime):
        raise FieldError(f"{field} must be a time", code="invalid_time", pointer=f"/{field}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise FieldError(
            f"{field} must say its time zone",
            code="timezone_required",
            pointer=f"/{field}",
            hint="for example 2026-01-31T09:00:00Z",
        )
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise FieldError(f"{field} is out of range", code="invalid_time", pointer=f"/{field}") from None


def check_horizon(value: datetime, field: str, now: datetime) -> None:
    """At most ten years ahead of `now`."""
    if value - now > HORIZON:
        raise FieldError(f"{field} must be at most 10 years ahead", code="invalid_time", pointer=f"/{field}")


def check_key(key: str, field: str) -> str:
    """An idempotency or unique key: 1 to 512 bytes, no control characters."""
    if not isinstance(key, str) or not key or _UNPRINTABLE.search(key):
        raise FieldError(
            f"{field} must be 1 to {MAX_KEY_BYTES} bytes without control characters", pointer=f"/{field}"
        )
    if len(key) > MAX_KEY_BYTES or len(key.encode()) > MAX_KEY_BYTES:
        raise FieldError(f"{field} must be at most {MAX_KEY_BYTES} bytes", pointer=f"/{field}")
    return key


def check_tags(tags: Sequence[str]) -> None:
    if not isinstance(tags, tuple | list):
        raise FieldError("tags are a list of strings", pointer="/tags")
    if len(tags) > MAX_TAGS:
        raise FieldError(f"at most {MAX_TAGS} tags", pointer="/tags")
    for tag in tags:
        check_text(tag, "tags", limit=MAX_TAG_LENGTH)


def check_headers(headers: Mapping[str, str]) -> None:
    if not isinstance(headers, Mapping):
        raise FieldError("headers are pairs of strings", pointer="/headers")
    if len(headers) > MAX_HEADERS:
        raise FieldError(f"at most {MAX_HEADERS} headers", pointer="/headers")
    size = 0
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str) or not name:
            raise FieldError("headers are pairs of strings", pointer="/headers")
        if any("\0" in part or _SURROGATE.search(part) for part in (name, value)):
            raise FieldError("headers must not hold NUL or lone surrogates", pointer="/headers")
        size += len(name.encode()) + len(value.encode())
    if size > MAX_HEADER_BYTES:
        raise FieldError(f"headers must be at most {MAX_HEADER_BYTES} bytes in all", pointer="/headers")
