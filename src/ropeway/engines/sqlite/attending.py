"""Attending: which workers are there."""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec

from ropeway.core.fleet import FORGET_AFTER, SEEN_WITHIN, WorkerInfo, check_seen_within
from ropeway.core.job import DEFAULT_TENANT
from ropeway.engines.sqlfile import statements
from ropeway.engines.sqlite.rows import micros, moment, seconds, text
from ropeway.engines.sqlite.store import SqliteStore
from ropeway.engines.sqlite.writer import Transaction, one_by_one

SQL = statements("ropeway.engines.sqlite", "sql/attending.sql")


class SqliteAttending(SqliteStore):
    async def report_worker(self, info: WorkerInfo, *, tenant: str = DEFAULT_TENANT) -> None:
        await self.write(_report_each, (tenant, info))

    async def workers(self, *, seen_within: float = SEEN_WITHIN, tenant: str = DEFAULT_TENANT) -> list[WorkerInfo]:
        since = micros(self.clock.now()) - seconds(check_seen_within(seen_within))
        asked = {"tenant": tenant, "since": since}

        def ask(db: sqlite3.Connection) -> list[WorkerInfo]:
            return [_stored_worker(row) for row in db.execute(SQL["workers"], asked)]

        return await self.read(ask)

    async def forget_worker(self, id: str, *, tenant: str = DEFAULT_TENANT) -> None:
        await self.write(_forget_each, {"tenant": tenant, "id": id})

    async def forget_absent(self) -> None:
        """Forget who was not heard of for a day."""
        asked = {"before": micros(self.clock.now()) - seconds(FORGET_AFTER)}
        if await self.read(lambda db: db.execute(SQL["any_absent"], asked).fetchone()):
            await self.write(_forget_absent, asked)


def _report(tx: Transaction, call: tuple[str, WorkerInfo]) -> None:
    tenant, info = call
    row = {**msgspec.structs.asdict(info), "queues": text(info.queues), "types": text(info.types)}
    del row["started_at"], row["seen_at"]
    tx.db.execute(SQL["report"], {**row, "tenant": tenant, "now": tx.now})


_report_each = one_by_one(_report)


def _forget(tx: Transaction, asked: dict[str, str]) -> None:
    tx.db.execute(SQL["forget"], asked)


_forget_each = one_by_one(_forget)


def _forget_old(tx: Transaction, asked: dict[str, int]) -> None:
    tx.db.execute(SQL["forget_absent"], asked)


_forget_absent = one_by_one(_forget_old)


def _stored_worker(row: tuple[Any, ...]) -> WorkerInfo:
    id, host, pid, version, queues, types, slots, running, rss_bytes, state, started_at, seen_at = row
    return WorkerInfo(
        id=id,
        host=host,
        pid=pid,
        version=version,
        queues=tuple(msgspec.json.decode(queues)),
        types=tuple(msgspec.json.decode(types)),
        slots=slots,
        running=running,
        rss_bytes=rss_bytes,
        state=state,
        started_at=moment(started_at),
        seen_at=moment(seen_at),
    )
