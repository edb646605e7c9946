"""Awa (awa-pg: a Rust core with Python handlers) on PostgreSQL."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import awa
import kit

QUEUE = "bench"

#: Workers of the queue by profile. The number has no default: four is what its documentation shows.
WORKERS = {"throughput": 1024, "latency": 1024, "default": 4}

# Its own queue_stats() joins every job with its claims: minutes for 10,000 jobs while nothing is analysed yet.
# It stores which places of a queue were given to jobs, and how many jobs each batch of results finished. Both
# leave the tables together, and only the number of finished jobs is kept.
ACCEPTED = "(SELECT coalesce(sum(next_lane_seq - first_lane_seq), 0) FROM awa.ready_segments)"
FINISHED = """(
    (SELECT coalesce(sum(completed_count), 0) FROM awa.receipt_completion_batches)
    + (SELECT count(*) FROM awa.done_entries)
)"""
FORGOTTEN = "(SELECT coalesce(sum(pruned_completed_count), 0) FROM awa.queue_terminal_rollups)"


@dataclass
class Noop:
    i: int
    pad: str


@dataclass
class Hold:
    i: int


class Control:
    def __init__(self) -> None:
        self._client = awa.AsyncClient(kit.url(), 20)

    async def setup(self) -> dict[str, Any]:
        await self._client.migrate()
        # Its engine since 0.6. A new database starts on the older one, and would be moved by the first worker.
        await self._client.install_queue_storage()
        return {}

    async def enqueue(self, index: int) -> None:
        await self._client.insert(Noop(index, kit.PAD), queue=QUEUE)

    async def enqueue_many(self, indexes: Sequence[int]) -> None:
        await self._client.enqueue_many_copy([Noop(index, kit.PAD) for index in indexes], queue=QUEUE)

    async def enqueue_held(self, index: int) -> None:
        await self._client.insert(Hold(index), queue=QUEUE)

    async def pending(self) -> int:
        return await self._count(f"{ACCEPTED} - {FINISHED}")

    async def finished(self) -> int | None:
        return await self._count(f"{FINISHED} + {FORGOTTEN}")

    async def _count(self, expression: str) -> int:
        transaction = await self._client.transaction()
        try:
            row = await transaction.fetch_one(f"SELECT ({expression})::bigint AS jobs")
        finally:
            await transaction.rollback()
        return int(row["jobs"])

    async def close(self) -> None:
        await self._client.close()


async def control() -> Control:
    return Control()


async def serve() -> None:
    client = awa.AsyncClient(kit.url())

    @client.task(Noop, queue=QUEUE)
    async def noop(job: Any) -> None:
        kit.ran(job.args.i)

    @client.task(Hold, queue=QUEUE)
    async def hold(job: Any) -> None:
        await kit.ahold(job.args.i)

    await client.start([(QUEUE, WORKERS[kit.profile()])])
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    await client.shutdown()
    await client.close()


if __name__ == "__main__":
    kit.main(control, lambda: kit.fork(lambda: kit.run(serve())))
