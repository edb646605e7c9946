"""Procrastinate: jobs in PostgreSQL, claimed and finished one at a time, woken by LISTEN/NOTIFY."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import kit
from procrastinate import App, PsycopgConnector
from psycopg_pool import AsyncConnectionPool

#: Of a pool of ours, which `open_async` takes: the one that Procrastinate would make has 4 connections and asks
#: each whether it lives before each query. More than 10 did not help: commits that notify come one by one.
CONNECTIONS = 10

TUNED = {"concurrency": 10}


def _pool() -> AsyncConnectionPool:
    return AsyncConnectionPool(kit.url(), min_size=CONNECTIONS, max_size=CONNECTIONS, open=False)


def _app() -> App:
    # It warns of an App in the main module, whose tasks would change their names: these have names of their own.
    logging.getLogger("procrastinate.blueprints").setLevel(logging.ERROR)
    app = App(connector=PsycopgConnector(conninfo=kit.url()))

    @app.task(name="noop")
    async def noop(i: int, pad: str) -> None:
        kit.ran(i)

    @app.task(name="hold")
    async def hold(i: int) -> None:
        await kit.ahold(i)

    return app


class Control:
    def __init__(self, app: App, pool: AsyncConnectionPool) -> None:
        self._app = app
        self._pool = pool
        self._noop = app.tasks["noop"]
        self._hold = app.tasks["hold"]

    async def setup(self) -> dict[str, Any]:
        await self._app.schema_manager.apply_schema_async()
        return {}

    async def enqueue(self, index: int) -> None:
        await self._noop.defer_async(i=index, pad=kit.PAD)

    async def enqueue_many(self, indexes: Sequence[int]) -> None:
        await self._noop.batch_defer_async(*({"i": index, "pad": kit.PAD} for index in indexes))

    async def enqueue_held(self, index: int) -> None:
        await self._hold.defer_async(i=index)

    async def pending(self) -> int:
        # As its partial index on unfinished jobs is written.
        return await self._count("status = ANY (ARRAY['todo', 'doing']::procrastinate_job_status[])")

    async def finished(self) -> int | None:
        return await self._count("status = 'succeeded'")

    async def _count(self, condition: str) -> int:
        query = f"SELECT count(*) AS number FROM procrastinate_jobs WHERE {condition}"
        row = await self._app.connector.execute_query_one_async(query)
        return int(row["number"])

    async def close(self) -> None:
        await self._app.close_async()
        await self._pool.close()


async def control() -> Control:
    app, pool = _app(), _pool()
    await pool.open(wait=True)
    await app.open_async(pool)
    return Control(app, pool)


async def _work() -> None:
    if kit.profile() == "default":
        async with _app().open_async() as app:
            await app.run_worker_async()
    else:
        async with _pool() as pool, _app().open_async(pool) as app:
            await app.run_worker_async(**TUNED)


def work() -> None:
    logging.basicConfig(level=logging.WARNING)
    kit.fork(lambda: kit.run(_work()))


if __name__ == "__main__":
    kit.main(control, work)
