"""A load generator that costs little: requests prepared once, sent over raw sockets that are kept open.

It shares the machine with the server that it measures, so every microsecond of its own counts against the figure.
An HTTP client library takes ten times as long as this for a request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple, cast


class Reply(NamedTuple):
    status: int
    body: bytes


def request(method: str, path: str, token: str, body: bytes = b"") -> bytes:
    """A request as it goes over the wire."""
    return (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


class Line(asyncio.Protocol):
    """One connection, one request at a time; `told` gets each reply."""

    def __init__(self) -> None:
        self.told: Callable[[Reply], None] = _ignore
        self.lost: Callable[[], None] = _nothing
        self._transport: asyncio.Transport | None = None
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def send(self, request: bytes) -> None:
        assert self._transport is not None
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        got = self._got + data if self._got else data
        end = got.find(b"\r\n\r\n")
        if end < 0:
            self._got = got
            return
        head = got[:end].lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 : head.find(b"\r", at) if b"\r" in head[at:] else None]) if at >= 0 else 0
        if len(got) < end + 4 + length:
            self._got = got
            return
        self._got = got[end + 4 + length :]
        self.told(Reply(int(got[9:12]), got[end + 4 : end + 4 + length]))

    def connection_lost(self, error: Exception | None) -> None:
        self.lost()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def ask(self, request: bytes) -> Reply:
        """One request and its reply; for loops that need what the reply says."""
        waiting: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.told = waiting.set_result
        self.lost = lambda: waiting.done() or waiting.set_exception(ConnectionError("the server hung up"))
        self.send(request)
        return await waiting


def _ignore(reply: Reply) -> None:
    pass


def _nothing() -> None:
    pass


@asynccontextmanager
async def lines(port: int, number: int) -> AsyncIterator[list[Line]]:
    """So many connections to the server."""
    loop = asyncio.get_running_loop()
    opened: list[Line] = []
    try:
        # Not all in one go: the server's queue of connections to accept is finite.
        for start in range(0, number, 200):
            made = [loop.create_connection(Line, "127.0.0.1", port) for _ in range(min(200, number - start))]
            opened += [protocol for _, protocol in await asyncio.gather(*made)]
        yield opened
    finally:
        for line in opened:
            line.close()


class Load(NamedTuple):
    """What a flood of requests took."""

    seconds: float
    #: Milliseconds per request, sorted.
    latencies: list[float]

    def at(self, share: float) -> float:
        return self.latencies[min(len(self.latencies) - 1, int(len(self.latencies) * share))]


async def flood(port: int, requests: Iterator[bytes], *, connections: int, good: int) -> Load:
    """Send all of them, one at a time per connection, each answered `good`; how long that took."""
    clock = time.perf_counter
    latencies: list[float] = []
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    busy = 0

    def start(line: Line) -> None:
        nonlocal busy
        began = 0.0

        def send() -> None:
            nonlocal busy, began
            following = next(requests, None)
            if following is None:
                busy -= 1
                if busy == 0 and not ended.done():
                    ended.set_result(None)
                return
            began = clock()
            line.send(following)

        def told(reply: Reply) -> None:
            latencies.append(clock() - began)
            if reply.status != good:
                if not ended.done():
                    ended.set_exception(AssertionError(f"answered {reply.status}: {reply.body[:300]!r}"))
                return
            send()

        def lost() -> None:
            if not ended.done():
                ended.set_exception(ConnectionError("the server hung up"))

        line.told, line.lost = told, lost
        busy += 1
        send()

    async with lines(port, connections) as opened:
        began = clock()
        for line in opened:
            start(line)
        await ended
        seconds = clock() - began
        for line in opened:
            line.lost = _nothing
    return Load(seconds, sorted(1000 * each for each in latencies))
