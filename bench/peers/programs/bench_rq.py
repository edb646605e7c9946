"""RQ: SimpleWorker (no fork for each job), and in profile `default` the Worker that forks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import kit
import redis
import rq
from rq.intermediate_queue import IntermediateQueue
from rq.registry import FinishedJobRegistry, StartedJobRegistry

connection = redis.Redis.from_url(kit.url())
queue = rq.Queue(connection=connection)

#: RQ finds a function by its dotted name.
NOOP, HOLD = "bench_rq.noop", "bench_rq.hold"


def noop(index: int, pad: str) -> None:
    kit.ran(index)


def hold(index: int) -> None:
    kit.hold(index)


class Control:
    def __init__(self) -> None:
        self.enqueue = kit.in_threads(lambda index: queue.enqueue(NOOP, index, kit.PAD), 4)
        self._started_key = StartedJobRegistry(queue=queue).key
        self._finished_key = FinishedJobRegistry(queue=queue).key
        self._intermediate_key = IntermediateQueue.get_intermediate_queue_key(queue.key)

    async def setup(self) -> dict[str, Any]:
        return {}

    async def enqueue_many(self, indexes: Sequence[int]) -> None:
        queue.enqueue_many([rq.Queue.prepare_data(NOOP, (index, kit.PAD)) for index in indexes])

    async def enqueue_held(self, index: int) -> None:
        queue.enqueue(HOLD, index)

    async def pending(self) -> int:
        """Waiting, on the way to a worker, or started. (A job between the last two is in both for a moment.)"""
        pipe = connection.pipeline(transaction=True)
        pipe.llen(queue.key)
        pipe.llen(self._intermediate_key)
        pipe.zcard(self._started_key)
        return sum(pipe.execute())

    async def finished(self) -> int | None:
        return connection.zcard(self._finished_key)

    async def close(self) -> None:
        connection.close()


async def make() -> Control:
    return Control()


def one_worker() -> None:
    kind = rq.Worker if kit.profile() == "default" else rq.SimpleWorker
    kind([queue], connection=connection).work(logging_level="WARNING")


def work() -> None:
    kit.fork(one_worker)


if __name__ == "__main__":
    kit.main(make, work)
