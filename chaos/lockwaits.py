"""Who waits for a lock in a PostgreSQL database, and for how long, looked at again and again."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final

import asyncpg

#: Seconds between two looks.
EVERY: Final = 0.02

#: The server knows when each wait began, so one look tells its whole length. Whoever stands in line behind
#: somebody who only waits as well is behind them too.
_WAITING: Final = """
SELECT max(seconds) AS longest, max(seconds) FILTER (WHERE EXISTS (
    SELECT FROM pg_stat_activity b WHERE b.pid = ANY (pg_blocking_pids(waiting.pid)) AND b.application_name = $1
)) AS behind
FROM (
    SELECT l.pid, extract(epoch FROM clock_timestamp() - l.waitstart)::float8 AS seconds
    FROM pg_locks l JOIN pg_stat_activity w ON w.pid = l.pid
    WHERE NOT l.granted AND w.datname = current_database() AND w.application_name <> $1
) waiting
"""


class LockWaits:
    """Looks for as long as the block lasts. `behind` is the application name of those who are to blame.

    A wait is known to within `blind`, the longest time between two looks; one that is shorter may be missed.
    """

    def __init__(self, url: str, behind: str) -> None:
        self._url = url
        self._behind = behind
        self.looks = 0
        self.blind = 0.0
        #: Seconds: of everybody else's waits, and of those that `behind` had a part in.
        self.longest = 0.0
        self.longest_behind = 0.0

    async def __aenter__(self) -> LockWaits:
        self._connection = await asyncpg.connect(self._url)
        await self._look()
        self._task = asyncio.create_task(self._go_on())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._connection.close()

    async def _go_on(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(EVERY)
            await self._look()
            now = time.monotonic()
            self.blind, last = max(self.blind, now - last), now

    async def _look(self) -> None:
        row = await self._connection.fetchrow(_WAITING, self._behind)
        assert row is not None
        self.looks += 1
        self.longest = max(self.longest, row["longest"] or 0.0)
        self.longest_behind = max(self.longest_behind, row["behind"] or 0.0)
