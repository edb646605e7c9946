"""The engine goes away for a while: nothing is lost, and the worker goes on by itself when it is back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import httpx
import pytest

from devtools.postgres import PrivatePostgres
from devtools.private import NotAvailable
from ropeway.core.states import EventName, State
from tests.engines.pg_kit import migrated
from tests.worker.facts import Facts
from tests.worker.kit import RealWorker, StartWorker, opened, until


@pytest.fixture
def server() -> Iterator[PrivatePostgres]:
    """A PostgreSQL of this test's own, to be stopped."""
    try:
        made = PrivatePostgres()
    except NotAvailable as error:
        pytest.skip(f"NOT RUN: postgres: {error}")
    with made:
        yield made


async def readiness(worker: RealWorker) -> int:
    """The status of /ready."""
    url = (await worker.says("http_started"))["url"]
    async with httpx.AsyncClient() as client:
        return (await client.get(f"{url}/ready")).status_code


@pytest.mark.slow
async def test_jobs_and_worker_outlive_an_outage(
    server: PrivatePostgres, start_worker: StartWorker, facts: Facts
) -> None:
    url = await asyncio.to_thread(migrated, server.create_database("outage"))
    worker = start_worker("-c", "20", "--processes", "2", "--lease-seconds", "60", "--port", "0", url=url)
    async with opened(url) as store:
        through = await store.add("wait", 5, gate="after") + await store.add("wait_thread", 5, gate="after")
        ending = await store.add("wait", 5, gate="during") + await store.add("wait_process", 1, gate="during")
        later = await store.add("noop", 5, options={"delay": 1.0})
        await until(lambda: len(facts.notes("started")) == 16, "all run")
        ready = await readiness(worker)
        assert ready == 200
    await asyncio.to_thread(server.stop)
    # Handlers go on, and end with nobody to tell.
    facts.open_gate("during")
    await until(lambda: len(facts.notes("finished")) == 6, "six handlers ended during the outage")
    await worker.says("engine_away", logger="ropeway.supervisor")

    async def red() -> bool:
        return await readiness(worker) == 503

    async def green() -> bool:
        return await readiness(worker) == 200

    await until(red, "readiness turns red")
    assert len(worker.children()) == 2
    await asyncio.to_thread(server.start)
    await until(green, "readiness turns green")
    async with opened(url) as store:
        for job in await store.reach(ending, State.SUCCEEDED):
            assert job.attempt == 1
        facts.open_gate("after")
        for job in await store.reach(through + later, State.SUCCEEDED):
            assert job.attempt == 1
        await store.reach(await store.add("noop", 20), State.SUCCEEDED)
    assert not worker.lines("child_died", "loop_failed", "lease_lost", "job_lost")
    assert worker.lines("engine_back")


@pytest.mark.slow
async def test_an_outage_longer_than_a_lease_loses_nothing(
    server: PrivatePostgres, start_worker: StartWorker, facts: Facts
) -> None:
    """Leases run out unseen. Whoever is there first when the engine is back has the job, and only one has it."""
    url = await asyncio.to_thread(migrated, server.create_database("outage"))
    worker = start_worker("-c", "20", "--lease-seconds", "1", url=url)
    async with opened(url) as store:
        ids = await store.add("wait", 10, gate="after") + await store.add("wait", 5, gate="during")
        await until(lambda: len(facts.notes("started")) == 15, "all run")
    await asyncio.to_thread(server.stop, "immediate")
    stopped_at = time.monotonic()
    facts.open_gate("during")
    await until(lambda: time.monotonic() - stopped_at > 4, "several leases have passed")
    await asyncio.to_thread(server.start)
    await worker.says("engine_back")
    facts.open_gate("after")
    async with opened(url) as store:
        for job in await store.reach(ids, State.SUCCEEDED):
            assert len(await store.events(job.id, EventName.COMPLETED)) == 1
            assert job.lease_lost_count <= 1
    assert not worker.lines("child_died", "loop_failed")


async def test_a_worker_may_start_before_its_engine(
    server: PrivatePostgres, start_worker: StartWorker, facts: Facts
) -> None:
    url = await asyncio.to_thread(migrated, server.create_database("outage"))
    async with opened(url) as store:
        ids = await store.add("noop", 5)
    await asyncio.to_thread(server.stop)
    worker = start_worker("-c", "5", url=url)
    await worker.says("engine_away")
    await asyncio.to_thread(server.start)
    async with opened(url) as store:
        await store.reach(ids, State.SUCCEEDED)
    assert not worker.lines("child_died")
