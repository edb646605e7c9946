"""Eight processes on one store: every job is finished once, though one of them is killed in the middle."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from ropeway.core.job import NewJob
from ropeway.core.query import JobFilter
from ropeway.core.states import LIVE_STATES, State
from ropeway.engines.open import engine_for
from ropeway.engines.postgres import PostgresEngine
from ropeway.engines.protocol import Engine
from ropeway.settings import Settings
from tests.engines.pg_kit import eventually
from tests.integration.fleet import check_story, ended_well, whole_log, workers

JOBS = 20_000
PROCESSES = 8


@pytest.mark.slow
@pytest.mark.limit(90)
async def test_on_sqlite(tmp_path: Path) -> None:
    await every_job_is_finished_once(f"sqlite:///{tmp_path / 'ropeway.db'}")


@pytest.mark.slow
@pytest.mark.limit(90)
async def test_on_postgres(postgres_database: str) -> None:
    engine = PostgresEngine(postgres_database)
    await engine.migrations.up()
    await engine.close()
    await every_job_is_finished_once(postgres_database)


async def every_job_is_finished_once(url: str) -> None:
    async with engine_for(Settings(url=url)) as engine:
        await engine.enqueue([NewJob("task", b'{"n":1}')] * 5_000)
        with workers(url, PROCESSES) as processes:
            victim = processes[0]
            assert victim.stdout is not None
            # The rest comes while they work.
            for _ in range(JOBS // 5_000 - 1):
                await engine.enqueue([NewJob("task", b'{"n":1}')] * 5_000)
            assert await asyncio.to_thread(victim.stdout.readline) == "holds 50\n"

            async def some() -> bool:
                return await number_in(engine, State.SUCCEEDED) > JOBS // 20

            await eventually(some, within=30)
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            held = (await engine.count(JobFilter(worker_id="w0"))).number
            rescued: list[object] = []

            async def all_finished() -> bool:
                rescued.extend(await engine.rescue())
                return await number_in(engine, State.SUCCEEDED) == JOBS

            await eventually(all_finished, within=60)
            assert ended_well(processes[1:])

        assert await number_in(engine, *LIVE_STATES) == 0
        check_story(await whole_log(engine), JOBS, "w0")
        assert len(rescued) >= held >= 50


async def number_in(engine: Engine, *states: State) -> int:
    return (await engine.count(JobFilter(states=frozenset(states)), cap=JOBS * 2)).number
