"""What can be seen of a run from outside: command lines, answers over HTTP, files, rows. All of it is evidence."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from chaos.canaries import Evidence

#: Kinds of places.
LOGS: Final = "logs"
METRICS: Final = "metrics"
TRACES: Final = "traces"
REFUSALS: Final = "error bodies"
EVENTS: Final = "events"
ANSWERS: Final = "answers without payloads"
PAGES: Final = "pages without payloads"
COMMANDS: Final = "command lines"
#: For keys that may see payloads, and for whoever has the database itself.
PAYLOADS: Final = "answers with payloads"
STORE: Final = "the store"

#: Seconds that a stream of events is listened to.
LISTEN: Final = 2.0


class Visitor:
    """Somebody who asks a server, with a key or without. All that comes back is evidence; refusals are kept apart.

    `place` is the kind of place that answers to this visitor are.
    """

    def __init__(self, url: str, evidence: Evidence, place: str, token: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.AsyncClient(base_url=url, headers=headers, timeout=30.0, trust_env=False)
        self._evidence = evidence
        self._place = place

    async def __aenter__(self) -> Visitor:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def ask(self, method: str, path: str, *, place: str | None = None, **more: Any) -> httpx.Response:
        answer = await self._client.request(method, path, **more)
        kind = REFUSALS if answer.status_code >= 400 else place or self._place
        self._evidence.add(kind, f"{method} {answer.url.path}", _whole(answer))
        return answer

    async def look(self, *paths: str, place: str | None = None) -> None:
        for path in paths:
            await self.ask("GET", path, place=place)

    async def listen(self, path: str) -> None:
        """The beginning of a stream."""
        seen = b""
        with contextlib.suppress(TimeoutError, httpx.HTTPError):
            async with asyncio.timeout(LISTEN), self._client.stream("GET", path) as answer:
                async for piece in answer.aiter_bytes():
                    seen += piece
        self._evidence.add(EVENTS, f"the stream {path.partition('?')[0]}", seen)


def _whole(answer: httpx.Response) -> bytes:
    head = [f"HTTP {answer.status_code}", *(f"{name}: {value}" for name, value in answer.headers.items())]
    return "\n".join(head).encode() + b"\n\n" + answer.content


async def say_plainly(port: int, words: bytes, evidence: Evidence) -> None:
    """Bytes that need not be HTTP, and what comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(words)
        async with asyncio.timeout(10.0):
            evidence.add(REFUSALS, "an answer to what is not HTTP", await reader.read(65_536))
    finally:
        writer.close()


@asynccontextmanager
async def watching_processes(evidence: Evidence) -> AsyncIterator[None]:
    """Every command line on this machine, as `ps` shows it to everybody."""

    async def watch() -> None:
        while True:
            await asyncio.to_thread(_look_at_processes, evidence)
            await asyncio.sleep(0.1)

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher


def _look_at_processes(evidence: Evidence) -> None:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().replace(b"\0", b" ").strip()
            evidence.add(COMMANDS, words.decode(errors="replace")[:40], words)
