"""What JSON may be stored, and how text from a run is made fit to be stored.

A payload is kept as the bytes that came. No engine parses it, so it is checked once, here, against the rules
that every engine, database and language can live with: strict JSON in UTF-8, integers of 64 bits, finite
floats, no duplicate keys, no NUL, no lone surrogates, at most 64 levels.

What a run gives back (a result, an error) is never refused: a finished job must be able to end (G14). It is
repaired instead, and the repair is flagged.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, NoReturn

import msgspec

from ropeway.core.errors import PayloadError

MAX_PAYLOAD_BYTES: Final = 1_048_576
MAX_DEPTH: Final = 64
MAX_ERROR_TYPE: Final = 256
MAX_ERROR_MESSAGE: Final = 4_096
MAX_TRACEBACK_BYTES: Final = 16_384

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"

INT_MIN = -(2**63)
INT_MAX = 2**63 - 1
#: Any integer with fewer digits than this fits 64 bits.
_INT_DIGITS = 19
#: A pointer is made of the sender's own keys, which may be long; an error must stay short.
_MAX_POINTER = 1_024

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")

# --- checking -------------------------------------------------------------------------------------


def check_payload(data: bytes, *, max_bytes: int = MAX_PAYLOAD_BYTES, max_depth: int = MAX_DEPTH) -> None:
    """Raise a PayloadError unless `data` is one JSON value (of any kind) that every engine can keep exactly.

    The error's `code` says which rule is broken; its `pointer` says where, when the rule is about one value
    or key. With several flaws, one of them is reported. A document that has payloads inside it may be deeper.
    """
    if len(data) > max_bytes:
        raise PayloadError(
            f"{len(data)} bytes of JSON, at most {max_bytes} are allowed",
            code="payload_too_large",
            hint="store large data elsewhere and send a reference to it",
        )
    if not _plainly_fine(data, max_depth):
        _check_exactly(data, max_depth)


def check_flat_payload(data: bytes, *, max_bytes: int = MAX_PAYLOAD_BYTES) -> None:
    """As `check_payload`, for an object that msgspec wrote and that has no other object inside.

    Such a text is well formed, shallow and names no key twice, so it is not read again: what is left to look for
    is a NUL, half a surrogate pair, and a number out of range.
    """
    if b"\\u" in data or _LONG_RUN in data.translate(_DIGITS_TO_ZERO) or len(data) > max_bytes:
        check_payload(data, max_bytes=max_bytes)


#: Maps every digit to 0, so that one search finds a long run of any digits. (A regular expression for that
#: takes three times as long: 0.7 against 0.2 µs for 100 bytes.)
_DIGITS_TO_ZERO = bytes(0x30 if 0x30 <= byte <= 0x39 else byte for byte in range(256))
_LONG_RUN = b"0" * _INT_DIGITS
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def _plainly_fine(data: bytes, max_depth: int = MAX_DEPTH) -> bool:
    """True if a few cheap looks prove that `data` keeps every rule; False means only that they do not.

    msgspec's parser is strict about syntax, UTF-8, control bytes and floats out of range. It does not mind
    big integers, NUL escapes, duplicate keys and deep nesting: those are the looks taken here.
    """
    if 0x5C in data and b"\\u" in data:
        return False
    if _LONG_RUN in data.translate(_DIGITS_TO_ZERO):
        return False
    try:
        value = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    if data.count(b"[") + data.count(b"{") > max_depth and _deeper_than(max_depth, value):
        return False
    # Each member of an object brings a colon, and of repeated members a dict keeps one. So none was repeated
    # if there are as many entries as colons; or, as strings have colons too and there are inner objects, as
    # many colons when the value is written out again. (Without \u escapes no string gains one on the way.)
    colons = data.count(b":")
    return (type(value) is dict and len(value) == colons) or _encode(value).count(b":") == colons


def _deeper_than(max_depth: int, value: Any) -> bool:
    level = [value]
    for _ in range(max_depth + 1):
        containers = [item for item in level if type(item) is dict or type(item) is list]
        if not containers:
            return False
        level = [item for box in containers for item in (box.values() if type(box) is dict else box)]
    return True


def _check_exactly(data: bytes, max_depth: int = MAX_DEPTH) -> None:
    """Find the flaw and name it, or return if there is none."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise PayloadError(f"byte {error.start} is not valid UTF-8", code="invalid_utf8") from None
    # Before parsing: the parser is recursive, and its own limit depends on the caller's stack.
    if _too_deep(data, max_depth):
        raise PayloadError(f"nested deeper than {MAX_DEPTH} levels", code="too_deep")
    try:
        value = _EXACT.decode(text)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at").rstrip(": ")
        raise PayloadError(f"not valid JSON: {what}, character {error.pos}", code="malformed_json") from None
    _look_for_flaws(value, None)


class _OutOfRange:
    """Stands for a number that cannot be kept, until the walk that knows where it is."""


_OUT_OF_RANGE = _OutOfRange()


def _fits(digits: str) -> bool:
    """Whether an integer fits 64 bits; never converts a long one, which takes quadratic time."""
    length = len(digits) - digits.startswith("-")
    return length < _INT_DIGITS or (length == _INT_DIGITS and INT_MIN <= int(digits) <= INT_MAX)


def _exact_int(digits: str) -> _OutOfRange | None:
    return None if _fits(digits) else _OUT_OF_RANGE


def _exact_float(digits: str) -> _OutOfRange | None:
    return None if math.isfinite(float(digits)) else _OUT_OF_RANGE


def _exact_constant(name: str) -> NoReturn:
    raise PayloadError(f"not valid JSON: {name} is not a JSON number", code="malformed_json", hint="send null")


#: Objects become tuples of pairs (arrays are lists), numbers None or _OUT_OF_RANGE.
_EXACT = json.JSONDecoder(
    object_pairs_hook=tuple,
    parse_int=_exact_int,
    parse_float=_exact_float,
    parse_constant=_exact_constant,
)

#: The way from a value up to the root: (way of its container, key or index). None is the root.
_Way = tuple[Any, str | int] | None


def _look_for_flaws(value: Any, way: _Way) -> None:
    """Raise for the first flaw in document order. Recursive: the depth is known to be small."""
    if type(value) is str:
        if flaw := _UNSTORABLE.search(value):
            _refuse_text(flaw, "a string", way)
    elif type(value) is list:
        for index, item in enumerate(value):
            if item is not None:
                _look_for_flaws(item, (way, index))
    elif type(value) is tuple:
        seen = set()
        for key, item in value:
            if flaw := _UNSTORABLE.search(key):
                _refuse_text(flaw, "a key", (way, key))
            if key in seen:
                raise PayloadError(
                    "the same key twice in one object", code="duplicate_key", pointer=_pointer((way, key))
                )
            seen.add(key)
            if item is not None:
                _look_for_flaws(item, (way, key))
    elif value is _OUT_OF_RANGE:
        raise PayloadError(
            "the number does not fit a 64-bit integer or a finite double",
            code="number_range",
            pointer=_pointer(way),
            hint="send it as a string",
        )


def _refuse_text(flaw: re.Match[str], where: str, way: _Way) -> NoReturn:
    if flaw[0] == "\0":
        raise PayloadError(
            f"{where} holds the NUL character",
            code="nul_character",
            pointer=_pointer(way),
            hint="leave it out",
        )
    raise PayloadError(
        f"{where} holds half of a surrogate pair",
        code="invalid_unicode",
        pointer=_pointer(way),
        hint="send whole characters",
    )


def _pointer(way: _Way) -> str:
    """A JSON pointer (RFC 6901), fit to be shown: what cannot be encoded is replaced, a long one is cut."""
    tokens = []
    while way is not None:
        way, token = way
        tokens.append("/" + str(token).replace("~", "~0").replace("/", "~1"))
    pointer = clean_text("".join(reversed(tokens)), _MAX_POINTER + 1)
    return pointer if len(pointer) <= _MAX_POINTER else pointer[: _MAX_POINTER - 1] + "…"


#: The last string of a broken text may lack its end. Possessive, so that a long string costs no memory.
_STRING = r'"(?:[^"\\]++|\\.)*+"?'
_STRINGS = re.compile(_STRING.encode(), re.DOTALL)
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def _too_deep(data: bytes, max_depth: int = MAX_DEPTH) -> bool:
    """Whether brackets outside strings nest deeper than the limit."""
    if data.count(b"[") + data.count(b"{") <= max_depth:
        return False
    depth = 0
    for bracket in _STRINGS.sub(b"", data).translate(None, _NOT_BRACKETS):
        if bracket in b"[{":
            depth += 1
            if depth > max_depth:
                return True
        else:
            depth -= 1
    return False


# --- canonical form -------------------------------------------------------------------------------

#: `-0` where a number can begin: at the start, or after a bracket, comma, colon or white space. It may be
#: found in a string, in vain. (The look back comes second, because `re` finds a leading literal faster.)
_MINUS_ZERO = re.compile(rb"-0(?<![^\[,:\s]-0)")

# Raw is written out as it is, so a number that becomes Raw stays as it was written.
_decode_raw_floats = msgspec.json.Decoder(float_hook=msgspec.Raw).decode
_RAW_NUMBERS = json.JSONDecoder(parse_int=msgspec.Raw, parse_float=msgspec.Raw)
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


def canonical_json(data: bytes) -> bytes:
    """The same JSON in one spelling: keys sorted by code point, no white space, each string written one way.

    Numbers stay exactly as they were written: 1 and 1.0 are different. For fingerprints. `data` has passed
    `check_payload`.
    """
    # msgspec reads the integer -0 as 0; every other 64-bit integer has one spelling.
    if b"-0" in data and _MINUS_ZERO.search(data):
        return _canonical_exactly(data)
    return _encode_sorted(_decode_raw_floats(data))


def _canonical_exactly(data: bytes) -> bytes:
    return _encode_sorted(_RAW_NUMBERS.decode(data.decode()))


# --- results --------------------------------------------------------------------------------------


class CleanResult(msgspec.Struct, frozen=True):
    """A result fit to be stored. `sanitized`: something was replaced. `too_large`: it was dropped."""

    data: bytes | None
    sanitized: bool = False
    too_large: bool = False


def clean_result(data: bytes | None, *, max_bytes: int = MAX_PAYLOAD_BYTES) -> CleanResult:
    """Make a result storable: what comes back passes `check_payload`. Never raises, whatever the bytes (G14).

    Valid JSON stays as it is. Otherwise:

    - NUL and lone surrogates become U+FFFD;
    - NaN, Infinity and floats out of range become null, integers out of range a string of their digits;
    - of a repeated key the last value stays;
    - what lies deeper than 64 levels becomes null;
    - what is not JSON, or not UTF-8, becomes one JSON string of the text, with U+FFFD for bad bytes;
    - what is too large, before or after the repair, is dropped.
    """
    if data is None:
        return CleanResult(None)
    try:
        check_payload(data, max_bytes=max_bytes)
    except PayloadError as error:
        if error.code == "payload_too_large":
            return CleanResult(None, too_large=True)
    else:
        return CleanResult(data)
    repaired = _repair(data)
    if len(repaired) > max_bytes:
        return CleanResult(None, too_large=True)
    return CleanResult(repaired, sanitized=True)


def _repair(data: bytes) -> bytes:
    try:
        text = data.decode()
        value = _LENIENT.decode(_ESCAPE.sub(_repair_escape, _cut_deep_parts(text) if _too_deep(data) else text))
    except UnicodeDecodeError:
        value = data.decode(errors="replace").replace("\0", REPLACEMENT)
    except json.JSONDecodeError:
        value = text.replace("\0", REPLACEMENT)
    return _encode(value)


def _lenient_int(digits: str) -> msgspec.Raw | str:
    return msgspec.Raw(digits) if _fits(digits) else digits


def _lenient_float(digits: str) -> msgspec.Raw | None:
    return msgspec.Raw(digits) if math.isfinite(float(digits)) else None


def _lenient_constant(_name: str) -> None:
    return None


_LENIENT = json.JSONDecoder(parse_int=_lenient_int, parse_float=_lenient_float, parse_constant=_lenient_constant)

#: Every escape of a JSON text, one match each; a surrogate pair is one match. The group is set for those that
#: have to go.
_ESCAPE = re.compile(
    r"""\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}
      | (\\u(?:0000|[dD][89a-fA-F][0-9a-fA-F]{2}))
      | \\.""",
    re.DOTALL | re.VERBOSE,
)


def _repair_escape(match: re.Match[str]) -> str:
    return REPLACEMENT if match[1] else match[0]


_STRING_OR_BRACKET = re.compile(_STRING + r"|[\[\]{}]", re.DOTALL)


def _cut_deep_parts(text: str) -> str:
    """Put null in place of what is nested deeper than the limit. Looks at brackets only."""
    kept: list[str] = []
    depth = resume = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        if match[0] in ("[", "{"):
            depth += 1
            if depth == MAX_DEPTH + 1:
                kept.append(text[resume : match.start()])
        elif match[0] in ("]", "}"):
            if depth == MAX_DEPTH + 1:
                kept.append("null")
                resume = match.end()
            depth -= 1
    if depth > MAX_DEPTH:
        resume = len(text)  # the deep part has no end: what is kept will not parse
    return "".join(kept) + text[resume:]


# --- errors ---------------------------------------------------------------------------------------


class JobError(msgspec.Struct, frozen=True):
    """Why a run failed, fit to be stored. `truncated` and `sanitized` say what had to be done to it."""

    type: str
    message: str
    traceback: str | None = None
    truncated: bool = False
    sanitized: bool = False


def clean_error(type: str, message: str, traceback: str | None = None) -> JobError:
    """Make an error storable; never raises.

    NUL and lone surrogates become U+FFFD. The type keeps its first 256 characters and the message its first
    4,096; the traceback keeps its last 16 KiB, because the cause stands at the end.
    """
    name = type.strip() or "Error"
    trace = traceback or ""
    kept_name = clean_text(name, MAX_ERROR_TYPE)
    kept_message = clean_text(message, MAX_ERROR_MESSAGE)
    kept_trace = _clean_tail(trace, MAX_TRACEBACK_BYTES)
    # Replacing keeps the number of characters, so a shorter text was cut and a different one sanitized.
    truncated = any(
        len(kept) < len(whole) for kept, whole in ((kept_name, name), (kept_message, message), (kept_trace, trace))
    )
    unchanged = name.startswith(kept_name) and message.startswith(kept_message) and trace.endswith(kept_trace)
    return JobError(
        kept_name,
        kept_message,
        None if traceback is None else kept_trace,
        truncated=truncated,
        sanitized=not unchanged,
    )


def clean_text(text: str, limit: int) -> str:
    """At most the first `limit` characters, with U+FFFD for NUL and lone surrogates."""
    return _UNSTORABLE.sub(REPLACEMENT, text[:limit])


def _clean_tail(text: str, limit: int) -> str:
    """The last whole characters that fit `limit` bytes of UTF-8, with U+FFFD for NUL and lone surrogates."""
    # A character takes at least one byte, so no more than `limit` of them can be needed.
    encoded = _UNSTORABLE.sub(REPLACEMENT, text[-limit:]).encode()
    return encoded[-limit:].decode(errors="ignore")
