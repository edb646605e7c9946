"""Limiting: buckets of tokens that all processes share."""

from __future__ import annotations

from datetime import UTC, datetime

from ropeway.core import limits
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.limits import FORGET_AFTER, FORGET_TICKETS_AFTER, TICKETS, Bucket, Taken
from ropeway.engines.postgres.store import PostgresStore

#: No time passes between what the function answers and what is made of it.
_SAME = datetime(1970, 1, 1, tzinfo=UTC)


class PostgresLimiting(PostgresStore):
    async def take_tokens(
        self, name: str, wanted: float, *, rate: float, burst: float, tenant: str = DEFAULT_TENANT
    ) -> Taken:
        # What was in it when it was our turn; the rest is the arithmetic of core, which the function has done too.
        tokens: float = await self.access.value(
            self.sql("limiting", "take_tokens"), tenant, name, float(wanted), float(rate), float(burst)
        )
        _, taken = limits.take(Bucket(tokens, _SAME), wanted, rate=rate, burst=burst, now=_SAME)
        return taken

    async def forget_buckets(self) -> None:
        """Forget buckets that nobody took from for a day: they would be full again. Those of tickets sooner."""
        await self.chores.fetch(
            self.sql("limiting", "forget_buckets"), FORGET_AFTER, TICKETS, FORGET_TICKETS_AFTER
        )
