"""A TCP proxy that misbehaves when it is told to: the network between two processes of a run.

It cuts connections, swallows what comes from one side, holds bytes back, lets them drip, and cuts after so many
bytes. Each connection draws its own fault when it is made, so many kinds are under way at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from urllib.parse import urlsplit

CHUNK = 65_536


@dataclass(frozen=True)
class Trouble:
    """What happens to a connection: to its answers, or to its `questions`.

    It is cut `after` so many bytes; each piece waits for `delay` seconds, in both directions; no more than `drip`
    bytes per second get through; `swallow`: nothing arrives any more, and nobody is told. `begins` bytes get
    through before that as if nothing were wrong. Some `seconds` after it began the connection is cut at its next
    piece.
    """

    after: int | None = None
    delay: float = 0.0
    drip: float | None = None
    swallow: bool = False
    questions: bool = False
    begins: int = 0
    seconds: float = inf

    @property
    def name(self) -> str:
        kinds = (("cut", self.after is not None), ("delay", self.delay), ("drip", self.drip))
        kind = next((name for name, there in kinds if there), "swallow")
        return f"{kind}, questions" if self.questions else kind

    @property
    def lasts(self) -> bool:
        """Whether the connection stays open with it."""
        return self.after is None

    def of(self, *, questions: bool) -> Trouble:
        """The part of it that one direction has."""
        if self.questions is questions:
            return self
        return Trouble(delay=self.delay, begins=self.begins, seconds=self.seconds) if self.delay else NONE

    def piece(self, carried: int) -> int:
        """How many bytes may be read at once, after so many."""
        if carried < self.begins:
            return min(CHUNK, self.begins - carried)
        return CHUNK if self.drip is None else max(1, int(self.drip / 10))


NONE = Trouble()


class _Line:
    """One connection through the proxy. `bitten` is when its trouble began; None: not yet."""

    def __init__(self, trouble: Trouble, *ends: asyncio.StreamWriter) -> None:
        self.trouble = trouble
        self.bitten: float | None = None
        self._ends = ends

    def abort(self) -> None:
        for end in self._ends:
            end.transport.abort()


class FaultProxy:
    """Listens on a port of its own and leads to another one."""

    def __init__(
        self, port: int, chance: random.Random, *, share: float = 0.0, kinds: Sequence[Trouble] = ()
    ) -> None:
        self._target = port
        self._chance = chance
        #: The share of new connections that get into trouble.
        self.share = share
        self.kinds = tuple(kinds)
        #: Whether answers arrive nowhere, on any connection.
        self.hushed = False
        #: How often each kind of trouble was met, cuts from outside among them.
        self.met: Counter[str] = Counter()
        #: Called with what happens and when it begins, just before; if it lasted, with the same when it is over.
        self.noted: Callable[[str, float], None] = lambda _kind, _began: None
        self.ended: Callable[[str, float], None] = lambda _kind, _began: None
        self._server: asyncio.Server | None = None
        self._lines: dict[_Line, None] = {}
        self._deck: list[Trouble] = []

    async def __aenter__(self) -> FaultProxy:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for line in self._lines:
            line.abort()

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def way(self, url: str) -> str:
        """The address of the server as it is reached through here."""
        address = urlsplit(url)
        assert address.port is not None
        return address._replace(netloc=address.netloc.replace(str(address.port), str(self.port))).geturl()

    def cut(self, share: float = 1.0, *, sound: bool = False) -> int:
        """Break open connections with a reset, that share of them. `sound`: only such as have no other trouble, so
        that what hangs goes on hanging. How many there were."""
        lines = [line for line in self._lines if not sound or line.trouble is NONE]
        chosen = [line for line in lines if self._chance.random() < share]
        self._cut(chosen)
        return len(chosen)

    def lead_to(self, port: int) -> None:
        """Another server from now on; who is connected is cut."""
        self._target = port
        self.cut()

    def relieve(self) -> None:
        """No more trouble from now on; who is in it, or was to get into it, is cut."""
        self.share = 0.0
        self._cut([line for line in self._lines if line.trouble is not NONE])

    def _cut(self, lines: Sequence[_Line]) -> None:
        for line in lines:
            self._note("cut from outside", time.monotonic())
            line.abort()

    def _note(self, kind: str, began: float) -> None:
        self.met[kind] += 1
        self.noted(kind, began)

    def _draw(self) -> Trouble:
        """What a new connection gets into: no kind comes again before all have come."""
        if not self.kinds or self._chance.random() >= self.share:
            return NONE
        if not self._deck:
            self._deck = self._chance.sample(self.kinds, len(self.kinds))
        return self._deck.pop()

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        drawn = self._draw()
        try:
            server, to_server = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            to_client.transport.abort()
            return
        line = _Line(drawn, to_client, to_server)
        self._lines[line] = None
        try:
            await asyncio.gather(
                self._carry(line, client, to_server, questions=True),
                self._carry(line, server, to_client, questions=False),
            )
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            del self._lines[line]
            line.abort()
            if line.bitten is not None and drawn.lasts:
                self.ended(drawn.name, line.bitten)

    async def _carry(
        self, line: _Line, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, questions: bool
    ) -> None:
        trouble = line.trouble.of(questions=questions)
        carried = 0
        while data := await source.read(trouble.piece(carried)):
            sound = trouble == NONE or carried < trouble.begins
            carried += len(data)
            if self.hushed and not questions:
                continue
            if not sound and not await self._let_through(line, trouble, data, carried - trouble.begins):
                if trouble.lasts:
                    continue
                target.transport.abort()
                return
            target.write(data)
            await target.drain()
        with contextlib.suppress(OSError, RuntimeError):
            target.write_eof()

    async def _let_through(self, line: _Line, trouble: Trouble, data: bytes, carried: int) -> bool:
        """Whether a piece arrives in the end, the last of so many bytes; it may take its time."""
        whole = trouble.after is None or carried <= trouble.after
        if line.bitten is None and (trouble.lasts or not whole):
            line.bitten = time.monotonic()
            self._note(line.trouble.name, line.bitten)
        if line.bitten is not None and time.monotonic() - line.bitten > trouble.seconds:
            raise ConnectionResetError("it has had its time")
        await asyncio.sleep(trouble.delay + (len(data) / trouble.drip if trouble.drip else 0.0))
        return whole and not trouble.swallow
