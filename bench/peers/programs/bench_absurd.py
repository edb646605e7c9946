"""Absurd: durable workflows in PostgreSQL. A claim takes a batch, each task is loaded and finished by itself."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import absurdctl
import kit
from absurd_sdk import AsyncAbsurd
from psycopg import AsyncConnection

QUEUE = "default"

#: A client has one connection; a service that enqueues from many places at once has several.
CLIENTS = 20

#: A batch does not wait to be full; nothing but polling tells a worker of a new task.
TUNED: dict[str, Any] = {"concurrency": 50, "batch_size": 100, "poll_interval": 0.005}


class Control:
    def __init__(self, clients: list[AsyncAbsurd], connection: AsyncConnection[Any]) -> None:
        self._clients = clients
        self._next = cycle(clients)
        self._connection = connection

    async def setup(self) -> dict[str, Any]:
        # What `absurdctl init` applies; the command itself would need psql on the path.
        await self._connection.execute(absurdctl.BUNDLED_SCHEMA_SQL)
        await self._clients[0].create_queue(QUEUE)
        return {}

    async def enqueue(self, index: int) -> None:
        await next(self._next).spawn("noop", {"i": index, "pad": kit.PAD}, queue=QUEUE)

    async def enqueue_many(self, indexes: Sequence[int]) -> None:
        raise NotImplementedError("Absurd has no call that spawns many tasks")

    async def enqueue_held(self, index: int) -> None:
        await self._clients[0].spawn("hold", {"i": index}, queue=QUEUE)

    async def pending(self) -> int:
        # An unfinished task has one unfinished run; only runs have an index on their state.
        return await self._runs("pending", "running", "sleeping")

    async def finished(self) -> int | None:
        return await self._runs("completed")

    async def _runs(self, *states: str) -> int:
        cursor = await self._connection.execute(
            f"SELECT count(*) FROM absurd.r_{QUEUE} WHERE state = ANY(%s)", [list(states)]
        )
        (number,) = await cursor.fetchone() or (0,)
        return int(number)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        await self._connection.close()


async def control() -> Control:
    connection = await AsyncConnection.connect(kit.url(), autocommit=True)
    return Control([AsyncAbsurd(kit.url(), queue_name=QUEUE) for _ in range(CLIENTS)], connection)


async def _work() -> None:
    app = AsyncAbsurd(kit.url(), queue_name=QUEUE)

    @app.register_task("noop")
    async def noop(params: dict[str, Any], _context: object) -> None:
        kit.ran(params["i"])

    @app.register_task("hold")
    async def hold(params: dict[str, Any], _context: object) -> None:
        await kit.ahold(params["i"])

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.stop_worker)
    try:
        await app.start_worker(**({} if kit.profile() == "default" else TUNED))
    finally:
        await app.close()


def work() -> None:
    kit.fork(lambda: kit.run(_work()))


if __name__ == "__main__":
    kit.main(control, work)
