"""The eye on locks sees a wait, whose fault it is, and how long it lasts."""

from __future__ import annotations

import asyncio

import asyncpg

from chaos.lockwaits import LockWaits
from tests.engines.pg_kit import connected, eventually


async def test_a_wait_is_put_down_to_whoever_is_in_the_way(postgres_database: str) -> None:
    async with connected(postgres_database, times=2) as (waiter, other):
        await other.execute("CREATE TABLE wanted (n int)")
        blamed = await asyncpg.connect(f"{postgres_database}?application_name=blamed")
        try:
            async with (
                LockWaits(postgres_database, "blamed") as mine,
                LockWaits(postgres_database, "else") as theirs,
            ):
                async with blamed.transaction():
                    await blamed.execute("LOCK TABLE wanted IN ACCESS EXCLUSIVE MODE")
                    waiting = asyncio.create_task(waiter.execute("INSERT INTO wanted VALUES (1)"))

                    async def seen() -> bool:
                        return mine.longest_behind > 0.2 and theirs.longest > 0.2

                    await eventually(seen)
                await waiting
        finally:
            await blamed.close()
    assert mine.longest_behind == mine.longest
    assert theirs.longest_behind == 0.0
    assert mine.looks > 2
