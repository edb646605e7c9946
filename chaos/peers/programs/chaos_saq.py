# mypy: ignore-errors
# It runs in the peer's own environment.
"""SAQ under faults, on Redis or PostgreSQL: what its documentation shows is the same for both."""

from __future__ import annotations

from typing import Any

import chaos_kit
import kit
from saq import Queue, Worker

#: How often stuck jobs are looked for.
WORKER = {"timers": {"sweep": 5}} if chaos_kit.safest() else {}
JOB = {"timeout": chaos_kit.timeout(), "retries": 5} if chaos_kit.safest() else {}


async def faulty(_context: dict[str, Any], *, index: int) -> Any:
    return await chaos_kit.aperform(index)


class Control:
    def __init__(self) -> None:
        self._queue = Queue.from_url(kit.url())

    async def setup(self) -> dict[str, Any]:
        await self._queue.connect()
        return {}

    async def enqueue(self, index: int) -> None:
        await self._queue.enqueue("faulty", index=index, **JOB)

    async def pending(self) -> int:
        return int(await self._queue.count("incomplete"))

    async def finished(self) -> int | None:
        return None

    async def close(self) -> None:
        await self._queue.disconnect()


async def make() -> Control:
    return Control()


async def _worker() -> None:
    queue = Queue.from_url(kit.url())
    await queue.connect()
    try:
        await Worker(queue, [faulty], **WORKER).start()
    finally:
        await queue.disconnect()


def work() -> None:
    kit.run(_worker())


if __name__ == "__main__":
    kit.main(make, work)
