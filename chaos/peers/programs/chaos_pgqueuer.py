# mypy: ignore-errors
# It runs in the peer's own environment.
"""PgQueuer under faults: what `pgq run` would be given, with one more entrypoint."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import bench_pgqueuer
import chaos_kit
import kit
import pgqueuer
from pgqueuer import Job, PgQueuer

WORKER = {"heartbeat_timeout": timedelta(seconds=chaos_kit.lease())} if chaos_kit.safest() else {}


class Control(bench_pgqueuer.Control):
    async def enqueue(self, index: int) -> None:
        await self._queries.enqueue("faulty", json.dumps({"index": index}).encode())


async def make() -> Control:
    return Control(await asyncpg.create_pool(kit.url(), min_size=2, max_size=2))


@asynccontextmanager
async def manager() -> AsyncIterator[PgQueuer]:
    connection = await asyncpg.connect(kit.url())
    try:
        queuer = PgQueuer.from_asyncpg_connection(connection)

        @queuer.entrypoint("faulty")
        async def faulty(job: Job) -> Any:
            return await chaos_kit.aperform(json.loads(job.payload)["index"])

        yield queuer
    finally:
        await connection.close()


def work() -> None:
    kit.run(pgqueuer.run(manager, **WORKER))


if __name__ == "__main__":
    kit.main(make, work)
