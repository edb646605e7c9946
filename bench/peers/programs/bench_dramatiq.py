"""Dramatiq on Redis: its own command line, with processes and threads."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dramatiq
import kit
from dramatiq.brokers.redis import RedisBroker

#: What a worker reads from its environment, per profile; it has eight threads, the default, in all of them.
#: Prefetch: with the default (16) the fetching thread sleeps 5 to 10 ms whenever that many are on their way.
VARIABLES: dict[str, dict[str, str]] = {
    "throughput": {"dramatiq_queue_prefetch": "500"},
    "latency": {"dramatiq_worker_timeout": "10"},
    "default": {},
}

broker = RedisBroker(url=kit.url())
dramatiq.set_broker(broker)


@dramatiq.actor
def noop(index: int, pad: str) -> None:
    kit.ran(index)


@dramatiq.actor
def hold(index: int) -> None:
    kit.hold(index)


class Control:
    async def setup(self) -> dict[str, Any]:
        return {}

    async def enqueue(self, index: int) -> None:
        noop.send(index, kit.PAD)  # blocks, as short as it is: threads around it would make it slower

    async def enqueue_many(self, indexes: Sequence[int]) -> None:
        raise NotImplementedError("Dramatiq has no bulk call: a group sends its messages one by one")

    async def enqueue_held(self, index: int) -> None:
        hold.send(index)

    async def pending(self) -> int:
        """Every message is in this hash until it is acknowledged; delayed ones are in a hash of their own."""
        pipe = broker.client.pipeline(transaction=True)
        pipe.hlen("dramatiq:default.msgs")
        pipe.hlen("dramatiq:default.DQ.msgs")
        return sum(pipe.execute())

    async def finished(self) -> int | None:
        return None  # forgotten when acknowledged

    async def close(self) -> None:
        broker.close()


async def make() -> Control:
    return Control()


def work() -> None:
    """Become `dramatiq bench_dramatiq …`: one process that forks the workers."""
    os.environ.update(VARIABLES[kit.profile()])
    options = ["--path", str(Path(__file__).parent), "--processes", str(kit.processes()), "--skip-logging"]
    os.execv(sys.executable, [sys.executable, "-m", "dramatiq", "bench_dramatiq", *options])


if __name__ == "__main__":
    kit.main(make, work)
