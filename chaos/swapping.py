"""A pooler in a few lines: every transaction gets another backend, and nothing of a session is left for the next.

It speaks as much of PostgreSQL's protocol as that takes: who connects, where a transaction ends, and who cancels.
The database must ask nobody for a password, as private ones do. There is no COPY, no pipelining, no encryption.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from dataclasses import dataclass, field
from typing import Final

_CANCEL: Final = 80_877_102
_WILL_NOT: Final = frozenset({80_877_103, 80_877_104})  # TLS, GSSAPI

_DISCARD: Final = b"Q" + struct.pack("!i", 16) + b"DISCARD ALL\0"
#: What a client says and then waits for: a query, a sync.
_ASKS: Final = frozenset({b"Q", b"S"})


@dataclass(eq=False)
class Backend:
    """One session with the database, in nobody's hands or in one client's."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    #: What it said when it was opened: what a client is told in turn.
    greeting: list[bytes] = field(default_factory=list)
    key: bytes = b""

    @property
    def pid(self) -> int:
        return int(struct.unpack("!i", self.key[:4])[0])

    @property
    def gone(self) -> bool:
        return self.reader.at_eof() or self.writer.is_closing()

    def close(self) -> None:
        self.writer.transport.abort()


class SwapProxy:
    """Listens on a port of its own; no more than `size` backends for everybody, and all for one user and database:
    those of the first who connects."""

    def __init__(self, port: int, chance: random.Random, *, size: int) -> None:
        self._target = port
        self._chance = chance
        self._size = size
        self._places = asyncio.Semaphore(size)
        self._backends: list[Backend] = []
        self._idle: list[Backend] = []
        self._startup = b""
        self._listening: asyncio.Server | None = None
        #: By the number that its client knows it by: who has which backend now.
        self._sessions: dict[int, Backend | None] = {}
        self._clients: dict[asyncio.StreamWriter, None] = {}
        self._numbers = 0
        #: Transactions, and how many of them had another backend than the one before on the same connection.
        self.transactions = 0
        self.swaps = 0

    async def __aenter__(self) -> SwapProxy:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        self._listening = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._listening is not None
        self._listening.close()
        self.cut()

    @property
    def port(self) -> int:
        assert self._listening is not None
        return int(self._listening.sockets[0].getsockname()[1])

    @property
    def clients(self) -> int:
        return len(self._sessions)

    @property
    def backends(self) -> list[int]:
        """The processes at the other end."""
        return [backend.pid for backend in self._backends if not backend.gone]

    def cut(self) -> None:
        """Everybody is disconnected, on both sides, as when a pooler ends."""
        for client in self._clients:
            client.transport.abort()
        for backend in self._idle:
            backend.close()
        self._idle.clear()

    # ── clients ──

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self._clients[to_client] = None
        self._numbers += 1
        number = self._numbers
        try:
            if await self._begin(number, client, to_client):
                await self._talk(number, client, to_client)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._sessions.pop(number, None)
            del self._clients[to_client]
            to_client.transport.abort()

    async def _begin(self, number: int, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> bool:
        """Let a client in; False: it came to cancel what another asks."""
        while True:
            size, code = struct.unpack("!ii", await client.readexactly(8))
            rest = await client.readexactly(size - 8)
            if code not in _WILL_NOT:
                break
            to_client.write(b"N")
        if code == _CANCEL:
            await self._cancel(*struct.unpack("!ii", rest))
            return False
        self._startup = self._startup or struct.pack("!ii", size, code) + rest
        self._sessions[number] = None
        async with self._places:
            backend = await self._take()
            self._idle.append(backend)
        ours = b"K" + struct.pack("!iii", 12, number, 0)
        to_client.write(b"".join([*backend.greeting, ours, b"Z" + struct.pack("!i", 5) + b"I"]))
        await to_client.drain()
        return True

    async def _talk(self, number: int, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """One transaction after the other, each with a backend of its own."""
        last: Backend | None = None
        while (first := await _message(client))[:1] != b"X":
            async with self._places:
                backend = await self._take(other_than=last)
                self._sessions[number] = backend
                try:
                    await self._transact(first, backend, client, to_client)
                    await _ask(backend, _DISCARD)
                except BaseException:
                    # Nobody knows what state it is in.
                    backend.close()
                    raise
                finally:
                    self._sessions[number] = None
                self._idle.append(backend)
            self.transactions += 1
            self.swaps += last is not None and backend is not last
            last = backend

    async def _transact(
        self, first: bytes, backend: Backend, client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        """Until the database says that no transaction is open."""
        statuses: asyncio.Queue[bytes] = asyncio.Queue()
        answering = asyncio.create_task(_answer(backend, to_client, statuses))
        try:
            message = first
            while True:
                backend.writer.write(message)
                await backend.writer.drain()
                if message[:1] in _ASKS and await _next(statuses, answering) == b"I":
                    return
                message = await _message(client)
                if message[:1] == b"X":
                    raise ConnectionResetError("left in a transaction")
        finally:
            answering.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError, asyncio.IncompleteReadError):
                await answering

    async def _cancel(self, number: int, _secret: int) -> None:
        backend = self._sessions.get(number)
        if backend is None:
            return
        _, writer = await asyncio.open_connection("127.0.0.1", self._target)
        writer.write(struct.pack("!ii", 16, _CANCEL) + backend.key)
        await writer.drain()
        writer.close()

    # ── backends ──

    async def _take(self, other_than: Backend | None = None) -> Backend:
        """One that nobody has, if possible another one; a new one as long as there may be more. The caller has a
        place."""
        self._backends = [backend for backend in self._backends if not backend.gone]
        self._idle = [backend for backend in self._idle if not backend.gone]
        others = [backend for backend in self._idle if backend is not other_than]
        if not others and len(self._backends) < self._size:
            return await self._new()
        chosen = self._chance.choice(others or self._idle)
        self._idle.remove(chosen)
        return chosen

    async def _new(self) -> Backend:
        backend = Backend(*await asyncio.open_connection("127.0.0.1", self._target))
        # At once: others may look while it is being opened.
        self._backends.append(backend)
        try:
            await _open(backend, self._startup)
        except BaseException:
            backend.close()
            raise
        return backend


async def _open(backend: Backend, startup: bytes) -> None:
    backend.writer.write(startup)
    while (message := await _message(backend.reader))[:1] != b"Z":
        if message[:1] == b"K":
            backend.key = message[5:]
        elif message[:1] in (b"R", b"S"):
            backend.greeting.append(message)
        elif message[:1] == b"E":
            raise ConnectionRefusedError(message[5:].replace(b"\0", b" ").decode(errors="replace"))


async def _message(reader: asyncio.StreamReader) -> bytes:
    """The next one, whole."""
    head = await reader.readexactly(5)
    return head + await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)


async def _ask(backend: Backend, question: bytes) -> None:
    backend.writer.write(question)
    while (await _message(backend.reader))[:1] != b"Z":
        pass


async def _answer(backend: Backend, to_client: asyncio.StreamWriter, statuses: asyncio.Queue[bytes]) -> None:
    """All that the backend says, and of each end of an answer whether a transaction is open."""
    while True:
        message = await _message(backend.reader)
        to_client.write(message)
        await to_client.drain()
        if message[:1] == b"Z":
            statuses.put_nowait(message[5:6])


async def _next(statuses: asyncio.Queue[bytes], answering: asyncio.Task[None]) -> bytes:
    """The next status; raises what became of the backend if there will be none."""
    waiting = asyncio.create_task(statuses.get())
    await asyncio.wait([waiting, answering], return_when=asyncio.FIRST_COMPLETED)
    if waiting.done():
        return waiting.result()
    waiting.cancel()
    answering.result()
    raise ConnectionResetError("the backend has gone")
