"""taskito on PostgreSQL, Redis or SQLite: which one, the URL says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import kit
from taskito import Queue

# So many jobs are claimed at once and run side by side.
CROWD = {"workers": 1_000, "scheduler_batch_size": 1_000, "async_concurrency": 1_000}

#: Settings by profile; what is not named keeps its default.
SETTINGS: dict[str, dict[str, Any]] = {
    "throughput": CROWD,
    # The poll decides: a job waits for half of it on average.
    "latency": {**CROWD, "scheduler_poll_interval_ms": 1},
    "default": {},
}


def where() -> dict[str, Any]:
    """The store as taskito's constructor takes it."""
    address = kit.url()
    match urlsplit(address).scheme:
        case "sqlite":
            return {"db_path": address.removeprefix("sqlite://")}
        case "redis":
            return {"backend": "redis", "db_url": address}
        case _:
            return {"backend": "postgres", "db_url": address}


queue = Queue(**where(), **SETTINGS[kit.profile()])


@queue.task()
async def noop(i: int, pad: str) -> None:
    """Async: in its threads a handler costs twice as much."""
    kit.ran(i)


@queue.task()
async def hold(i: int) -> None:
    await kit.ahold(i)


class Control:
    """Its client blocks, so single jobs come from threads, as in a service."""

    def __init__(self) -> None:
        self._enqueue = kit.in_threads(lambda index: noop.delay(index, kit.PAD))

    async def setup(self) -> dict[str, Any]:
        """The constructor made the tables."""
        return {}

    async def enqueue(self, index: int) -> None:
        await self._enqueue(index)

    async def enqueue_many(self, indexes: Sequence[int]) -> None:
        await asyncio.to_thread(queue.enqueue_many, noop.name, [(index, kit.PAD) for index in indexes])

    async def enqueue_held(self, index: int) -> None:
        await asyncio.to_thread(hold.delay, index)

    async def pending(self) -> int:
        counts = await asyncio.to_thread(queue.stats)
        return sum(number for state, number in counts.items() if state != "completed")

    async def finished(self) -> int | None:
        counts = await asyncio.to_thread(queue.stats)
        return counts["completed"]

    async def close(self) -> None: ...


async def control() -> Control:
    return Control()


if __name__ == "__main__":
    kit.main(control, lambda: kit.fork(queue.run_worker))
