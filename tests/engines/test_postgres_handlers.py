"""A handler's own transaction: its connection, its end, and what is known when something breaks (G4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from devtools.postgres import PostgresServer
from ropeway.core.errors import Indeterminate, LeaseLost, Unavailable
from ropeway.core.states import State
from ropeway.engines.postgres import PostgresEngine
from ropeway.engines.postgres.pool import Pool
from ropeway.engines.protocol import Leased
from ropeway.testing.conformance.kit import ack, enqueue_one, lease_one, state_of
from tests.engines.pg_kit import connected, eventually, opened

PID = "SELECT pg_backend_pid()"


async def running(engine: PostgresEngine) -> Leased:
    await enqueue_one(engine)
    return await lease_one(engine)


@asynccontextmanager
async def handler(engine: PostgresEngine, leased: Leased | None = None) -> AsyncIterator[Any]:
    """The transaction of a handler, of a job of its own if none is given."""
    async with engine.transaction((leased or await running(engine)).lease, lambda: b"1") as connection:
        yield connection


@asynccontextmanager
async def with_table(url: str) -> AsyncIterator[tuple[PostgresEngine, asyncpg.Connection]]:
    """An engine, and an administrator's connection that made a table for handlers to write to."""
    async with opened(url) as engine, connected(url) as admin:
        await admin.execute("CREATE TABLE public.written (n integer)")
        yield engine, admin


async def written(admin: asyncpg.Connection) -> list[int]:
    return [row[0] for row in await admin.fetch("SELECT n FROM public.written ORDER BY n")]


class TestTheConnection:
    async def test_no_timeout_counts_but_the_jobs(
        self, fresh_database: str, postgres_server: PostgresServer
    ) -> None:
        name = fresh_database.rpartition("/")[2]
        async with opened(fresh_database) as engine:
            leased = await running(engine)
            timeouts = ["statement_timeout", "idle_in_transaction_session_timeout"]
            if int(await engine.reads.value("SHOW server_version_num")) >= 170_000:
                timeouts.append("transaction_timeout")
            for timeout in timeouts:
                postgres_server._execute(f"ALTER DATABASE {name} SET {timeout} = '1h'")
            async with connected(fresh_database) as other:
                assert {await other.fetchval(f"SHOW {timeout}") for timeout in timeouts} == {"1h"}
            async with handler(engine, leased) as connection:
                assert {await connection.fetchval(f"SHOW {timeout}") for timeout in timeouts} == {"0"}
                assert connection._config.command_timeout is None, "the driver's own"

    async def test_the_next_handler_finds_nothing_of_the_last(self, database: str) -> None:
        async with opened(database) as engine:
            async with handler(engine) as connection:
                usual = await connection.fetchval("SHOW search_path")
                await connection.execute("SET search_path = nowhere")
                await connection.execute("LISTEN ropes; SELECT pg_advisory_lock(7)")
                pid = await connection.fetchval(PID)
            async with handler(engine) as connection:
                assert await connection.fetchval(PID) == pid, "another connection: this test showed nothing"
                assert await connection.fetchval("SHOW search_path") == usual
                assert await connection.fetch("SELECT pg_listening_channels()") == []
                locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
                assert await connection.fetchval(locks) == 0

    async def test_one_that_died_while_nobody_used_it_is_replaced(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as admin:
            async with handler(engine) as connection:
                pid = await connection.fetchval(PID)
            await admin.execute("SELECT pg_terminate_backend($1)", pid)
            leased = await running(engine)
            async with handler(engine, leased) as connection:
                assert await connection.fetchval(PID) != pid
            assert await state_of(engine, leased.job.id) is State.SUCCEEDED

    async def test_a_handler_waits_while_all_are_in_use(self, database: str) -> None:
        async with opened(database) as engine:
            engine.handlers = Pool(engine.address, size=1)
            first, second = await running(engine), await running(engine)
            entered = asyncio.Event()

            async def wait_for_it() -> None:
                async with handler(engine, second):
                    entered.set()

            async with handler(engine, first):
                task = asyncio.create_task(wait_for_it())
                # A whole claim and ack fit in here: it had the time to come in.
                await ack(engine, await running(engine))
                assert not entered.is_set()
            await task
            assert await state_of(engine, second.job.id) is State.SUCCEEDED

    async def test_two_handlers_have_two(self, database: str) -> None:
        async with opened(database) as engine, handler(engine) as one, handler(engine) as two:
            assert await one.fetchval(PID) != await two.fetchval(PID)

    async def test_closing_leaves_the_open_transaction_to_its_handler(self, database: str) -> None:
        async with opened(database) as engine, opened(database) as other, connected(database) as admin:
            leased = await running(engine)
            async with handler(engine, leased) as connection:
                pid = await connection.fetchval(PID)
                await engine.close()
            assert await state_of(other, leased.job.id) is State.SUCCEEDED
            gone = "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $1"
            await eventually(lambda: admin.fetchval(gone, pid), what="its connection was closed")
            with pytest.raises(Unavailable, match="closed"):
                async with handler(engine, leased):
                    pass


class TestTheEnd:
    async def test_the_grant_of_a_committed_job_is_removed(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as admin:
            leased = await running(engine)
            async with handler(engine, leased):
                pass
            await ack(engine, await running(engine))
            left = await admin.fetch("SELECT token FROM ropeway.grants")
            assert leased.lease.token not in {row[0] for row in left}

    async def test_a_cancelled_handler_leaves_nothing_and_its_connection_serves_again(self, database: str) -> None:
        async with with_table(database) as (engine, admin):
            leased = await running(engine)
            pids: list[int] = []

            async def handle() -> None:
                async with handler(engine, leased) as connection:
                    pids.append(await connection.fetchval(PID))
                    await connection.execute("INSERT INTO public.written VALUES (1)")
                    await asyncio.Event().wait()

            task = asyncio.create_task(handle())
            await eventually(lambda: _true(pids))
            idle = "SELECT state = 'idle in transaction' FROM pg_stat_activity WHERE pid = $1 AND query ~ 'INSERT'"
            await eventually(lambda: admin.fetchval(idle, pids[0]))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await written(admin) == []
            assert await state_of(engine, leased.job.id) is State.RUNNING
            async with handler(engine, leased) as connection:
                assert await connection.fetchval(PID) == pids[0]

    async def test_what_the_database_refuses_at_the_commit_is_the_handlers_own_error(self, database: str) -> None:
        async with with_table(database) as (engine, admin):
            await admin.execute(
                "ALTER TABLE public.written ADD CONSTRAINT once UNIQUE (n) DEFERRABLE INITIALLY DEFERRED"
            )
            leased = await running(engine)
            with pytest.raises(asyncpg.UniqueViolationError):
                async with handler(engine, leased) as connection:
                    await connection.execute("INSERT INTO public.written VALUES (1), (1)")
            assert await written(admin) == []
            assert await state_of(engine, leased.job.id) is State.RUNNING
            async with handler(engine, leased) as connection:
                await connection.execute("INSERT INTO public.written VALUES (1)")
            assert await written(admin) == [1]

    async def test_a_lease_that_was_lost_meanwhile_rolls_back(self, database: str) -> None:
        async with with_table(database) as (engine, admin):
            leased = await running(engine)
            await admin.execute("UPDATE ropeway.grants SET expires_at = '-infinity'")

            async def handle() -> None:
                async with handler(engine, leased) as connection:
                    await connection.execute("INSERT INTO public.written VALUES (1)")
                    assert len(await engine.rescue()) == 1

            with pytest.raises(LeaseLost):
                await handle()
            assert await written(admin) == []


class TestLostConnections:
    async def test_before_the_commit_nothing_is_stored(self, database: str) -> None:
        async with with_table(database) as (engine, admin):
            leased = await running(engine)

            async def handle() -> None:
                async with handler(engine, leased) as connection:
                    await connection.execute("INSERT INTO public.written VALUES (1)")
                    await admin.execute("SELECT pg_terminate_backend($1)", await connection.fetchval(PID))

            with pytest.raises(Unavailable):
                await handle()
            assert await written(admin) == []
            assert await state_of(engine, leased.job.id) is State.RUNNING
            async with handler(engine, leased):
                pass

    async def test_the_handlers_own_error_is_not_hidden(self, database: str) -> None:
        async with with_table(database) as (engine, admin):

            async def handle() -> None:
                async with handler(engine) as connection:
                    await admin.execute("SELECT pg_terminate_backend($1)", await connection.fetchval(PID))
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await handle()

    async def test_in_the_commit_it_is_indeterminate(self, database: str) -> None:
        async with with_table(database) as (engine, admin):
            await admin.execute(
                """
                CREATE FUNCTION public.die() RETURNS trigger LANGUAGE plpgsql
                AS 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END';
                CREATE CONSTRAINT TRIGGER die AFTER INSERT ON public.written DEFERRABLE INITIALLY DEFERRED
                FOR EACH ROW EXECUTE FUNCTION public.die();
                """
            )
            leased = await running(engine)
            with pytest.raises(Indeterminate):
                async with handler(engine, leased) as connection:
                    await connection.execute("INSERT INTO public.written VALUES (1)")
            async with handler(engine) as connection:
                assert await connection.fetchval("SELECT 1") == 1


async def _true(fact: object) -> bool:
    return bool(fact)
