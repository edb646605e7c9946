"""What went wrong becomes an answer: `application/problem+json`, with the headers that its kind asks for."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from ropeway.api.routing import Header
from ropeway.core.errors import FieldError, KeyInFlight, LimitError, RopewayError, Unauthenticated
from ropeway.wire import problems
from ropeway.wire.problems import Refused

#: Seconds after which another try is worth it, when nothing better is known.
_TRY_AGAIN = 1
_TRY_LATER = 5


class Told(NamedTuple):
    """A problem, ready to be sent."""

    status: int
    code: str
    body: bytes
    headers: tuple[Header, ...]


def told(error: RopewayError, request_id: str) -> Told:
    """The answer to a request that raised this."""
    problem = problems.problem_of(error, request_id)
    return Told(problem.status, problem.code, problems.encode(problem), _headers_of(error, problem.status))


def told_of_a_bug(request_id: str) -> Told:
    """The answer to a request that raised what nobody meant to raise; the log has the rest."""
    return told(RopewayError("internal"), request_id)


def _headers_of(error: RopewayError, status: int) -> tuple[Header, ...]:
    if isinstance(error, Refused):
        return error.headers
    if isinstance(error, Unauthenticated):
        return ((b"www-authenticate", b'Bearer realm="ropeway"'),)
    if isinstance(error, LimitError):
        return (_retry_after(_TRY_LATER if error.retry_in is None else error.retry_in),)
    if isinstance(error, KeyInFlight) or status == 503:
        return (_retry_after(_TRY_AGAIN),)
    return ()


def _retry_after(seconds: float) -> Header:
    whole = math.ceil(seconds) if math.isfinite(seconds) else 86_400
    return b"retry-after", b"%d" % max(1, min(whole, 86_400))


# ── What msgspec says about a body or a query ──

_AT = re.compile(r" - at `(?:key in )?\$(.*)`\Z")
_STEP = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|\[(\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`\Z", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`\Z")
_ITEM = re.compile(r"/(?:jobs|items)/(\d+)(?:/|\Z)")
_JSON_NAMES: Mapping[str, str] = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "object": "an object",
    "array": "an array",
    "null": "null",
}


def flaw_of(error: msgspec.ValidationError) -> FieldError:
    """A value of the wrong type, a field that is missing or one that does not exist. Never tells the value."""
    text = str(error)
    pointer = ""
    if at := _AT.search(text):
        text = text[: at.start()]
        pointer = "".join(f"/{name or index}" for name, index in _STEP.findall(at[1]) if index != "...")
    if unknown := _UNKNOWN.match(text):
        return _flaw("there is no such field", f"{pointer}/{unknown[1]}", "unknown_field")
    if missing := _MISSING.match(text):
        return _flaw(f"{missing[1]} is required", f"{pointer}/{missing[1]}")
    if text.startswith("Invalid "):
        return _flaw("not one of the values that are accepted here", pointer)
    expected = re.sub(r"`([a-z]+)`", lambda word: _JSON_NAMES.get(word[1], word[0]), text.partition(", got")[0])
    return _flaw(f"{expected[:1].lower()}{expected[1:]}", pointer)


def index_of(pointer: str | None) -> int | None:
    """Which item of a batch a pointer into its body is about."""
    item = _ITEM.match(pointer or "")
    return int(item[1]) if item else None


def _flaw(message: str, pointer: str, code: str = "invalid_field") -> FieldError:
    return FieldError(message, code=code, pointer=pointer or "/", index=index_of(pointer))
