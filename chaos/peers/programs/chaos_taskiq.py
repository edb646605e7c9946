# mypy: ignore-errors
# It runs in the peer's own environment.
"""taskiq under faults: the stream broker of taskiq-redis and its own command line."""

from __future__ import annotations

import os
import sys
from typing import Any

import bench_taskiq
import chaos_kit
import kit
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

broker = bench_taskiq.broker
if chaos_kit.safest():
    broker = RedisStreamBroker(
        kit.url(), idle_timeout=1_000 * chaos_kit.timeout(), unacknowledged_lock_timeout=5
    ).with_result_backend(RedisAsyncResultBackend(kit.url()))
    bench_taskiq.broker = broker


@broker.task("faulty")
async def faulty(index: int) -> Any:
    return await chaos_kit.aperform(index)


class Control(bench_taskiq.Control):
    async def enqueue(self, index: int) -> None:
        await faulty.kiq(index)


async def make() -> Control:
    return Control()


def work() -> None:
    """Become `taskiq worker chaos_taskiq:broker`: a process that starts one worker and watches it."""
    options = ["--log-level=WARNING", "--workers=1"]
    os.execv(sys.executable, [sys.executable, "-m", "taskiq", "worker", "chaos_taskiq:broker", *options])


if __name__ == "__main__":
    kit.main(make, work)
