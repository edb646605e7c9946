"""A reader of the server's event stream that is cut off again and again, and goes on where it was."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time

import httpx

#: Seconds without a byte after which the reader takes the connection for dead: a comment comes every 15.
SILENCE = 20.0


class Follower:
    """`seen` is every event in the order in which it came: job and seq."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._token = token
        self._place: str | None = None
        self.seen: list[tuple[str, int]] = []
        self.connections = 0
        self.heard_at = time.monotonic()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _follow(self) -> None:
        async with httpx.AsyncClient(timeout=SILENCE) as client:
            while True:
                try:
                    await self._read(client)
                except httpx.HTTPError:
                    await asyncio.sleep(0.05)

    async def _read(self, client: httpx.AsyncClient) -> None:
        self.connections += 1
        headers = {"Accept": "text/event-stream"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if self._place is not None:
            headers["Last-Event-ID"] = self._place
        # The first time from the beginning; afterwards the header says where.
        query = "?after=start" if self._place is None else ""
        async with client.stream("GET", f"{self._url}/v1/events{query}", headers=headers) as answer:
            answer.raise_for_status()
            place, data = None, ""
            async for line in answer.aiter_lines():
                if line.startswith("id:"):
                    place = line[3:].strip()
                elif line.startswith("data:"):
                    data += line[5:].strip()
                elif not line:
                    self._take(place, data)
                    place, data = None, ""

    def _take(self, place: str | None, data: str) -> None:
        """A whole event: half of one that was cut off is not counted, and comes again."""
        if data:
            event = json.loads(data)
            if "job_id" in event and "seq" in event:
                self.seen.append((event["job_id"], event["seq"]))
                self.heard_at = time.monotonic()
        if place is not None:
            self._place = place
