# mypy: ignore-errors
# It runs in the peer's own environment.
"""Procrastinate under faults; in the safest settings with the periodic task of its how-to on stalled jobs."""

from __future__ import annotations

import logging
from typing import Any

import bench_procrastinate
import chaos_kit
import kit
from procrastinate import App, JobContext

WORKER: dict[str, Any] = {}
if chaos_kit.safest():
    WORKER = {"update_heartbeat_interval": 1, "stalled_worker_timeout": chaos_kit.lease()}


def _app() -> App:
    app = bench_procrastinate._app()  # noqa: SLF001 - the app of the comparison, which keeps it to itself

    @app.task(name="faulty")
    async def faulty(index: int) -> Any:
        return await chaos_kit.aperform(index)

    if chaos_kit.safest():

        @app.periodic(cron="* * * * * */5")
        @app.task(queueing_lock="retry_stalled_jobs", pass_context=True, name="retry_stalled_jobs")
        async def retry_stalled_jobs(context: JobContext, timestamp: int) -> None:  # noqa: ARG001 - it is given
            manager = context.app.job_manager
            for job in await manager.get_stalled_jobs(seconds_since_heartbeat=chaos_kit.lease()):
                await manager.retry_job(job)

    return app


class Control(bench_procrastinate.Control):
    async def enqueue(self, index: int) -> None:
        await self._app.tasks["faulty"].defer_async(index=index)

    async def _count(self, condition: str) -> int:
        return await super()._count(f"task_name = 'faulty' AND {condition}")


async def make() -> Control:
    app, pool = _app(), bench_procrastinate._pool()  # noqa: SLF001
    await pool.open(wait=True)
    await app.open_async(pool)
    return Control(app, pool)


async def _work() -> None:
    async with _app().open_async() as app:
        await app.run_worker_async(**WORKER)


def work() -> None:
    logging.basicConfig(level=logging.WARNING)
    kit.run(_work())


if __name__ == "__main__":
    kit.main(make, work)
