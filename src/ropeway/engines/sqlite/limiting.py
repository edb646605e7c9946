"""Limiting: buckets of tokens that all processes share."""

from __future__ import annotations

from typing import NamedTuple

from ropeway.core import limits
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.limits import FORGET_AFTER, FORGET_TICKETS_AFTER, TICKETS, Bucket, Taken
from ropeway.engines.sqlfile import statements
from ropeway.engines.sqlite.rows import micros, moment, seconds
from ropeway.engines.sqlite.store import SqliteStore
from ropeway.engines.sqlite.writer import Transaction, one_by_one

SQL = statements("ropeway.engines.sqlite", "sql/limiting.sql")


class _Wish(NamedTuple):
    tenant: str
    name: str
    wanted: float
    rate: float
    burst: float


class SqliteLimiting(SqliteStore):
    async def take_tokens(
        self, name: str, wanted: float, *, rate: float, burst: float, tenant: str = DEFAULT_TENANT
    ) -> Taken:
        return await self.write(_take_all, _Wish(tenant, name, wanted, rate, burst))

    async def forget_buckets(self) -> None:
        """Forget buckets that nobody took from for a day: they would be full again. Those of tickets sooner."""
        now = micros(self.clock.now())
        asked: dict[str, int | str] = {
            "before": now - seconds(FORGET_AFTER),
            "tickets": TICKETS,
            "tickets_before": now - seconds(FORGET_TICKETS_AFTER),
        }
        if await self.read(lambda db: db.execute(SQL["any_unused"], asked).fetchone()):
            await self.write(_forget_unused, asked)


def _take(tx: Transaction, wish: _Wish) -> Taken:
    name = {"tenant": wish.tenant, "name": wish.name}
    row = tx.db.execute(SQL["bucket"], name).fetchone()
    before = None if row is None else Bucket(row[0], moment(row[1]))
    after, taken = limits.take(before, wish.wanted, rate=wish.rate, burst=wish.burst, now=moment(tx.now))
    tx.db.execute(SQL["keep_bucket"], {**name, "tokens": after.tokens, "at": micros(after.at)})
    return taken


_take_all = one_by_one(_take)


def _forget(tx: Transaction, asked: dict[str, int | str]) -> None:
    tx.db.execute(SQL["forget_unused"], asked)


_forget_unused = one_by_one(_forget)
