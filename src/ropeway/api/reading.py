"""Reading a request: its body within size and time, its fields by their types."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import unquote_to_bytes

import msgspec

from ropeway.api.batches import read_batch
from ropeway.api.errors import flaw_of, index_of
from ropeway.api.heavy import SLOW_BYTES
from ropeway.api.presence import Message, Receive
from ropeway.api.routing import Route
from ropeway.core.errors import BatchTooLarge, FieldError, PayloadError
from ropeway.core.payload import MAX_DEPTH, check_payload
from ropeway.wire.problems import Refused

if TYPE_CHECKING:
    from ropeway.api.budget import Held

#: Seconds that a body may take, and bytes that must come in each further one: a drip ends like a stall. What is
#: beyond a large payload must come faster, for all of it is held meanwhile.
BODY_SECONDS: Final = 10.0
LEAST_RATE: Final = 32_768
LEAST_RATE_BEYOND: Final = 262_144
_BEYOND = 1_048_576
#: How often overdue reads are looked for.
_LOOK_EVERY: Final = 0.25

#: What a body may have round its largest payload.
ROUND_A_PAYLOAD: Final = 65_536
BATCH_BYTES: Final = 16 * 1_048_576
#: A payload may be as deep as anywhere; `{"jobs": [{"payload": ...}]}` is three levels round it.
_BODY_DEPTH: Final = MAX_DEPTH + 3


class ClientGone(Exception):
    """The client hung up before its request was whole: nobody is left to answer."""


class Patience:
    """Ends reads that take too long.

    One timer looks after all of them, because setting and clearing one for each request would take longer than
    reading it does.
    """

    def __init__(self, seconds: float = BODY_SECONDS) -> None:
        self.seconds = seconds
        self._deadlines: dict[asyncio.Task[Any], float] = {}
        self._overdue: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def next(self, receive: Receive, deadline: float) -> Message:
        """The next message of a request; 408 when it has not come by the deadline (in the loop's time)."""
        task = asyncio.current_task()
        assert task is not None, "requests are handled in tasks"  # noqa: S101
        self._deadlines[task] = deadline
        if self._timer is None:
            self._arm()
        try:
            message = await receive()
        except asyncio.CancelledError:
            if task not in self._overdue:
                raise
            self._overdue.discard(task)
            if task.uncancel() > 0:
                raise
            raise Refused(
                f"the body did not arrive within {self.seconds:g} seconds",
                code="request_timeout",
                hint="send it again, whole",
            ) from None
        finally:
            self._deadlines.pop(task, None)
        return message

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK_EVERY, self._look)

    def _look(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for task in [task for task, deadline in self._deadlines.items() if deadline <= now]:
            self._overdue.add(task)
            task.cancel()
        if self._deadlines:
            self._arm()


def seconds_for(size: int) -> float:
    """How much more time a body has when so many bytes of it are there."""
    return min(size, _BEYOND) / LEAST_RATE + max(0, size - _BEYOND) / LEAST_RATE_BEYOND


async def whole_body(
    receive: Receive, headers: Mapping[bytes, bytes], limit: int, patience: Patience, held: Held | None = None
) -> bytes:
    """All of a body. Refuses one that is too large without reading the rest of it.

    Its bytes are taken from `held` as they come, and not given back here.
    """
    declared = declared_length(headers)
    if declared is not None and declared > limit:
        too_large(limit)
    deadline = asyncio.get_running_loop().time() + patience.seconds
    message = await patience.next(receive, deadline)
    if message["type"] == "http.disconnect":
        raise ClientGone
    body: bytes = message.get("body", b"")
    if held is not None:
        held.take(len(body))
    if not message.get("more_body", False):
        return body if len(body) <= limit else too_large(limit)
    parts, size = [body], len(body)
    while True:
        if size > limit:
            too_large(limit)
        message = await patience.next(receive, deadline + seconds_for(size))
        if message["type"] == "http.disconnect":
            raise ClientGone
        part: bytes = message.get("body", b"")
        if held is not None:
            held.take(len(part))
        parts.append(part)
        size += len(part)
        if not message.get("more_body", False):
            return b"".join(parts) if size <= limit else too_large(limit)


async def body_chunks(receive: Receive, patience: Patience) -> AsyncIterator[bytes]:
    """A body of any length as it comes. Whoever reads it may take its time; the sender may not."""
    loop = asyncio.get_running_loop()
    while True:
        message = await patience.next(receive, loop.time() + patience.seconds)
        if message["type"] == "http.disconnect":
            raise ClientGone
        if part := message.get("body", b""):
            yield part
        if not message.get("more_body", False):
            return


def declared_length(headers: Mapping[bytes, bytes]) -> int | None:
    text = headers.get(b"content-length")
    if text is None:
        return None
    if not text.isdigit():
        raise Refused("the Content-Length is not a number", code="bad_request")
    return int(text) if len(text) < 20 else 1 << 63


def has_body(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a body comes with the request. An empty one is none."""
    length = headers.get(b"content-length")
    return (length is not None and length != b"0") or b"transfer-encoding" in headers


def too_large(limit: int) -> NoReturn:
    if limit >= BATCH_BYTES:
        raise BatchTooLarge(f"a body may have {limit} bytes", hint="send it in several calls")
    raise PayloadError(
        f"a body may have {limit} bytes",
        code="payload_too_large",
        hint="store large data elsewhere and send a reference to it",
    )


# ── The kind of body ──


def media_type(headers: Mapping[bytes, bytes]) -> str:
    """The body's media type, without parameters; refuses what is compressed or not UTF-8."""
    encoding = headers.get(b"content-encoding")
    if encoding is not None and encoding.lower() != b"identity":
        raise Refused("compressed bodies are not accepted", code="unsupported_media_type")
    given = headers.get(b"content-type")
    if given is None:
        return ""
    if given == b"application/json":
        return "application/json"
    kind, *parameters = (part.strip() for part in given.decode("latin-1").lower().split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "charset" and value.strip('"') not in ("utf-8", "utf8"):
            raise Refused("only UTF-8 is accepted", code="unsupported_media_type")
    return kind


def refuse_media_type(accepted: str) -> NoReturn:
    raise Refused(
        f"the body must be {accepted}", code="unsupported_media_type", hint=f"send Content-Type: {accepted}"
    )


# ── Fields ──


_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Fields:
    """Reads the JSON bodies of one route."""

    def __init__(self, kind: Any, limit: int, item_limit: int | None = None) -> None:
        """`item_limit` is for one item of a batch, where the bodies are batches."""
        self._decode = msgspec.json.Decoder(kind).decode
        self._limit = limit
        self._item_limit = item_limit

    def read(self, body: bytes) -> Any:
        """The struct. The document is checked as a whole first: no key twice, nothing that cannot be stored."""
        try:
            if self._item_limit is not None and len(body) > SLOW_BYTES:
                return read_batch(body, self._decode, self._item_limit, _BODY_DEPTH)
            check_payload(body, max_bytes=self._limit, max_depth=_BODY_DEPTH)
            return self._decode(body)
        except msgspec.ValidationError as error:
            raise flaw_of(error) from None
        except PayloadError as error:
            if error.index is None:
                deep = error.code == "too_deep"
                error.index = self._deep_item(body) if deep else index_of(error.pointer)
            raise
        except msgspec.DecodeError:
            raise PayloadError("the body is not valid JSON", code="malformed_json") from None

    def _deep_item(self, body: bytes) -> int | None:
        """Which item of a batch is nested too deeply; None when the body is none, or too deep even to look."""
        try:
            members = _decode_members(body)
            items = _decode_list(members.get("jobs") or members.get("items") or b"[]")
        except (msgspec.DecodeError, RecursionError):
            return None
        for index, item in enumerate(items):
            try:
                check_payload(bytes(item), max_bytes=self._limit, max_depth=_BODY_DEPTH - 2)
            except PayloadError:
                return index
        return None


def read_query(query_string: bytes, route: Route) -> Any:
    """The struct of a route's query; None for a route that takes none."""
    values: dict[str, str] = {}
    for part in query_string.split(b"&"):
        if not part:
            continue
        name, _, value = part.partition(b"=")
        key = _unquoted(name, "a parameter's name")
        if key in values:
            raise FieldError("given twice", pointer=f"/{key}", hint="send each parameter once")
        values[key] = _unquoted(value, key)
    if route.ticket:
        values.pop("ticket", None)
    if route.query is None:
        for stranger in values:
            raise FieldError("there is no such parameter", code="unknown_field", pointer=f"/{stranger}")
        return None
    try:
        query = msgspec.convert(values, route.query, strict=False)
    except msgspec.ValidationError as error:
        flaw = flaw_of(error)
        flaw.message = flaw.message.replace("no such field", "no such parameter")
        raise flaw from None
    for given in values:
        # Where text becomes a number or a word of a list, `null` would become nothing at all.
        if getattr(query, given) is None:
            raise FieldError("not one of the values that are accepted here", pointer=f"/{given}")
        if type(getattr(query, given)) is int and not values[given].removeprefix("-").isdecimal():
            raise FieldError("expected an integer", pointer=f"/{given}", hint="digits only")
    return query


def ticket_in(query_string: bytes) -> str | None:
    """The one-use ticket that stands for a key, if the query has one."""
    for part in query_string.split(b"&"):
        if part.startswith(b"ticket="):
            return part[7:].decode("latin-1")
    return None


def _unquoted(text: bytes, name: str) -> str:
    try:
        return unquote_to_bytes(text.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        raise FieldError(f"{name} is not valid UTF-8", pointer=f"/{name}") from None
