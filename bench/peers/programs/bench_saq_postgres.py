"""SAQ on PostgreSQL: a claim takes as many jobs as coroutines wait, each job is written three times."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import kit
from psycopg_pool import AsyncConnectionPool
from saq import Queue, Worker
from saq.queue.postgres import PostgresQueue

TUNED = {"concurrency": 50}


def _queue(**connections: int) -> PostgresQueue:
    """On a pool of ours: the one that SAQ would make asks each connection whether it lives before each query."""
    return PostgresQueue(AsyncConnectionPool(kit.url(), open=False), manage_pool_lifecycle=True, **connections)


async def noop(_context: object, *, i: int, pad: str) -> None:
    kit.ran(i)


async def hold(_context: object, *, i: int) -> None:
    await kit.ahold(i)


class Control:
    def __init__(self, queue: PostgresQueue) -> None:
        self._queue = queue

    async def setup(self) -> dict[str, Any]:
        return {}  # connecting has made the tables: SAQ migrates by itself

    async def enqueue(self, index: int) -> None:
        await self._queue.enqueue("noop", i=index, pad=kit.PAD)

    async def enqueue_many(self, indexes: Sequence[int]) -> None:
        raise NotImplementedError("SAQ has no call that enqueues many jobs")

    async def enqueue_held(self, index: int) -> None:
        await self._queue.enqueue("hold", i=index)

    async def pending(self) -> int:
        return int(await self._queue.count("incomplete"))

    async def finished(self) -> int | None:
        async with self._queue.pool.connection() as connection:
            cursor = await connection.execute("SELECT count(*) FROM saq_jobs WHERE status = 'complete'")
            return int((await cursor.fetchone())[0])

    async def close(self) -> None:
        await self._queue.disconnect()


async def control() -> Control:
    queue = _queue(min_size=20, max_size=20)
    await queue.connect()
    return Control(queue)


async def _work() -> None:
    untouched = kit.profile() == "default"
    queue = Queue.from_url(kit.url()) if untouched else _queue()
    await queue.connect()
    try:
        await Worker(queue, [noop, hold], **({} if untouched else TUNED)).start()
    finally:
        await queue.disconnect()


def work() -> None:
    logging.basicConfig(level=logging.WARNING)
    kit.fork(lambda: kit.run(_work()))


if __name__ == "__main__":
    kit.main(control, work)
