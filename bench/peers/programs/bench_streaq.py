"""streaQ: its worker as `streaq run bench_streaq:worker` runs it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import kit
from streaq import Worker

#: What differs from streaQ's defaults, per profile.
WORKER: dict[str, dict[str, Any]] = {
    "throughput": {"concurrency": 64, "prefetch": 500, "anyio_kwargs": {"use_uvloop": True}},
    "latency": {"anyio_kwargs": {"use_uvloop": True}},
    "default": {},
}

worker: Worker[Any] = Worker(redis_url=kit.url(), **WORKER[kit.profile()])


@worker.task
async def noop(index: int, pad: str) -> None:
    kit.ran(index)


@worker.task
async def hold(index: int) -> None:
    await kit.ahold(index)


class Control:
    async def setup(self) -> dict[str, Any]:
        return {}

    async def enqueue(self, index: int) -> None:
        await noop.enqueue(index, kit.PAD)

    async def enqueue_many(self, indexes: Sequence[int]) -> None:
        await worker.enqueue_many([noop.enqueue(index, kit.PAD) for index in indexes])

    async def enqueue_held(self, index: int) -> None:
        await hold.enqueue(index)

    async def pending(self) -> int:
        """A task leaves the stream in the transaction that writes its result; delayed ones are in a set."""
        streams = [await worker.redis.xlen(worker.stream_key + priority) for priority in worker.priorities]
        delayed = [await worker.redis.zcard(worker.queue_key + priority) for priority in worker.priorities]
        return sum(streams) + sum(delayed)

    async def finished(self) -> int | None:
        """Results kept: five minutes each."""
        return int(await worker.redis.zcard(worker.prefix + ":index:results"))

    async def close(self) -> None:
        await worker.__aexit__(None, None, None)


async def make() -> Control:
    await worker.__aenter__()
    return Control()


def one_worker() -> None:
    logging.getLogger("streaq").setLevel(logging.WARNING)
    worker.run_sync()


def work() -> None:
    kit.fork(one_worker)


if __name__ == "__main__":
    kit.main(make, work)
