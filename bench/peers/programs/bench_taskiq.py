"""taskiq with the stream broker of taskiq-redis: its own command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kit
from redis.asyncio import Redis
from taskiq_redis import RedisStreamBroker

#: Options of `taskiq worker` per profile. Fetching more at once, or further ahead, makes no difference.
OPTIONS: dict[str, list[str]] = {"throughput": ["--no-parse"], "latency": ["--no-parse"], "default": []}

broker = RedisStreamBroker(kit.url())


@broker.task("noop")
async def noop(index: int, pad: str) -> None:
    kit.ran(index)


@broker.task("hold")
async def hold(index: int) -> None:
    await kit.ahold(index)


class Control:
    def __init__(self) -> None:
        self._redis = Redis(connection_pool=broker.connection_pool)

    async def setup(self) -> dict[str, Any]:
        # Makes the consumer group, which sees only what is sent after that.
        await broker.startup()
        return {}

    async def enqueue(self, index: int) -> None:
        await noop.kiq(index, kit.PAD)

    async def enqueue_many(self, indexes: Sequence[int]) -> None:
        raise NotImplementedError("taskiq has no bulk call")

    async def enqueue_held(self, index: int) -> None:
        await hold.kiq(index)

    async def pending(self) -> int:
        """Not yet delivered to the group, or delivered and not acknowledged."""
        group = await self._group()
        return int(group["lag"]) + int(group["pending"])

    async def finished(self) -> int | None:
        """Delivered and acknowledged."""
        group = await self._group()
        return int(group["entries-read"] or 0) - int(group["pending"])

    async def _group(self) -> dict[str, Any]:
        (group,) = await self._redis.xinfo_groups(broker.queue_name)
        return group  # type: ignore[no-any-return]

    async def close(self) -> None:
        await broker.shutdown()


async def make() -> Control:
    return Control()


def work() -> None:
    """Become `taskiq worker bench_taskiq:broker …`: one process that starts the workers."""
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    options = ["--log-level=WARNING", f"--workers={kit.processes()}", *OPTIONS[kit.profile()]]
    os.execv(sys.executable, [sys.executable, "-m", "taskiq", "worker", "bench_taskiq:broker", *options])


if __name__ == "__main__":
    kit.main(make, work)
