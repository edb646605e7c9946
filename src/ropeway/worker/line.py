"""Messages between the worker's processes: framed msgpack over a socket pair."""

from __future__ import annotations

import asyncio
import select
import socket
from typing import Any

import msgspec


class Line:
    """One end. `kind` is the union of what may arrive."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: Any) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = msgspec.msgpack.Decoder(kind)

    @classmethod
    async def over(cls, end: socket.socket, kind: Any) -> Line:
        end.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=end)
        return cls(reader, writer, kind)

    def send(self, message: msgspec.Struct) -> None:
        """Never blocks and never fails: that the other end is gone is noticed by `receive`."""
        if not self._writer.is_closing():
            self._writer.write(framed(message))

    async def receive(self) -> Any:
        """The next message, or None when the other end is gone."""
        try:
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            return self._decoder.decode(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, OSError):
            return None

    def hung_up(self) -> bool:
        """Whether the other end is gone, also when the loop has not heard of it yet."""
        if self._writer.is_closing() or self._reader.at_eof():
            return True
        asked = select.poll()
        asked.register(self._writer.get_extra_info("socket").fileno(), 0)
        return bool(asked.poll(0))

    async def drained(self) -> None:
        """Wait until what was sent is on its way; a lost end is no error here either."""
        try:
            await self._writer.drain()
        except OSError:
            return

    def close(self) -> None:
        self._writer.close()


def framed(message: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "big") + body


def receive_blocking(end: socket.socket, kind: Any) -> Any:
    """The first message, before there is a loop; None when the other end is gone."""
    end.setblocking(True)
    size = int.from_bytes(_exactly(end, 4), "big")
    return msgspec.msgpack.decode(_exactly(end, size), type=kind) if size else None


def _exactly(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = end.recv(size - len(data))
        if not more:
            return b""
        data += more
    return data
