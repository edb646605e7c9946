"""The pooler of our own: a transaction has one backend, the next one another, and nothing is left between them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from urllib.parse import urlsplit

import asyncpg
import pytest

from chaos.experiments.pooling import SWAPPED, swapped
from chaos.swapping import SwapProxy
from ropeway.engines.postgres.connection import BROKEN
from tests.engines.pg_kit import eventually

GONE = (asyncpg.PostgresError, *BROKEN)

_SLEEPING = """SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND state = 'active' AND wait_event = 'PgSleep'"""


@asynccontextmanager
async def _behind(database: str, *, size: int = 3) -> AsyncIterator[tuple[SwapProxy, str]]:
    address = urlsplit(database)
    assert address.port is not None
    async with SwapProxy(address.port, random.Random(1), size=size) as proxy:
        place = address.netloc.replace(str(address.port), str(proxy.port))
        yield proxy, address._replace(netloc=place).geturl()


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(url, statement_cache_size=0)
    try:
        yield connection
    finally:
        await connection.close(timeout=5)


async def test_every_transaction_has_another_backend_and_keeps_it(postgres_database: str) -> None:
    async with _behind(postgres_database) as (proxy, url), _connected(url) as connection:
        pids = [await connection.fetchval("SELECT pg_backend_pid()") for _ in range(10)]
        assert all(one != other for one, other in pairwise(pids))
        assert set(pids) == set(proxy.backends)
        async with connection.transaction():
            inside = {await connection.fetchval("SELECT pg_backend_pid()") for _ in range(10)}
        assert len(inside) == 1
        assert proxy.swaps == proxy.transactions - 1


async def test_who_finds_no_backend_waits_for_one(postgres_database: str) -> None:
    async with (
        _behind(postgres_database, size=2) as (proxy, url),
        _connected(url) as one,
        _connected(url) as other,
        _connected(url) as third,
    ):
        await one.execute("BEGIN")
        await other.execute("BEGIN")
        waiting = asyncio.create_task(third.fetchval("SELECT 3"))
        assert await one.fetchval("SELECT 2") == 2
        assert not waiting.done()
        await one.execute("ROLLBACK")
        assert await waiting == 3
        assert len(proxy.backends) == 2
        await other.execute("ROLLBACK")


async def test_nothing_of_a_session_is_left(postgres_database: str) -> None:
    async with _behind(postgres_database, size=1) as (_, url), _connected(url) as connection:
        await connection.execute("SELECT set_config('chaos.word', 'left', false)")
        assert await connection.fetchval("SELECT current_setting('chaos.word', true)") in (None, "")


async def test_what_takes_too_long_is_cancelled_where_it_runs(postgres_database: str) -> None:
    async with (
        _behind(postgres_database) as (_, url),
        _connected(url) as connection,
        _connected(postgres_database) as operator,
    ):
        sleeping = asyncio.create_task(connection.fetchval("SELECT pg_sleep(600)"))
        # Who gives up before the pooler has chosen a backend has cancelled nothing, here as with any pooler.
        await eventually(lambda: operator.fetchval(_SLEEPING))
        sleeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sleeping
        assert await connection.fetchval("SELECT 1", timeout=60) == 1
        assert not await operator.fetchval(_SLEEPING)


async def test_who_is_cut_can_come_again(postgres_database: str) -> None:
    async with _behind(postgres_database) as (proxy, url):
        async with _connected(url) as connection:
            await connection.execute("BEGIN")
            proxy.cut()
            with pytest.raises(GONE):
                await connection.fetchval("SELECT 1", timeout=10)
        async with _connected(url) as connection:
            assert await connection.fetchval("SELECT 1") == 1


async def test_who_loses_its_backend_can_come_again(postgres_database: str) -> None:
    async with _behind(postgres_database) as (_, url), _connected(postgres_database) as operator:
        async with _connected(url) as connection:
            await connection.execute("BEGIN")
            pid = await connection.fetchval("SELECT pg_backend_pid()")
            await operator.execute("SELECT pg_terminate_backend($1)", pid)
            with pytest.raises(GONE):
                await connection.fetchval("SELECT 1", timeout=10)
        async with _connected(url) as connection:
            assert await connection.fetchval("SELECT 1") == 1


@pytest.mark.parametrize(("share", "number"), [(SWAPPED, 0), (SWAPPED - 0.1, 1)])
def test_too_few_swaps_prove_nothing(share: float, number: int) -> None:
    assert len(swapped(share)) == number
