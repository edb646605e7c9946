"""How long what requests do may take: the server ends what takes longer, and nothing of it was stored.

Threat model, default 9: statement 5 s, lock 2 s, idle in a transaction 10 s. Here the bounds are shorter.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from devtools.pgbouncer import PrivatePgBouncer
from devtools.postgres import PostgresServer
from ropeway.core.errors import EngineError, Indeterminate, Unavailable
from ropeway.core.outcome import Done
from ropeway.core.states import State
from ropeway.engines.open import engine_for
from ropeway.engines.postgres import PostgresEngine
from ropeway.engines.postgres.connection import Bounds
from ropeway.engines.protocol import Leased, Settlement
from ropeway.settings import Settings
from ropeway.testing.conformance.kit import ack, enqueue_one, lease_one, new_job, nothing_changes, state_of
from tests.engines.pg_kit import connected, eventually, opened, waiting_for_lock

#: Longer than any of these tests.
NEVER = 600.0
HURRIED = Bounds(statement=0.3, lock=NEVER, idle=NEVER)
UNLOCKED = Bounds(statement=NEVER, lock=0.2, idle=NEVER)

Call = Callable[[PostgresEngine, Leased], Awaitable[Any]]

#: What requests do, each on a connection of its own kind.
CALLS: dict[str, Call] = {
    "enqueue": lambda engine, _: engine.enqueue([new_job()]),
    "enqueue a batch": lambda engine, _: engine.enqueue([new_job(delay=60)] * 3),
    "lease": lambda engine, _: lease_one(engine),
    "settle": lambda engine, held: engine.settle([Settlement(held.lease, Done())]),
    "get": lambda engine, held: engine.get([held.job.id]),
    "cancel": lambda engine, held: engine.cancel([held.job.id]),
    "reschedule": lambda engine, held: engine.reschedule(held.job.id, delay=60),
    "delete": lambda engine, held: engine.delete([held.job.id]),
    "end grants": lambda engine, held: engine.end_grants(held.job.id),
}
#: Those of them that are done in the name of an operator, or seldom: behind a pooler they carry their bounds.
CARRIED = ("cancel", "reschedule", "delete")


@asynccontextmanager
async def locked(url: str, mode: str = "ACCESS EXCLUSIVE") -> AsyncIterator[Any]:
    """All jobs, in somebody's open transaction; the connection beside it, to look."""
    async with connected(url, times=2) as (holder, other), holder.transaction():
        await holder.execute(f"LOCK TABLE ropeway.jobs, ropeway.grants IN {mode} MODE")
        yield other


@asynccontextmanager
async def slow_inserts(url: str) -> AsyncIterator[Any]:
    """Whoever inserts a job sleeps; a connection beside it, to look."""
    async with connected(url) as other:
        await other.execute(
            f"""CREATE FUNCTION public.dawdle() RETURNS trigger LANGUAGE plpgsql
                    AS $$ BEGIN PERFORM pg_sleep({NEVER}); RETURN NEW; END $$;
                CREATE TRIGGER dawdle BEFORE INSERT ON ropeway.jobs
                    FOR EACH ROW EXECUTE FUNCTION public.dawdle()"""
        )
        try:
            yield other
        finally:
            await other.execute("DROP FUNCTION public.dawdle CASCADE")


@pytest.mark.parametrize("name", CALLS)
async def test_a_lock_that_somebody_holds_is_not_waited_for_long(database: str, name: str) -> None:
    async with opened(database, bounds=UNLOCKED) as engine:
        id = await enqueue_one(engine)
        held = await lease_one(engine)
        async with nothing_changes(engine, id):
            async with locked(database):
                with pytest.raises(Unavailable, match="lock timeout"):
                    await asyncio.wait_for(CALLS[name](engine, held), 20)
            assert (await engine.count()).number == 1
        # The connection is as good as before.
        await ack(engine, held)


@pytest.mark.parametrize("jobs", [1, 3])
async def test_a_statement_that_takes_too_long_is_ended(fresh_database: str, jobs: int) -> None:
    async with opened(fresh_database, bounds=HURRIED) as engine:
        async with slow_inserts(fresh_database):
            with pytest.raises(Unavailable, match="took too long"):
                await asyncio.wait_for(engine.enqueue([new_job()] * jobs), 20)
        assert (await engine.count()).number == 0
        await enqueue_one(engine)


async def test_a_transaction_that_is_left_open_is_ended(database: str) -> None:
    bounds = Bounds(statement=NEVER, lock=NEVER, idle=0.2)
    async with opened(database, bounds=bounds) as engine, connected(database) as other:
        id = await enqueue_one(engine)

        async def dawdle() -> None:
            async with engine.acts.transaction() as connection:
                await connection.execute("DELETE FROM ropeway.jobs")
                pid = connection.get_server_pid()

                async def gone() -> bool:
                    return not await other.fetchval("SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid)

                await eventually(gone, what="the server has ended the session")

        with pytest.raises(EngineError):
            await dawdle()
        assert await state_of(engine, id) is State.QUEUED


async def test_upkeep_takes_the_time_it_takes(database: str) -> None:
    """It waits for a lock for longer than a request may, and then goes on."""
    async with opened(database, bounds=UNLOCKED) as engine:
        await enqueue_one(engine)
        async with locked(database) as other:
            chore = asyncio.create_task(engine.rescue())
            (pid,) = await waiting_for_lock(other, "ropeway.")

            async def long_enough() -> bool:
                waited = "SELECT clock_timestamp() - query_start > $2 * interval '1 s' FROM pg_stat_activity"
                return bool(await other.fetchval(f"{waited} WHERE pid = $1", pid, 4 * UNLOCKED.lock))

            await eventually(long_enough, what="it has waited for longer than a request would")
            assert not chore.done()
        assert await asyncio.wait_for(chore, 20) == []


async def test_only_a_server_has_them(database: str) -> None:
    shown = "SELECT array_agg(setting ORDER BY name) FROM pg_settings WHERE name = ANY ($1)"
    names = ["idle_in_transaction_session_timeout", "lock_timeout", "statement_timeout"]
    settings = Settings(url=database)
    for serving, expected in ((True, ["10000", "2000", "5000"]), (False, ["0", "0", "0"])):
        engine = engine_for(settings, serving=serving)
        assert isinstance(engine, PostgresEngine)
        try:
            for channel in (engine.claims, engine.outcomes, engine.inserts, engine.acts, engine.reads):
                assert await channel.value(shown, names, writes=False) == expected
            assert await engine.chores.value(shown, names, writes=False) == ["0", "0", "0"]
        finally:
            await engine.close()


# ── Behind a transaction pooler ──


@pytest.fixture
def pooled(fresh_database: str, pgbouncer: PrivatePgBouncer, postgres_server: PostgresServer) -> Iterator[str]:
    """One backend for everybody: whatever somebody leaves with it, the next one finds."""
    with PrivatePgBouncer(postgres_server.url, program=pgbouncer.program, default_pool_size=1) as bouncer:
        yield bouncer.url_for(urlsplit(fresh_database).path.lstrip("/")) + "?pooled=1"


async def test_behind_a_pooler_a_statement_is_cancelled_from_here(fresh_database: str, pooled: str) -> None:
    """Whether the cancel came in time is not known here, so what wrote is in doubt. The server did end it."""
    async with opened(pooled, bounds=HURRIED) as engine:
        async with slow_inserts(fresh_database) as other:
            with pytest.raises(Indeterminate):
                await asyncio.wait_for(enqueue_one(engine), 20)

            async def over() -> bool:
                sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
                return not await other.fetchval(f"{sleeping} AND datname = current_database()")

            await eventually(over, what="nobody sleeps any more")
        assert (await engine.count()).number == 0
        await enqueue_one(engine)


@pytest.mark.parametrize("name", CARRIED)
async def test_behind_a_pooler_operators_carry_their_bounds(fresh_database: str, pooled: str, name: str) -> None:
    async with opened(pooled, bounds=UNLOCKED) as engine:
        id = await enqueue_one(engine)
        held = await lease_one(engine)
        async with nothing_changes(engine, id), locked(fresh_database):
            with pytest.raises(Unavailable, match="lock timeout"):
                await asyncio.wait_for(CALLS[name](engine, held), 20)
        # And they leave none with the backend, which is the next client's.
        await engine.pause("other")
        assert await engine.reads.value("SHOW lock_timeout", writes=False) == "0"
        await ack(engine, held)
