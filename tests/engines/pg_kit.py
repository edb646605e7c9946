"""What the PostgreSQL tests are written in: engines, connections beside them, and facts to wait for."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg

from ropeway.engines.postgres import PostgresEngine
from ropeway.engines.protocol import EngineRules

T = TypeVar("T")
Connection = asyncpg.Connection

_TELLING = """p_tenant text, p_id uuid, p_type text, p_queue text, p_priority smallint, p_max_attempts smallint,
    p_payload text, p_channel text, p_message text, INOUT p_now timestamptz"""
#: What the body of `insert_job_and_tell` begins with.
INSERT = "p_now := ropeway.insert_job(p_tenant, p_id, p_type, p_queue, p_priority, p_max_attempts, p_payload);"


@asynccontextmanager
async def opened(url: str, rules: EngineRules = EngineRules(), **options: Any) -> AsyncIterator[PostgresEngine]:
    """An open engine; few partitions ahead, because making them is most of an open."""
    async with PostgresEngine(url, rules, **{"days_ahead": 1, **options}) as engine:
        yield engine


def migrated(url: str) -> str:
    """That database, with Ropeway's schema in it."""

    async def migrate() -> None:
        engine = PostgresEngine(url, days_ahead=1)
        try:
            await engine.migrations.up()
        finally:
            await engine.close()

    asyncio.run(migrate())
    return url


@asynccontextmanager
async def connected(url: str, *, times: int = 1) -> AsyncIterator[Any]:
    """A connection of someone else; several as a list."""
    connections = [await asyncpg.connect(url) for _ in range(times)]
    try:
        yield connections[0] if times == 1 else connections
    finally:
        for connection in connections:
            connection.terminate()


async def telling_otherwise(connection: Connection, body: str) -> None:
    """Another body for the procedure that inserts a job and tells of it."""
    await connection.execute(
        f"CREATE OR REPLACE PROCEDURE ropeway.insert_job_and_tell({_TELLING}) "
        f"LANGUAGE plpgsql AS $$ BEGIN {body} END $$"
    )


async def eventually(fact: Callable[[], Awaitable[T]], *, within: float = 45.0, what: str = "") -> T:
    """Ask until the answer is true; fails after `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        answer = await fact()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not true within {within:g} s: {what or fact}")
        await asyncio.sleep(0.005)


async def waiting_for_lock(connection: Connection, query: str, *, number: int = 1) -> list[int]:
    """The backends of this database whose statement contains `query`, once that many of them wait for a lock."""

    async def fact() -> list[int]:
        # Inside a transaction the view would stay as it was at its first use.
        await connection.execute("SELECT pg_stat_clear_snapshot()")
        rows = await connection.fetch(
            """SELECT pid FROM pg_stat_activity
               WHERE datname = current_database() AND state = 'active' AND wait_event_type = 'Lock'
                 AND strpos(query, $1) > 0 AND pid <> pg_backend_pid()""",
            query,
        )
        return [row["pid"] for row in rows] if len(rows) >= number else []

    return await eventually(fact, what=f"{number} statements with {query!r} wait for a lock")


async def pages_read(connection: Connection, statement: str, *arguments: Any) -> int:
    """How many pages of tables and indexes a statement looks at, the second time it runs."""
    await connection.fetch(statement, *arguments)
    rows = await connection.fetch(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", *arguments)
    plan = json.loads(rows[0][0])[0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])
