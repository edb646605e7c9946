"""The frame alone: a server on a port in this process, over a store in memory, with routes made to try it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from ropeway.api.reading import Patience
from ropeway.api.routing import Call, Reply, Route, Stream
from ropeway.asgi import Server
from ropeway.core import errors
from ropeway.core.access import Scope
from ropeway.engines.memory import MemoryEngine
from ropeway.engines.protocol import Engine
from ropeway.service.keys import Keys
from ropeway.settings import Settings

# ── Routes ──

NDJSON = "application/x-ndjson"


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    weight: int


class Thing(msgspec.Struct, forbid_unknown_fields=True):
    """Something to send."""

    name: str
    size: int = 1
    kind: Literal["big", "small"] = "big"
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    inner: Inner | None = None


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    weight: int = 1


class Things(msgspec.Struct, forbid_unknown_fields=True):
    jobs: list[Thing]


class Question(msgspec.Struct, forbid_unknown_fields=True):
    limit: int = 50
    queue: str | None = None
    deep: bool = False


class Seen(msgspec.Struct):
    """What the handler saw."""

    tenant: str | None = None
    params: dict[str, str] = {}
    body: Any = None
    query: Any = None
    size: int = 0


async def echo(call: Call) -> Reply:
    body = None if call.body is None else {"name": call.body.name, "payload": call.body.payload or None}
    return Reply(200, Seen(call.tenant, dict(call.params), body, size=len(call.raw)))


async def ask(call: Call) -> Reply:
    return Reply(200, Seen(call.tenant, query=call.query))


async def batch(call: Call) -> Reply:
    return Reply(201, Seen(call.tenant, size=len(call.body.jobs)), headers=((b"location", b"/things/1"),))


async def raw(call: Call) -> Reply:
    return Reply(200, Seen(call.tenant, size=len(call.raw)))


async def maybe(call: Call) -> Reply:
    return Reply(204)


async def upload(call: Call) -> Reply:
    return Reply(200, Seen(call.tenant, size=sum([len(chunk) async for chunk in call.chunks()])))


async def upload_part(call: Call) -> Reply:
    async for chunk in call.chunks():
        return Reply(200, Seen(call.tenant, size=len(chunk)))
    return Reply(204)


RAISES: Mapping[str, Exception] = {
    "bug": RuntimeError("the secret word is abracadabra"),
    "unavailable": errors.Unavailable("the store is away"),
    "indeterminate": errors.Indeterminate("the answer was lost"),
    "configuration": errors.ConfigurationError("the schema is gone"),
    "not_found": errors.NotFound("no such thing"),
    "terminal": errors.JobEnded("it has ended", status="succeeded"),
    "key_in_flight": errors.KeyInFlight("somebody else has it"),
    "rate_limited": errors.RateLimited("too fast", retry_in=2.2),
    "queue_full": errors.QueueFull("full"),
    "usage": errors.UsageError("a mistake of ours"),
    "long": errors.FieldError("ä" * 9_000, pointer="/" + "\x01" * 5_000, hint="ö" * 9_000),
}


async def fail(call: Call) -> Reply:
    raise RAISES[call.params["name"]]


async def ticking(call: Call) -> Stream:
    async def ticks() -> AsyncIterator[bytes]:
        tried = call.deps.tried  # type: ignore[attr-defined]
        tried.append("opened")
        try:
            yield b"data: 1\n\n"
            await asyncio.Event().wait()
        finally:
            tried.append("closed")

    return Stream(ticks())


async def breaking(call: Call) -> Stream:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        raise RuntimeError("abracadabra")

    return Stream(chunks())


async def waits(call: Call) -> Reply:
    """Until the client goes."""
    tried = call.deps.tried  # type: ignore[attr-defined]
    tried.append(await call.present())
    await call.disconnected()
    tried.append(await call.present())
    return Reply(204)


WORK = (Scope.WORK,)
_SEEN: dict[str, Any] = {"scopes": WORK, "replies": {200: Seen}}
_NONE: dict[str, Any] = {"scopes": WORK, "replies": {204: None}}
_STREAM: dict[str, Any] = {"scopes": WORK, "replies": {200: None}, "media": ("text/event-stream",)}
ROUTES = (
    Route("GET", "/open", maybe, replies={204: None}, tag="t", summary="No key"),
    Route("POST", "/things", echo, body=Thing, codes=("name_taken",), **_SEEN),
    Route("GET", "/things", ask, scopes=(Scope.READ,), query=Question, replies={200: Seen}),
    Route("POST", "/things/batch", batch, scopes=WORK, body=Things, large=True, replies={201: Seen}),
    Route("PUT", "/things/{name}", maybe, body=Nothing, body_optional=True, **_NONE),
    Route("POST", "/things/{name}/raw", raw, body=Thing, lenient=True, large=True, **_SEEN),
    Route("DELETE", "/things/{name}", echo, scopes=(Scope.ADMIN,), replies={200: Seen}),
    Route("POST", "/upload", echo, body=Thing, streamed={NDJSON: upload}, name="upload", **_SEEN),
    Route("POST", "/upload/part", upload_part, streamed={NDJSON: upload_part}, **_SEEN),
    Route("GET", "/fail/{name}", fail, **_NONE),
    Route("GET", "/ticking", ticking, **_STREAM),
    Route("GET", "/breaking", breaking, **_STREAM),
    Route("GET", "/waits", waits, **_NONE),
    Route("GET", "/costly", maybe, cost=3, **_NONE),
    Route("GET", "/free", maybe, free=True, **_NONE),
)


# ── The server ──


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        assert self.headers["content-type"] == "application/problem+json", self
        return str(self.json["code"])


class Frame:
    """What a test talks to."""

    def __init__(self, server: Server, engine: Engine) -> None:
        self.server = server
        self.engine = engine
        self.port = server.port
        self.tokens: dict[frozenset[Scope], str] = {}
        #: What handlers tell of themselves.
        self.tried: list[Any] = []
        server.api.deps.tried = self.tried  # type: ignore[attr-defined]

    async def token(self, *scopes: Scope) -> str:
        wanted = frozenset(scopes or Scope)
        if wanted not in self.tokens:
            self.tokens[wanted] = (await Keys(self.engine).create("a test", wanted))[1]
        return self.tokens[wanted]

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        token: str | None = "",
        headers: Mapping[str, str | None] | None = None,
    ) -> Answer:
        """One request on a connection of its own. The token is one with all scopes unless given; None is none."""
        async with self.connected() as line:
            await line.send(await self.head(method, path, body, token=token, headers=headers), body or b"")
            return await line.answer(method)

    async def head(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        token: str | None = "",
        headers: Mapping[str, str | None] | None = None,
    ) -> bytes:
        lines: dict[str, str | None] = {"Host": "localhost"}
        if token is not None:
            lines["Authorization"] = f"Bearer {token or await self.token()}"
        if body is not None:
            lines |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        lines |= headers or {}
        told = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value is not None)
        return f"{method} {path} HTTP/1.1\r\n{told}\r\n".encode("latin-1")

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Line]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield Line(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class Line:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()

    async def answer(self, method: str = "GET") -> Answer:
        status, headers = await self.head()
        length = int(headers.get("content-length", "0"))
        body = b"" if method == "HEAD" or status == 204 else await self.reader.readexactly(length)
        return Answer(status, headers, body)

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = [line.partition(":") for line in lines[1:] if line]
        return int(lines[0].split()[1]), {name.lower(): value.strip() for name, _, value in headers}

    async def ended(self) -> bool:
        """Whether the server has hung up; waits for it."""
        with contextlib.suppress(ConnectionError):
            return await self.reader.read() == b""
        return True


@contextlib.asynccontextmanager
async def frame(*, auth: bool = True, patience: float = 10.0, **settings: Any) -> AsyncIterator[Frame]:
    engine = MemoryEngine()
    async with engine:
        server = Server(
            engine, Settings(port=0, **settings), auth=auth, routes=ROUTES, patience=Patience(patience)
        )
        async with server:
            yield Frame(server, engine)
