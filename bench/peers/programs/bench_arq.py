"""arq: its worker as `arq bench_arq.WorkerSettings` runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import arq
import kit
import uvloop
from arq.connections import RedisSettings

#: What differs from arq's defaults, per profile.
WORKER: dict[str, dict[str, Any]] = {
    "throughput": {"poll_delay": 0.01},
    "latency": {"poll_delay": 0.01},
    "default": {},
}


async def noop(_context: dict[Any, Any], index: int, pad: str) -> None:
    kit.ran(index)


async def hold(_context: dict[Any, Any], index: int) -> None:
    await kit.ahold(index)


class WorkerSettings:
    functions = (noop, hold)
    redis_settings = RedisSettings.from_dsn(kit.url())


class Control:
    def __init__(self, pool: arq.ArqRedis) -> None:
        self._pool = pool

    async def setup(self) -> dict[str, Any]:
        return {}

    async def enqueue(self, index: int) -> None:
        await self._pool.enqueue_job("noop", index, kit.PAD)

    async def enqueue_many(self, indexes: Sequence[int]) -> None:
        raise NotImplementedError("arq has no bulk call")

    async def enqueue_held(self, index: int) -> None:
        await self._pool.enqueue_job("hold", index)

    async def pending(self) -> int:
        """A job leaves the queue in the transaction that writes its result."""
        return int(await self._pool.zcard(self._pool.default_queue_name))

    async def finished(self) -> int | None:
        return None  # a key for each result, for an hour: nothing that can be counted in one step

    async def close(self) -> None:
        await self._pool.aclose()


async def make() -> Control:
    return Control(await arq.create_pool(WorkerSettings.redis_settings))


def one_worker() -> None:
    asyncio.set_event_loop(uvloop.new_event_loop())  # arq takes the loop it finds
    arq.run_worker(WorkerSettings, **WORKER[kit.profile()])


def work() -> None:
    kit.fork(one_worker)


if __name__ == "__main__":
    kit.main(make, work)
