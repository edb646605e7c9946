"""One write per answer: the head of a response waits for its body, which follows at once nearly always.

Uvicorn writes the two apart, and each write is a call to the system, a packet, and a turn of the client's loop.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

_HEAD: Final = b"HTTP/1.1 "


class OneWrite:
    """A connection's transport. A head goes out with the next write, or by itself when the loop turns."""

    __slots__ = ("_held", "_loop", "_transport", "get_extra_info", "is_closing")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: bytes | None = None
        # Asked for with every request.
        self.is_closing = transport.is_closing
        self.get_extra_info = transport.get_extra_info

    def write(self, data: bytes) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._transport.write(held + data)
        elif data.startswith(_HEAD):
            self._held = data
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def write_eof(self) -> None:
        self._flush()
        self._transport.write_eof()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._transport.write(held)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
