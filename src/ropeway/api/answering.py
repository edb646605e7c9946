"""Sending answers: whole ones, those that go on, and those to a request whose body nobody wants."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

from ropeway.api.presence import Receive, until_gone
from ropeway.api.reading import Patience
from ropeway.api.routing import Header, Stream
from ropeway.runtime.faultpoints import fault
from ropeway.wire.problems import Refused

Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

#: On every answer: a browser must neither guess its type, nor tell others its address, nor keep it.
EVERY_ANSWER: Final[tuple[Header, ...]] = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)

#: How much of a refused body is still taken, and for how long, before the connection is closed. Closing at once
#: would make the client's system throw the answer away unread.
LINGER_BYTES: Final = 4 * 1_048_576
LINGER_SECONDS: Final = 2.0


class Answering:
    """Sends answers for one application, and knows the streams that are open."""

    def __init__(self, patience: Patience, stopping: asyncio.Event) -> None:
        self._patience = patience
        self._stopping = stopping
        self._streams: set[asyncio.Task[None]] = set()

    async def send(
        self, status: int, body: bytes, headers: list[Header], send: Send, unread: Receive | None, *, head: bool
    ) -> None:
        """Send a whole answer. `unread` is given when some of the request's body was not read."""
        if status != 204:
            headers.append((b"content-length", b"%d" % len(body)))
        if head:
            body = b""
        fault("api.before_reply")
        if unread is None:
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return
        headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await self._linger(unread)
        await send({"type": "http.response.body", "body": b""})

    async def forget(self, receive: Receive) -> bool:
        """Read the body of a request that was refused anyway; whether all of it came."""
        deadline = asyncio.get_running_loop().time() + LINGER_SECONDS
        try:
            while True:
                message = await self._patience.next(receive, deadline)
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return True
        except Refused:
            return False

    async def _linger(self, receive: Receive) -> None:
        """Let the client finish its sentence, within bounds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                taken = 0
                while taken < LINGER_BYTES:
                    message = await receive()
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return
                    taken += len(message.get("body", b""))

    async def stream(
        self, stream: Stream, headers: list[Header], receive: Receive | None, send: Send, *, head: bool
    ) -> None:
        """Send an answer piece by piece, until it ends, the client goes or the server stops.

        `receive` is None while the stream itself still reads the request's body: then it is the one to notice that
        the client has gone, and the connection ends with it, for part of that body may be left.
        """
        if receive is None:
            headers.append((b"connection", b"close"))
        try:
            await send({"type": "http.response.start", "status": stream.status, "headers": headers})
            if not head and not self._stopping.is_set():
                await self._pump(stream, receive, send)
            await send({"type": "http.response.body", "body": b""})
        finally:
            if close := getattr(stream.chunks, "aclose", None):
                await close()

    async def _pump(self, stream: Stream, receive: Receive | None, send: Send) -> None:
        async def pump() -> None:
            async for chunk in stream.chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})

        pumping = asyncio.create_task(pump())
        tasks = {pumping} if receive is None else {pumping, asyncio.create_task(until_gone(receive))}
        self._streams.add(pumping)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._streams.discard(pumping)
            for task in tasks:
                task.cancel()
            # The one that was cancelled says so; what the stream itself raised is the caller's to tell.
            await asyncio.gather(*tasks, return_exceptions=True)
        if not pumping.cancelled() and (error := pumping.exception()) is not None:
            raise error

    def end_streams(self) -> None:
        for task in self._streams:
            task.cancel()
