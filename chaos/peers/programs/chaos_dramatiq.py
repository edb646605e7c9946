# mypy: ignore-errors
# It runs in the peer's own environment.
"""Dramatiq under faults: its own command line, one process with its default of eight threads."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import bench_dramatiq
import chaos_kit
import dramatiq
import kit
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

if chaos_kit.safest():
    #: Every command looks after the messages of dead workers, instead of one in a thousand.
    always = 1_000_000
    broker = RedisBroker(url=kit.url(), heartbeat_timeout=1_000 * chaos_kit.lease(), maintenance_chance=always)
    broker.add_middleware(Results(backend=RedisBackend(url=kit.url()), store_results=True))
    dramatiq.set_broker(broker)
    bench_dramatiq.broker = broker


@dramatiq.actor
def faulty(index: int) -> Any:
    return chaos_kit.perform(index)


class Control(bench_dramatiq.Control):
    async def enqueue(self, index: int) -> None:
        faulty.send(index)


async def make() -> Control:
    return Control()


def work() -> None:
    options = ["--path", str(Path(__file__).parent), "--processes", "1", "--skip-logging"]
    os.execv(sys.executable, [sys.executable, "-m", "dramatiq", "chaos_dramatiq", *options])


if __name__ == "__main__":
    kit.main(make, work)
