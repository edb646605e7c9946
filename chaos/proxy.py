"""A TCP proxy that misbehaves when it is told to: the network between two processes of a run.

It cuts connections, swallows what comes from one side, holds bytes back, lets them drip, and cuts after so many
bytes. Each connection draws its own fault when it is made, so many kinds are under way at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

CHUNK = 65_536


@dataclass(frozen=True)
class Trouble:
    """What happens to a connection. `after` bytes from the server it is cut; `delay` seconds each piece waits;
    `drip` bytes per second at most; `swallow`: answers never arrive, and nobody is told."""

    after: int | None = None
    delay: float = 0.0
    drip: float | None = None
    swallow: bool = False


NONE = Trouble()


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
        self.troubled = 0
        self.cut_count = 0
        self.noted: Callable[[], None] = lambda: None
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> FaultProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def cut(self, share: float = 1.0) -> int:
        """Break open connections, that share of them, with a reset."""
        chosen = [writer for writer in self._open if self._chance.random() < share]
        for writer in chosen:
            writer.transport.abort()
        self.cut_count += len(chosen) // 2
        return len(chosen) // 2

    def lead_to(self, port: int) -> None:
        """Another server from now on; who is connected is cut."""
        self._target = port
        self.cut()

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        trouble = NONE
        if self.kinds and self._chance.random() < self.share:
            trouble = self._chance.choice(self.kinds)
            self.troubled += 1
            self.noted()
        try:
            server, to_server = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            to_client.transport.abort()
            return
        self._open |= {to_client, to_server}
        try:
            await asyncio.gather(
                self._carry(client, to_server, Trouble(delay=trouble.delay)),
                self._carry(server, to_client, trouble),
            )
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open -= {to_client, to_server}
            for writer in (to_client, to_server):
                writer.transport.abort()

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, trouble: Trouble) -> None:
        carried = 0
        while data := await source.read(CHUNK if trouble.drip is None else max(1, int(trouble.drip / 10))):
            if trouble.delay:
                await asyncio.sleep(trouble.delay)
            if trouble.drip is not None:
                await asyncio.sleep(0.1)
            carried += len(data)
            if trouble.swallow:
                continue
            if trouble.after is not None and carried > trouble.after:
                target.transport.abort()
                return
            target.write(data)
            await target.drain()
        with contextlib.suppress(OSError, RuntimeError):
            target.write_eof()
