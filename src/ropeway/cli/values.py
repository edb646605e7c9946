"""How words on the command line become values. A FieldError says what could not be understood, and what could."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from ropeway.core.errors import FieldError
from ropeway.core.fields import PRIORITY_NAMES
from ropeway.core.query import STATE_ALIASES, parse_state
from ropeway.core.states import State

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw]?)\Z")
_DURATIONS = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhdw]))+\Z")
_PARTS = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")


def seconds(text: str, option: str) -> float:
    """`30` or `1.5` seconds, or with units: `500ms`, `45s`, `10m`, `2h`, `1h30m`, `7d`."""
    found = _try_seconds(text)
    if found is None:
        raise FieldError(
            f"{option}: {text!r} is not a length of time", hint="seconds, or such as 45s, 10m, 1h30m, 7d"
        )
    return found


def _try_seconds(text: str) -> float | None:
    if plain := _DURATION.match(text):
        return float(plain[1]) * _UNITS[plain[2] or "s"]
    if _DURATIONS.match(text):
        return sum(float(amount) * _UNITS[unit] for amount, unit in _PARTS.findall(text))
    return None


def instant(text: str, option: str) -> datetime:
    """An RFC 3339 or ISO 8601 time that says its zone."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise FieldError(
            f"{option}: {text!r} is not a time", code="invalid_time", hint="for example 2026-01-31T09:00:00Z"
        ) from None
    if at.utcoffset() is None:
        raise FieldError(
            f"{option}: {text!r} does not say its time zone",
            code="timezone_required",
            hint="add Z for UTC, or an offset such as +01:00",
        )
    return at


def past(text: str, option: str, now: datetime) -> datetime:
    """A time, or how long ago: `2h` is two hours before now."""
    back = _try_seconds(text)
    if back is None:
        try:
            return instant(text, option)
        except FieldError as error:
            if error.code == "timezone_required":
                raise
            raise FieldError(
                f"{option}: {text!r} is neither a time nor how long ago",
                hint="for example 2h, 7d or 2026-01-31T09:00:00Z",
            ) from None
    try:
        return now - timedelta(seconds=back)
    except OverflowError:
        raise FieldError(f"{option}: {text} is too long ago") from None


def states(words: Sequence[str]) -> frozenset[State] | None:
    """Statuses by name or by an older word, repeated or with commas; None when none was given."""
    named = [word for text in words for word in text.split(",") if word]
    return frozenset(_state(word.strip().lower()) for word in named) or None


def _state(word: str) -> State:
    try:
        return parse_state(word)
    except FieldError:
        from ropeway.service.names import did_you_mean

        hint = did_you_mean(word, [*State, *STATE_ALIASES]) or f"one of {', '.join(State)}"
        raise FieldError(f"unknown status {word[:64]!r}", pointer="/status", hint=hint) from None


def priority(text: str) -> int:
    """1 to 9, or a name."""
    if text in PRIORITY_NAMES:
        return PRIORITY_NAMES[text]
    if text.isascii() and text.isdigit() and 1 <= int(text) <= 9:
        return int(text)
    names = ", ".join(f"{name}={number}" for name, number in PRIORITY_NAMES.items())
    raise FieldError(f"--priority: {text!r} is not a priority", hint=f"1 (first) to 9, or {names}")


def pairs(words: Iterable[str], option: str) -> dict[str, str]:
    """`name=value` words, such as headers."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise FieldError(f"{option}: {word!r} is not a pair", hint="write name=value")
        if name in found:
            raise FieldError(f"{option}: {name!r} is given twice")
        found[name] = value
    return found


# ── Payloads ──


def payload_of(arguments: Sequence[str], whole: str | None) -> bytes:
    """The payload from `key=value` words, or from --payload."""
    if whole is None:
        return arguments_payload(arguments)
    if arguments:
        raise FieldError(
            "give key=value arguments or --payload, not both",
            code="conflicting_fields",
            hint=f"{arguments[0]!r} was given beside --payload",
        )
    data = _read(whole).strip()
    if not data:
        raise FieldError("--payload is empty", hint="JSON such as '{}', @file.json, or - for stdin")
    return data


def arguments_payload(words: Iterable[str]) -> bytes:
    """`key=value` words as one JSON object.

    A value is JSON if it can be read as JSON, else text; `key:=value` must be JSON; `key==value` is always text.
    """
    members: dict[str, msgspec.Raw | str] = {}
    for word in words:
        key, value = _member(word)
        if key in members:
            raise FieldError(f"argument {key!r} is given twice")
        members[key] = value
    try:
        return msgspec.json.encode(members)
    except UnicodeEncodeError:
        raise FieldError("an argument is not valid UTF-8", code="invalid_unicode") from None


def _member(word: str) -> tuple[str, msgspec.Raw | str]:
    key, equals, value = word.partition("=")
    if not equals or not key or key == ":":
        raise FieldError(
            f"argument {word!r} is not key=value", hint="for example name=Ada count=3 tags:='[\"a\"]' zip==01234"
        )
    if value.startswith("="):
        return key, value[1:]
    if key.endswith(":"):
        key = key[:-1]
        if not _is_json(value):
            raise FieldError(
                f"argument {key!r}: {value[:64]!r} is not JSON", hint=f"{key}={value[:64]} sends it as text"
            )
        return key, msgspec.Raw(value.strip().encode())
    return key, msgspec.Raw(value.strip().encode()) if _is_json(value) else value


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True


def _read(whole: str) -> bytes:
    if whole == "-":
        return sys.stdin.buffer.read()
    if whole.startswith("@"):
        try:
            return Path(whole[1:]).read_bytes()
        except OSError as error:
            raise FieldError(f"--payload: {whole[1:]} cannot be read: {error.strerror or error}") from None
    return whole.encode(errors="surrogateescape")
