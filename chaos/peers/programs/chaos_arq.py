# mypy: ignore-errors
# It runs in the peer's own environment.
"""arq under faults: its worker as `arq chaos_arq.WorkerSettings` runs it."""

from __future__ import annotations

import asyncio
from typing import Any

import arq
import bench_arq
import chaos_kit
import kit
import uvloop


async def faulty(_context: dict[Any, Any], index: int) -> Any:
    return await chaos_kit.aperform(index)


class WorkerSettings:
    functions = (faulty,)
    redis_settings = bench_arq.WorkerSettings.redis_settings


#: A job that is in progress is locked for ten seconds more than this.
WORKER = {"job_timeout": chaos_kit.timeout()} if chaos_kit.safest() else {}


class Control(bench_arq.Control):
    async def enqueue(self, index: int) -> None:
        await self._pool.enqueue_job("faulty", index)


async def make() -> Control:
    return Control(await arq.create_pool(WorkerSettings.redis_settings))


def work() -> None:
    asyncio.set_event_loop(uvloop.new_event_loop())  # arq takes the loop it finds
    arq.run_worker(WorkerSettings, **WORKER)


if __name__ == "__main__":
    kit.main(make, work)
