"""An answer that comes byte by byte, each in time and never all of them, does not hold its caller for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ropeway import AsyncClient, Client
from ropeway.core.errors import Indeterminate
from ropeway.wire.calls import Patience

ONCE = Patience(tries=1)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"


@asynccontextmanager
async def dripping(head: bytes) -> AsyncIterator[str]:
    """A server that sends `head` and then, for as long as anybody listens, one byte at a time."""

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head)
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        server.close()


@pytest.mark.parametrize("head", [HEAD, b"HTTP/1.1 200 OK\r\nX-Long: "], ids=["in its body", "in its head"])
async def test_an_async_call_ends(head: bytes) -> None:
    async with dripping(head) as url, AsyncClient(url, "rk_key", timeout=0.2, patience=ONCE) as client:
        with pytest.raises(Indeterminate, match="came too slowly"):
            async with asyncio.timeout(20):
                await client.list_queues()


async def test_a_blocking_call_ends() -> None:
    async with dripping(HEAD) as url:

        def ask() -> None:
            with Client(url, "rk_key", timeout=0.2, patience=ONCE) as client:
                client.list_queues()

        with pytest.raises(Indeterminate, match="came too slowly"):
            async with asyncio.timeout(20):
                await asyncio.to_thread(ask)
