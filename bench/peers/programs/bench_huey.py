"""huey on Redis and on SQLite: its consumer, as huey_consumer.py runs it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import huey as huey_package
import kit

#: Options of the consumer, per store and profile; `default` takes what huey_consumer.py takes without any.
CONSUMER: dict[str, dict[str, dict[str, Any]]] = {
    "redis": {"throughput": {"workers": 4}, "latency": {}, "default": {}},
    "sqlite": {
        "throughput": {"workers": 2, "initial_delay": 0.001, "max_delay": 0.001},
        "latency": {"initial_delay": 0.001, "max_delay": 0.001},
        "default": {},
    },
}


def _open() -> tuple[str, huey_package.Huey]:
    url = kit.url()
    if url.startswith("sqlite:"):
        path = "/" + url.removeprefix("sqlite:").lstrip("/")
        # fsync=True is synchronous=FULL in huey's words; left out, SQLite's own default is the same.
        return "sqlite", huey_package.SqliteHuey("bench", filename=path, fsync=True)
    return "redis", huey_package.RedisHuey("bench", url=url)


store, huey = _open()


@huey.task(name="noop")
def noop(index: int, pad: str) -> None:
    kit.ran(index)


@huey.task(name="hold")
def hold(index: int) -> None:
    kit.hold(index)


def enqueue(index: int) -> None:
    noop(index, kit.PAD)


class Control:
    def __init__(self) -> None:
        # A commit waits for the disk, and another call gets ready meanwhile. With Redis, threads make it slower.
        self._in_threads = kit.in_threads(enqueue, 4) if store == "sqlite" else None

    async def setup(self) -> dict[str, Any]:
        return {}

    async def enqueue(self, index: int) -> None:
        if self._in_threads is None:
            enqueue(index)
        else:
            await self._in_threads(index)

    async def enqueue_many(self, indexes: Sequence[int]) -> None:
        raise NotImplementedError("huey has no bulk call: TaskWrapper.map enqueues one by one")

    async def enqueue_held(self, index: int) -> None:
        hold(index)

    async def pending(self) -> int:
        """Waiting or scheduled. huey removes a task from the store when it hands it to a worker."""
        return int(huey.pending_count()) + int(huey.scheduled_count())

    async def finished(self) -> int | None:
        return None  # a task that returns None leaves no result

    async def close(self) -> None:
        huey.storage.close()


async def make() -> Control:
    return Control()


def one_worker() -> None:
    logging.getLogger("huey").setLevel(logging.WARNING)
    huey.create_consumer(**CONSUMER[store][kit.profile()]).run()


def work() -> None:
    kit.fork(one_worker)


if __name__ == "__main__":
    kit.main(make, work)
