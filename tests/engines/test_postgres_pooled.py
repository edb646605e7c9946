"""Behind a transaction pooler (E09): each transaction may get another backend; nothing may live in a session.

The whole suite runs there too, with the slow tests: test_postgres_pooled_whole.py."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from devtools.pgbouncer import PrivatePgBouncer
from ropeway.core.outcome import Done
from ropeway.core.states import State
from ropeway.engines.postgres import PostgresEngine
from ropeway.engines.protocol import Settlement
from ropeway.testing.conformance import TestClaimRaces, TestFence, TestHeartbeats, TestSignals  # noqa: F401
from ropeway.testing.conformance.kit import enqueue_one, lease_some, new_job
from ropeway.testing.postgres import PostgresHarness
from tests.engines.pg_kit import connected


def pooled_url(pgbouncer: PrivatePgBouncer, url: str) -> str:
    return pgbouncer.url_for(urlsplit(url).path.lstrip("/")) + "?pooled=1"


@pytest.fixture(scope="module")
def harness(postgres_module_database: str, pgbouncer: PrivatePgBouncer) -> PostgresHarness:
    return PostgresHarness(pooled_url(pgbouncer, postgres_module_database), direct_url=postgres_module_database)


@pytest.fixture
def small_pool(pgbouncer: PrivatePgBouncer, postgres_server: Any) -> Iterator[PrivatePgBouncer]:
    """Three backends for everybody: whoever asks gets the one that is free."""
    with PrivatePgBouncer(postgres_server.url, program=pgbouncer.program, default_pool_size=3) as bouncer:
        yield bouncer


@pytest.mark.slow
async def test_engines_that_share_few_backends_do_not_mix_up_their_work(
    fresh_database: str, small_pool: PrivatePgBouncer
) -> None:
    url = pooled_url(small_pool, fresh_database)
    number, engines = 1_200, [PostgresEngine(url, days_ahead=1) for _ in range(4)]
    finished: list[Any] = []
    backends: set[int] = set()
    keys = [f"k{n}" for n in range(15)]

    async def produce(engine: PostgresEngine) -> None:
        for start in range(0, number // len(engines), 30):
            await engine.enqueue([new_job(payload=b"%d" % start) for _ in range(30)])
            await asyncio.gather(*(engine.enqueue([new_job(queue="keyed", idempotency_key=key)]) for key in keys))

    async def work(engine: PostgresEngine) -> None:
        while len(finished) < number:
            backends.add(await engine.claims.value("SELECT pg_backend_pid()", writes=False))
            leased = await lease_some(engine, 20)
            await engine.heartbeat([each.lease for each in leased])
            answers = await engine.settle([Settlement(each.lease, Done(b"1")) for each in leased])
            finished.extend(answer.id for answer in answers if getattr(answer, "state", None) is State.SUCCEEDED)

    async def look_after(engine: PostgresEngine) -> None:
        while len(finished) < number:
            await asyncio.gather(engine.rescue(), engine.audit(), engine.queue_stats(), engine.tail(limit=10))

    try:
        for engine in engines:
            await engine.open()
        await asyncio.gather(
            *(produce(engine) for engine in engines),
            *(work(engine) for engine in engines),
            look_after(engines[0]),
        )
        assert len(finished) == len(set(finished)) == number
        assert len(backends) > 1, "one backend served everyone: this test showed nothing"
        async with connected(fresh_database) as direct:
            assert await direct.fetchval("SELECT count(*) FROM ropeway.archive_succeeded") == number
            assert await direct.fetchval("SELECT count(*) FROM ropeway.jobs") == len(keys)
            alone = "SELECT count(*) FROM ropeway.events WHERE event = 'job.completed'"
            packed = "SELECT coalesce(sum(number), 0) FROM ropeway.event_packs WHERE event = 'job.completed'"
            assert await direct.fetchval(alone) + await direct.fetchval(packed) == number
    finally:
        for engine in engines:
            await engine.close()


async def test_without_a_direct_connection_only_this_process_is_woken(
    fresh_database: str, pgbouncer: PrivatePgBouncer
) -> None:
    """LISTEN hears nothing behind the pooler: the process's own signals still work, for the rest it polls."""
    url = pooled_url(pgbouncer, fresh_database)
    async with PostgresEngine(url, days_ahead=1) as engine:
        subscription = await engine.subscribe(["default"])
        await enqueue_one(engine)
        assert await subscription.wait(10)
        async with connected(fresh_database) as direct:
            listening = await direct.fetchval(
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE datname = current_database() AND query ILIKE 'LISTEN%'"
            )
            assert listening == 0


async def test_a_pooler_that_restarts_is_reconnected_to(fresh_database: str, small_pool: PrivatePgBouncer) -> None:
    from ropeway.core.errors import Indeterminate, Unavailable

    async with PostgresEngine(pooled_url(small_pool, fresh_database), days_ahead=1) as engine:
        await enqueue_one(engine)
        await asyncio.to_thread(small_pool.stop)
        with pytest.raises((Unavailable, Indeterminate)):
            await enqueue_one(engine)
        await asyncio.to_thread(small_pool.start)
        await enqueue_one(engine)
        assert len(await lease_some(engine, 10)) == 2


async def test_transactional_enqueue_through_the_pooler(fresh_database: str, pgbouncer: PrivatePgBouncer) -> None:
    url = pooled_url(pgbouncer, fresh_database)
    connection = await asyncpg.connect(url.partition("?")[0], statement_cache_size=0)
    try:
        async with PostgresEngine(url, days_ahead=1) as engine:
            async with connection.transaction():
                ids = await engine.enqueue_in(connection, [new_job(), new_job(idempotency_key="k")])
            assert {each.job.id for each in await lease_some(engine, 10)} == set(ids)
    finally:
        await connection.close()


async def test_the_driver_asks_for_types_in_one_transaction(
    fresh_database: str, pgbouncer: PrivatePgBouncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It switches a setting of the session off before and on after: a pooler gives the three to three backends."""
    asked: list[bool] = []
    ask = asyncpg.Connection._introspect_types

    async def noted(connection: Any, *arguments: Any) -> Any:
        asked.append(connection.is_in_transaction())
        return await ask(connection, *arguments)

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", noted)
    async with PostgresEngine(pooled_url(pgbouncer, fresh_database), days_ahead=1) as engine:
        await engine.enqueue([new_job(tags=("x",)), new_job(idempotency_key="k")])
        await enqueue_one(engine)
        leased = await lease_some(engine, 3)
        await engine.heartbeat([each.lease for each in leased])
        await engine.settle([Settlement(each.lease, Done()) for each in leased])
        await engine.tail(await engine.tail_position())
        await engine.queue_stats()
    assert asked
    assert all(asked)
