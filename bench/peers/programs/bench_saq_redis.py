"""SAQ on Redis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import kit
from saq import Queue, Worker

#: What differs from SAQ's defaults, per profile.
WORKER: dict[str, dict[str, Any]] = {
    "throughput": {"concurrency": 30},
    "latency": {},
    "default": {},
}


async def noop(_context: dict[str, Any], *, index: int, pad: str) -> None:
    kit.ran(index)


async def hold(_context: dict[str, Any], *, index: int) -> None:
    await kit.ahold(index)


class Control:
    def __init__(self) -> None:
        self._queue = Queue.from_url(kit.url())

    async def setup(self) -> dict[str, Any]:
        await self._queue.connect()
        return {}

    async def enqueue(self, index: int) -> None:
        await self._queue.enqueue("noop", index=index, pad=kit.PAD)

    async def enqueue_many(self, indexes: Sequence[int]) -> None:
        raise NotImplementedError("SAQ has no bulk call")

    async def enqueue_held(self, index: int) -> None:
        await self._queue.enqueue("hold", index=index)

    async def pending(self) -> int:
        """A job leaves the set of incomplete ones in the transaction that writes its result."""
        return await self._queue.count("incomplete")

    async def finished(self) -> int | None:
        return None  # a key for each result, for ten minutes: nothing that can be counted in one step

    async def close(self) -> None:
        await self._queue.disconnect()


async def make() -> Control:
    return Control()


def one_worker() -> None:
    kit.run(_worker())


async def _worker() -> None:
    queue = Queue.from_url(kit.url())
    await queue.connect()
    try:
        await Worker(queue, [noop, hold], **WORKER[kit.profile()]).start()
    finally:
        await queue.disconnect()


def work() -> None:
    kit.fork(one_worker)


if __name__ == "__main__":
    kit.main(make, work)
