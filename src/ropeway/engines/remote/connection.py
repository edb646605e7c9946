"""The way to the server: calls are sent, replies read; what is wrong with the key or the URL is told as that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec

from ropeway.core.errors import (
    AccessError,
    ConfigurationError,
    LimitError,
    NotSupported,
    RopewayError,
    Unavailable,
)
from ropeway.core.job import DEFAULT_TENANT
from ropeway.engines.capabilities import Capability, lacks
from ropeway.wire import models, paths
from ropeway.wire.calls import Answer, Call, Patience
from ropeway.wire.transport import AsyncTransport, server_url

T = TypeVar("T")
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]

#: Seconds that one call may take: less than a lease, so that a beat which got stuck is followed by another.
ANSWER_SECONDS = 10.0
#: Whoever uses an engine has its own patience with a store that is away; here only a hiccup is bridged.
PATIENCE = Patience(tries=3, base=0.05, cap=0.5, longest=2.0, limits=False)

#: Several processes may always use one server, whatever it keeps its jobs in. Whether that survives the server's
#: own process is known once it has been asked.
ALWAYS = frozenset({Capability.SHARED})

_Durability = Literal["full", "relaxed", "none"]


class Health(msgspec.Struct):
    """What `GET /health` says that matters here."""

    service: str
    durability: _Durability
    engine: str = ""


class RemoteConnection:
    """One server, one key. The key says whose jobs these are: a call for the tenant `default` means the key's."""

    name = "remote"

    def __init__(self, url: str, token: str | None = None, *, timeout: float = ANSWER_SECONDS) -> None:
        self.url = server_url(url)
        self._token = token
        self._timeout = timeout
        self._transport: AsyncTransport | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self._tenant: str | None = None
        self.durability: _Durability = "full"
        self.capabilities: frozenset[Capability] = ALWAYS | {Capability.DURABLE}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {urlsplit(self.url).netloc}>"

    async def open(self) -> None:
        """Ask who is there and whether the key is good; raises ConfigurationError or Unavailable."""
        if self._transport is not None:
            return
        self._transport = AsyncTransport(self.url, self._token, timeout=self._timeout, patience=PATIENCE)
        try:
            health = await self.ask("/health", Health)
            if health.service != "ropeway":
                raise ConfigurationError("this is no Ropeway server", hint="check the URL")  # noqa: TRY301
            self._learn(health)
            now = await self.ask(paths.TIME, models.Now)
            self._tenant = now.tenant
        except BaseException:
            await self.close()
            raise

    def _learn(self, health: Health) -> None:
        self.durability = health.durability
        self.capabilities = ALWAYS if health.durability == "none" else ALWAYS | {Capability.DURABLE}

    async def close(self) -> None:
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background)
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # ── calls ──

    async def ask(
        self,
        path: str,
        reply: type[T],
        query: Mapping[str, object] | None = None,
        *,
        tenant: str = DEFAULT_TENANT,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """A question. It may be asked as often as it takes."""
        self.check_tenant(tenant)
        call = Call("GET", path, reader(reply), query=query or {}, headers=headers or {}, repeatable=True)
        return await self.send(call)

    async def tell(
        self,
        method: Method,
        path: str,
        read: Callable[[Answer], T],
        body: object = None,
        *,
        tenant: str = DEFAULT_TENANT,
        repeatable: bool = False,
        waits: float = 0.0,
        limits: bool = False,
    ) -> T:
        """A call that may change something. `body` is bytes of JSON, or anything to be written as JSON."""
        self.check_tenant(tenant)
        data = body if isinstance(body, bytes) or body is None else msgspec.json.encode(body)
        call = Call(method, path, read, body=data, repeatable=repeatable, waits=waits)
        return await self.send(call, limits=limits)

    async def send(self, call: Call[T], *, limits: bool = False, after: RopewayError | None = None) -> T:
        """`limits`: the caller is told of limits that are reached; to all others the server is just busy. `after`:
        as for the transport."""
        if self._transport is None:
            raise Unavailable("the engine is not open")
        try:
            return await self._transport.send(call, after=after)
        except LimitError as error:
            if limits:
                raise
            raise Unavailable(error.message, hint=error.hint) from None
        except AccessError as error:
            raise ConfigurationError(
                f"the server refuses this key: {error.message}", hint=error.hint or "set ROPEWAY_TOKEN"
            ) from error
        except RopewayError as error:
            if error.code in _SET_UP_WRONG:
                raise ConfigurationError(error.message, hint=error.hint) from None
            raise

    # ── whose ──

    def check_tenant(self, tenant: str) -> None:
        """A key belongs to one tenant: no call through it may be meant for another."""
        if tenant in (DEFAULT_TENANT, self._tenant):
            return
        raise NotSupported(
            f"this key belongs to the tenant {self._tenant or DEFAULT_TENANT!r}, not to {tenant!r}",
            hint="use a key of that tenant; `--tenant` may be left out with a server's URL",
        )

    def _lacks(self, capability: Capability) -> NotSupported:
        return lacks(self.name, capability)


#: Refusals of the HTTP face that no call can do anything about.
_SET_UP_WRONG = frozenset(
    {"bad_origin", "wrong_host", "headers_too_large", "unsupported_media_type", "method_not_allowed"}
)


# ── Reading replies ──


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    return decoder


def reader(kind: type[T]) -> Callable[[Answer], T]:
    """Reads a reply as one model."""
    decode = _decoder(kind).decode
    return lambda answer: decode(answer.body)


def reader_or_none(kind: type[T]) -> Callable[[Answer], T | None]:
    """The same; a reply without a body is None."""
    decode = _decoder(kind).decode
    return lambda answer: None if answer.status == 204 else decode(answer.body)


def nothing(_answer: Answer) -> None:
    """For replies of which only the status matters."""
