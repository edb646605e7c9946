# mypy: ignore-errors
# It runs in the peer's own environment.
"""streaQ under faults: its worker as `streaq run chaos_streaq:worker` runs it."""

from __future__ import annotations

import logging
from typing import Any

import bench_streaq
import chaos_kit
import kit
from streaq import Worker

worker = bench_streaq.worker
if chaos_kit.safest():
    worker = Worker(redis_url=kit.url(), idle_timeout=chaos_kit.lease())
    bench_streaq.worker = worker


@worker.task
async def faulty(index: int) -> Any:
    return await chaos_kit.aperform(index)


class Control(bench_streaq.Control):
    async def enqueue(self, index: int) -> None:
        await faulty.enqueue(index)


async def make() -> Control:
    await worker.__aenter__()
    return Control()


def work() -> None:
    logging.getLogger("streaq").setLevel(logging.WARNING)
    worker.run_sync()


if __name__ == "__main__":
    kit.main(make, work)
