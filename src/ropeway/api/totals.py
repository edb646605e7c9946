"""Bodies whose contents are never refused: what a run gives back must be taken, or its job cannot end (G14).

The fast way decodes as strictly as everywhere. A body that does not pass is taken apart by its brackets and
strings alone: what a run said (`result`, `error`, `message`, `logs`) is set aside as bytes or repaired, and what
is left must pass. So a result may hold anything, even what is not quite JSON; a wrong field is still refused.
"""

from __future__ import annotations

import re
from typing import Any, Generic, TypeVar

import msgspec

from ropeway.api.errors import flaw_of
from ropeway.core.errors import PayloadError
from ropeway.core.payload import clean_result

T = TypeVar("T")

_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{},:]', re.DOTALL)
_SPACE = b" \t\r\n"

#: Parts that are kept as they came, and parts that are text and are repaired; the rest must be in order.
_KEPT = frozenset({b'"result"'})
_REPAIRED = frozenset({b'"error"', b'"message"', b'"logs"', b'"done"', b'"total"'})


class Outcome(msgspec.Struct, Generic[T]):
    """A body, and what had to be done to it. `result` is the run's own bytes, None when it gave none."""

    body: T
    result: bytes | None = None
    sanitized: bool = False


class Total(Generic[T]):
    """Reads the bodies of one route, whatever a run said in them."""

    def __init__(self, kind: type[T], item: type[Any] | None = None) -> None:
        self._decode = msgspec.json.Decoder(kind).decode
        self._decode_item = None if item is None else msgspec.json.Decoder(item).decode

    def read(self, raw: bytes) -> Outcome[T]:
        """One body. Raises PayloadError or FieldError for what is wrong with the rest of it."""
        try:
            body = self._decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _repaired(raw, self._decode)
        return Outcome(body, _result(body))

    def read_items(self, raw: bytes) -> list[Outcome[Any]]:
        """The items of a batch."""
        try:
            items = self._decode(raw).items  # type: ignore[attr-defined]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._items_apart(raw)
        return [Outcome(item, _result(item)) for item in items]

    def _items_apart(self, raw: bytes) -> list[Outcome[Any]]:
        members = members_of(raw)
        if set(members) != {b'"items"'}:
            # Let the strict reader say what is wrong with it.
            rest = b",".join(name + b":[]" if name == b'"items"' else name + b":0" for name in members)
            _strictly(self._decode, b"{" + rest + b"}")
        outcomes = []
        for index, part in enumerate(elements_of(members[b'"items"'])):
            try:
                outcomes.append(_repaired(part, self._decode_item))
            except PayloadError as error:
                error.index = index
                raise
        return outcomes


def _result(body: Any) -> bytes | None:
    result = getattr(body, "result", msgspec.UNSET)
    return None if result is msgspec.UNSET else bytes(result)


def _repaired(raw: bytes, decode: Any) -> Outcome[Any]:
    members = members_of(raw)
    result = None
    sanitized = False
    kept: list[bytes] = []
    for name, value in members.items():
        if name in _KEPT:
            result = value
            continue
        if name in _REPAIRED:
            # Bytes that are no text are replaced first: what is round them stays what it is.
            text = value.decode(errors="replace").encode()
            cleaned = clean_result(text, max_bytes=len(text) * 8 + 64)
            sanitized = sanitized or cleaned.sanitized or text != value
            value = cleaned.data or b"null"
        kept.append(name + b":" + value)
    return Outcome(_strictly(decode, b"{" + b",".join(kept) + b"}"), result, sanitized)


def _strictly(decode: Any, raw: bytes) -> Any:
    try:
        return decode(raw)
    except msgspec.ValidationError as error:
        raise flaw_of(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _malformed() from None


# ── Taking JSON apart without understanding it ──


def members_of(raw: bytes) -> dict[bytes, bytes]:
    """The members of an object, names and values as they were written. Of a repeated name the last one counts."""
    members: dict[bytes, bytes] = {}
    for part in _split(raw, b"{", b"}"):
        name = _TOKEN.match(part)
        if name is None or name[0][:1] != b'"':
            raise _malformed()
        rest = part[name.end() :].lstrip(_SPACE)
        if rest[:1] != b":" or not rest[1:].strip(_SPACE):
            raise _malformed()
        members[name[0]] = rest[1:].strip(_SPACE)
    return members


def elements_of(raw: bytes) -> list[bytes]:
    return _split(raw, b"[", b"]")


def _split(raw: bytes, opening: bytes, closing: bytes) -> list[bytes]:
    """What stands between the commas of one object or array; brackets inside it must pair."""
    raw = raw.strip(_SPACE)
    if raw[:1] != opening or raw[-1:] != closing:
        raise _malformed()
    parts: list[bytes] = []
    depth, start = 0, 1
    for token in _TOKEN.finditer(raw):
        sign = token[0]
        if sign in (b"{", b"["):
            depth += 1
        elif sign in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                if token.end() != len(raw):
                    raise _malformed()
                last = raw[start : token.start()].strip(_SPACE)
                return [*parts, last] if last or parts else []
        elif sign == b"," and depth == 1:
            parts.append(raw[start : token.start()].strip(_SPACE))
            start = token.end()
    raise _malformed()


def _malformed() -> PayloadError:
    return PayloadError("the body is not valid JSON", code="malformed_json")
