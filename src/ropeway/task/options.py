"""What a task, or one call of it, may say about its jobs. What neither says is left to the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

from ropeway.core import fields
from ropeway.core.errors import FieldError
from ropeway.core.retry import RetryPolicy, retry_policy
from ropeway.core.unique import Unique
from ropeway.task.context import seconds

Priority = int | Literal["critical", "high", "default", "low", "bulk"]
Retry = RetryPolicy | str | Mapping[str, Any]
Seconds = float | timedelta


def job_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a NewJob that options stand for; one that is None is not given. Raises FieldError."""
    given = {name: value for name, value in options.items() if value is not None}
    for name, read in _READERS.items():
        if name in given:
            given[name] = read(given[name])
    if given.get("unique", given) is False:
        given["unique"] = None
    if "key" in given:
        given["idempotency_key"] = given.pop("key")
    return given


def _retry(value: Retry) -> RetryPolicy:
    if isinstance(value, RetryPolicy):
        return value
    if isinstance(value, str):
        return retry_policy(value)
    if isinstance(value, Mapping):
        try:
            return retry_policy(**value)
        except TypeError:
            raise FieldError(
                "retry takes policy, base, factor, cap and jitter",
                pointer="/retry",
                hint="or the name of a preset",
            ) from None
    raise FieldError("retry must be a RetryPolicy, the name of a preset or a dict", pointer="/retry")


def _unique(value: Unique | bool) -> Unique | Literal[False]:
    return Unique() if value is True else value


def _tags(value: Sequence[str]) -> tuple[str, ...]:
    if isinstance(value, str):
        raise FieldError("tags are a list of strings", pointer="/tags", hint=f"tags=[{value!r}]")
    return tuple(value)


def _seconds(value: Seconds) -> float | None:
    given = seconds(value)
    return float(given) if type(given) is int else given


def _run_at(value: datetime) -> datetime:
    return fields.check_time(value, "run_at")


_READERS: Mapping[str, Any] = {
    "priority": fields.parse_priority,
    "retry": _retry,
    "timeout": _seconds,
    "delay": _seconds,
    "expires_in": _seconds,
    "key_window": _seconds,
    "unique": _unique,
    "tags": _tags,
    "run_at": _run_at,
}
