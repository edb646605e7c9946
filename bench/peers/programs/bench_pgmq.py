"""pgmq: a message queue in PostgreSQL, without jobs. The worker here is the loop its user would write."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from typing import Any

import kit
from pgmq import AsyncPGMQueue, install_pgmq_from_sql
from pgmq.messages import Message

QUEUE = "bench"

#: Up to `qty` messages are read in one call and deleted in one. It is the server that polls, in the call.
TUNED = {"qty": 1_000, "max_poll_seconds": 1, "poll_interval_ms": 2}


async def _connect(connections: int) -> AsyncPGMQueue:
    # Plain SQL makes the same functions as the extension, which is not there to be created.
    queue = AsyncPGMQueue(conn_string=kit.url(), pool_size=connections, init_extension=False)
    await queue.init()
    return queue


class Control:
    def __init__(self, queue: AsyncPGMQueue) -> None:
        self._queue = queue

    async def setup(self) -> dict[str, Any]:
        version = install_pgmq_from_sql(dsn=kit.url())
        await self._queue.create_queue(QUEUE)
        return {"extension": version}

    async def enqueue(self, index: int) -> None:
        await self._queue.send(QUEUE, {"do": "noop", "i": index, "pad": kit.PAD})

    async def enqueue_many(self, indexes: Sequence[int]) -> None:
        await self._queue.send_batch(QUEUE, [{"do": "noop", "i": index, "pad": kit.PAD} for index in indexes])

    async def enqueue_held(self, index: int) -> None:
        await self._queue.send(QUEUE, {"do": "hold", "i": index})

    async def pending(self) -> int:
        return int(await self._queue.pool.fetchval(f"SELECT count(*) FROM pgmq.q_{QUEUE}"))

    async def finished(self) -> int | None:
        return None  # a deleted message leaves nothing behind

    async def close(self) -> None:
        await self._queue.close()


async def _handle(message: Message) -> None:
    if message.message["do"] == "hold":
        await kit.ahold(message.message["i"])
    else:
        kit.ran(message.message["i"])


async def _consume(queue: AsyncPGMQueue, told_to_stop: asyncio.Event) -> None:
    settings: dict[str, Any] = {} if kit.profile() == "default" else TUNED
    while not told_to_stop.is_set():
        messages = await queue.read_with_poll(QUEUE, **settings)
        for message in messages:
            await _handle(message)
        if messages:
            await queue.delete_batch(QUEUE, [message.msg_id for message in messages])


async def _work() -> None:
    told_to_stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told_to_stop.set)
    queue = await _connect(connections=1)
    await _consume(queue, told_to_stop)
    await queue.close()


def work() -> None:
    kit.fork(lambda: kit.run(_work()))


async def control() -> Control:
    return Control(await _connect(connections=20))


if __name__ == "__main__":
    kit.main(control, work)
