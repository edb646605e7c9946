"""PgQueuer: jobs in PostgreSQL, claimed and finished in batches, woken by LISTEN/NOTIFY."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import kit
import pgqueuer
from pgqueuer import Job, PgQueuer, Queries

#: What one claim takes and what one write finishes. A batch does not wait to be full.
TUNED = {"batch_size": 500}


def _payload(index: int) -> bytes:
    return json.dumps({"i": index, "pad": kit.PAD}).encode()


class Control:
    """Enqueues through a pool, as the tuning guide asks of producers."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._queries = Queries.from_asyncpg_pool(pool)

    async def setup(self) -> dict[str, Any]:
        await self._queries.install()  # `pgq install`
        await self._queries.optimize_autovacuum()  # `pgq autovac`
        return {}

    async def enqueue(self, index: int) -> None:
        await self._queries.enqueue("noop", _payload(index))

    async def enqueue_many(self, indexes: Sequence[int]) -> None:
        number = len(indexes)
        await self._queries.enqueue(["noop"] * number, [_payload(index) for index in indexes], [0] * number)

    async def enqueue_held(self, index: int) -> None:
        await self._queries.enqueue("hold", _payload(index))

    async def pending(self) -> int:
        # A finished job moves from this table to the log in one statement.
        return int(await self._pool.fetchval("SELECT count(*) FROM pgqueuer"))

    async def finished(self) -> int | None:
        return int(await self._pool.fetchval("SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'"))

    async def close(self) -> None:
        await self._pool.close()


async def control() -> Control:
    # More would only wait for one another: each enqueue notifies, and such commits come one after the other.
    return Control(await asyncpg.create_pool(kit.url(), min_size=10, max_size=10))


@asynccontextmanager
async def manager() -> AsyncIterator[PgQueuer]:
    """What `pgq run` would be given: one connection of its own for claims, results and notifications."""
    connection = await asyncpg.connect(kit.url())
    try:
        queuer = PgQueuer.from_asyncpg_connection(connection)

        @queuer.entrypoint("noop")
        async def noop(job: Job) -> None:
            kit.ran(json.loads(job.payload)["i"])

        @queuer.entrypoint("hold")
        async def hold(job: Job) -> None:
            await kit.ahold(json.loads(job.payload)["i"])

        yield queuer
    finally:
        await connection.close()


def work() -> None:
    settings: dict[str, Any] = {} if kit.profile() == "default" else TUNED
    kit.fork(lambda: kit.run(pgqueuer.run(manager, **settings)))


if __name__ == "__main__":
    kit.main(control, work)
