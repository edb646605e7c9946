"""Celery on Redis: its own worker, started as `celery worker` starts it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import kit
import redis
from celery import Celery

LEAN = ["--pool=solo", "--without-gossip", "--without-mingle", "--without-heartbeat"]

#: Options of `celery worker` per profile; `default` takes what Celery takes without any.
OPTIONS = {
    "throughput": [*LEAN, "--prefetch-multiplier=128"],
    "latency": LEAN,
    "default": [f"--concurrency={kit.processes()}"],
}

app = Celery("bench", broker=kit.url())
app.conf.broker_connection_retry_on_startup = True  # silences a warning; it is how Celery behaves anyway


@app.task(name="noop")
def noop(index: int, pad: str) -> None:
    kit.ran(index)


@app.task(name="hold")
def hold(index: int) -> None:
    kit.hold(index)


class Control:
    def __init__(self) -> None:
        self._redis = redis.Redis.from_url(kit.url())
        self.enqueue = kit.in_threads(lambda index: noop.delay(index, kit.PAD), 4)

    async def setup(self) -> dict[str, Any]:
        return {}

    async def enqueue_many(self, indexes: Sequence[int]) -> None:
        raise NotImplementedError("Celery has no bulk call: a group sends its tasks one by one")

    async def enqueue_held(self, index: int) -> None:
        hold.delay(index)

    async def pending(self) -> int:
        """In the list, or fetched and not acknowledged. A task is acknowledged when it starts, the default."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.llen("celery")
        pipe.hlen("unacked")
        return sum(pipe.execute())

    async def finished(self) -> int | None:
        return None  # without a result backend, which is the default, nothing is kept

    async def close(self) -> None:
        app.close()


async def make() -> Control:
    return Control()


def one_worker() -> None:
    app.worker_main(["worker", "--loglevel=WARNING", f"--hostname={os.getpid()}@%h", *OPTIONS[kit.profile()]])


def work() -> None:
    if kit.profile() == "default":
        one_worker()  # the pool has as many processes as were asked for
    else:
        kit.fork(one_worker)


if __name__ == "__main__":
    kit.main(make, work)
