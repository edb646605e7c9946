"""Eight processes on one PostgreSQL: every job is finished once, though one of them is killed in the middle."""

from __future__ import annotations

import asyncio
import signal

import pytest

from ropeway.core.job import NewJob
from ropeway.engines.postgres import PostgresEngine
from tests.engines.pg_kit import connected, eventually
from tests.integration.fleet import check_story, ended_well, whole_log, workers

JOBS = 20_000
PROCESSES = 8


@pytest.mark.limit(90)
async def test_each_of_20000_jobs_is_finished_once_by_eight_processes(postgres_database: str) -> None:
    engine = PostgresEngine(postgres_database)
    await engine.migrations.up()
    async with engine, connected(postgres_database) as connection:

        async def finished() -> int:
            number: int = await connection.fetchval("SELECT count(*) FROM ropeway.archive_succeeded")
            return number

        await engine.enqueue([NewJob("task", b'{"n":1}')] * 5_000)
        with workers(postgres_database, PROCESSES) as processes:
            victim = processes[0]
            assert victim.stdout is not None
            # The rest comes while they work.
            for _ in range(JOBS // 5_000 - 1):
                await engine.enqueue([NewJob("task", b'{"n":1}')] * 5_000)
            assert await asyncio.to_thread(victim.stdout.readline) == "holds 50\n"

            async def some() -> bool:
                return await finished() > JOBS // 20

            await eventually(some, within=30)
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            held: int = await connection.fetchval("SELECT count(*) FROM ropeway.jobs WHERE worker = 'w0'")
            rescued: list[object] = []

            async def all_finished() -> bool:
                rescued.extend(await engine.rescue())
                return await finished() == JOBS

            await eventually(all_finished, within=60)
            assert ended_well(processes[1:])

        assert await connection.fetchval("SELECT count(*) FROM ropeway.jobs") == 0
        assert await connection.fetchval("SELECT count(DISTINCT id) FROM ropeway.archive") == JOBS
        check_story(await whole_log(engine), JOBS, "w0")
        assert len(rescued) >= held >= 50
