"""A proxy that hands every request on and cuts some of the connections before the reply comes through."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Cutting:
    """Cuts a share of the replies. The server has done what it was asked; the client cannot know."""

    def __init__(self, target: int, share: float, seed: int) -> None:
        self._target = target
        self._share = share
        self._random = random.Random(seed)
        self.cuts = 0
        self.replies = 0
        self.port = 0
        self._open: set[asyncio.Task[None]] = set()

    async def serve(self, ready: threading.Event, stop: asyncio.Event) -> None:
        server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        async with server:
            await stop.wait()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._client(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", self._target)
        forth = asyncio.create_task(_pass_on(reader, upstream))
        try:
            while data := await upstream_reader.read(1 << 16):
                self.replies += 1
                if self._random.random() < self._share:
                    self.cuts += 1
                    # A reset, not a polite end: half of a reply is no reply either.
                    writer.transport.abort()
                    return
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            forth.cancel()
            writer.close()
            upstream.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass


@contextmanager
def cutting(target: int, *, share: float, seed: int = 7) -> Iterator[Cutting]:
    """The proxy, in a thread with a loop of its own: blocking clients may use it too."""
    proxy = Cutting(target, share, seed)
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    def run() -> None:
        try:
            loop.run_until_complete(proxy.serve(ready, stop))
        finally:
            loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        assert ready.wait(10)
        yield proxy
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
