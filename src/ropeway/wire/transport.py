"""HTTP for whoever calls a Ropeway server: one transport that blocks, one that does not.

They only send and wait: what is sent, what an answer means and what is tried again is in `wire.calls`. Connections
are kept and used again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from importlib.metadata import version
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import httpx

from ropeway.core.errors import (
    ConfigurationError,
    Indeterminate,
    LimitError,
    RopewayError,
    Unavailable,
    UsageError,
)
from ropeway.wire.calls import USUAL, Answer, Call, Failed, Patience, Tries, failure_of, result_of

T = TypeVar("T")

#: Seconds to wait for a connection.
CONNECT_SECONDS = 5.0
#: Seconds that a call may take on the server, unless it says that it waits for longer.
ANSWER_SECONDS = 30.0
#: Bytes per second that a request is given at least, when it is large.
SLOWEST = 100_000
#: Connections that are not in use are closed after so many seconds: sooner than the server closes them.
IDLE_SECONDS = 15.0
MOST_CONNECTIONS = 100
#: Calls of one async transport that are on their way at once, those that wait at the server left aside. The HTTP
#: library looks at every open connection whenever one is wanted or free: 50 at once made 170 to 600 calls/s.
AT_ONCE = 8

#: The server's own machine is not behind a proxy, whatever the environment says.
_DIRECT: Mapping[str, None] = {"all://127.0.0.1": None, "all://localhost": None, "all://[::1]": None}
_EXAMPLE = "for example http://127.0.0.1:8000"


def failed_to_send(error: httpx.HTTPError, base: str) -> Failed:
    """What a try that got no answer means: nothing was sent, or nobody knows."""
    why = str(error) or type(error).__name__
    if isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError | httpx.TooManyRedirects):
        return Failed(ConfigurationError(f"the request to {base} cannot be sent: {why}"))
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout | httpx.ProxyError):
        return Failed(
            Unavailable(f"no connection to {base}: {why}", hint="is the server running there, and the URL right?")
        )
    return Failed(
        Indeterminate(f"the connection to {base} broke before the answer: {why}", hint="look before you repeat")
    )


# ── Settings of both transports ──


def server_url(url: str) -> str:
    """The URL of a server, without a slash at its end. Raises ConfigurationError, which does not show the URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigurationError("the server's URL cannot be read", hint=_EXAMPLE) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ConfigurationError("a server's URL starts with http:// or https:// and a host", hint=_EXAMPLE)
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ConfigurationError(
            "a server's URL holds no user, password or query", hint="the key goes into ROPEWAY_TOKEN"
        )
    return url.rstrip("/")


def client_options(token: str | None, timeout: float) -> dict[str, Any]:
    headers = {"User-Agent": f"ropeway/{version('ropeway')}", "Accept": "application/json"}
    if token:
        if not token.isascii() or any(character.isspace() for character in token):
            raise ConfigurationError("the key holds characters that no key has", hint="copy it anew, all of it")
        headers["Authorization"] = f"Bearer {token}"
    return {
        "headers": headers,
        "timeout": httpx.Timeout(timeout, connect=min(CONNECT_SECONDS, timeout)),
        "limits": httpx.Limits(
            max_connections=MOST_CONNECTIONS,
            max_keepalive_connections=MOST_CONNECTIONS,
            keepalive_expiry=IDLE_SECONDS,
        ),
        "follow_redirects": False,
    }


def _request_options(call: Call[Any], timeout: float) -> dict[str, Any]:
    headers = dict(call.headers)
    if call.body is not None:
        headers.setdefault("Content-Type", "application/json")
    options: dict[str, Any] = {"content": call.body, "headers": headers}
    if call.waits:
        options["timeout"] = httpx.Timeout(timeout + call.waits, connect=min(CONNECT_SECONDS, timeout))
    return options


def _limit(call: Call[Any], timeout: float) -> float:
    """Seconds that a try may take as a whole. The library's own limit is for each piece: an answer that comes byte
    by byte would never end, and whoever waits for it neither."""
    return 2 * timeout + call.waits + len(call.body or b"") / SLOWEST


_TOO_LONG = "the answer came too slowly"


def _answer(response: httpx.Response) -> Answer:
    return Answer(response.status_code, response.headers, response.content)


# ── The two that touch the network ──


#: A stream that ended too soon, such as when its server stopped.
BROKEN_OFF = Failed(Indeterminate("the stream broke off"))


class SyncTransport:
    """Blocking. May be used from several threads."""

    def __init__(
        self, url: str, token: str | None, *, timeout: float = ANSWER_SECONDS, patience: Patience = USUAL
    ) -> None:
        self.url = server_url(url)
        self._timeout = timeout
        self._patience = patience
        mounts: Any = dict(_DIRECT)
        self.client = httpx.Client(**client_options(token, timeout), mounts=mounts)

    def send(self, call: Call[T]) -> T:
        tries = Tries(call, self._patience)
        while True:
            try:
                return self._try(call)
            except Failed as failed:
                pause = tries.pause(failed)
            time.sleep(pause)

    def _try(self, call: Call[T]) -> T:
        until = time.monotonic() + _limit(call, self._timeout)
        options = _request_options(call, self._timeout)
        pieces = []
        try:
            with self.client.stream(call.method, self.url + call.target(), **options) as response:
                for piece in response.iter_bytes():
                    pieces.append(piece)
                    if time.monotonic() > until:
                        raise httpx.ReadTimeout(_TOO_LONG)
        except httpx.HTTPError as error:
            raise failed_to_send(error, self.url) from error
        except RuntimeError as error:
            _closed(error)
        return result_of(call, Answer(response.status_code, response.headers, b"".join(pieces)))

    def lines(self, call: Call[Any]) -> Iterator[str]:
        """The lines of an answer that goes on; one without a body is read. Raises Failed, also midway."""
        options = _request_options(call, self._timeout)
        try:
            with self.client.stream(call.method, self.url + call.target(), **options) as response:
                if response.status_code == 204:
                    response.read()
                    call.read(_answer(response))
                    return
                if response.status_code != 200:
                    response.read()
                    raise Failed(*failure_of(call, _answer(response)))
                yield from response.iter_lines()
        except httpx.HTTPError as error:
            raise failed_to_send(error, self.url) from error

    def tries(self, call: Call[Any]) -> Tries:
        return Tries(call, self._patience)

    def close(self) -> None:
        self.client.close()


class AsyncTransport:
    """For one event loop: that of its first call."""

    def __init__(
        self, url: str, token: str | None, *, timeout: float = ANSWER_SECONDS, patience: Patience = USUAL
    ) -> None:
        self.url = server_url(url)
        self._timeout = timeout
        self._patience = patience
        mounts: Any = dict(_DIRECT)
        self.client = httpx.AsyncClient(**client_options(token, timeout), mounts=mounts)
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def send(self, call: Call[T], *, after: RopewayError | None = None) -> T:
        """`after`: what a try of it came to that somebody else has made; this goes on from there."""
        tries = Tries(call, self._patience)
        if after is not None:
            asked = after.retry_in if isinstance(after, LimitError) else None
            await asyncio.sleep(tries.pause(Failed(after, asked)))
        while True:
            try:
                if call.waits:
                    return await self._try(call)
                async with self._turns:
                    return await self._try(call)
            except Failed as failed:
                pause = tries.pause(failed)
            await asyncio.sleep(pause)

    async def _try(self, call: Call[T]) -> T:
        try:
            async with asyncio.timeout(_limit(call, self._timeout)):
                response = await self.client.request(
                    call.method, self.url + call.target(), **_request_options(call, self._timeout)
                )
        except TimeoutError as error:
            raise failed_to_send(httpx.ReadTimeout(_TOO_LONG), self.url) from error
        except httpx.HTTPError as error:
            raise failed_to_send(error, self.url) from error
        except RuntimeError as error:
            _closed(error)
        return result_of(call, _answer(response))

    async def lines(self, call: Call[Any]) -> AsyncIterator[str]:
        """The lines of an answer that goes on; one without a body is read. Raises Failed, also midway."""
        options = _request_options(call, self._timeout)
        try:
            async with self.client.stream(call.method, self.url + call.target(), **options) as response:
                if response.status_code == 204:
                    await response.aread()
                    call.read(_answer(response))
                    return
                if response.status_code != 200:
                    await response.aread()
                    raise Failed(*failure_of(call, _answer(response)))
                async for line in response.aiter_lines():
                    yield line
        except httpx.HTTPError as error:
            raise failed_to_send(error, self.url) from error

    def tries(self, call: Call[Any]) -> Tries:
        return Tries(call, self._patience)

    async def close(self) -> None:
        await self.client.aclose()


def _closed(error: RuntimeError) -> NoReturn:
    """httpx says so of a client that was closed, whatever the caller was doing."""
    raise Failed(UsageError(f"the client was closed: {error}")) from error
