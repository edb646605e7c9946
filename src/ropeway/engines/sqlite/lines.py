"""The log of a job: what its handler says while it runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from uuid import UUID

from ropeway.core.errors import RopewayError
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.joblog import (
    DEFAULT_LINES,
    MAX_LINES,
    MAX_LOG_BYTES,
    NEVER_TOO_LARGE,
    LogLine,
    check_lines,
    kept_line,
)
from ropeway.core.lease import Lease
from ropeway.engines.sqlfile import statements
from ropeway.engines.sqlite.rows import moment
from ropeway.engines.sqlite.settling import refusal
from ropeway.engines.sqlite.store import SqliteStore
from ropeway.engines.sqlite.writer import Transaction, one_by_one

SQL = statements("ropeway.engines.sqlite", "sql/lines.sql")


class SqliteLines(SqliteStore):
    async def log(
        self, lines: Sequence[tuple[Lease, LogLine]], *, tenant: str = DEFAULT_TENANT
    ) -> list[RopewayError | None]:
        return await self.write(_append_each, (tenant, lines), len(lines)) if lines else []

    async def log_of(
        self, id: UUID, *, after: int = 0, limit: int = DEFAULT_LINES, tenant: str = DEFAULT_TENANT
    ) -> list[LogLine]:
        check_lines(after, limit)
        asked = {"tenant": tenant, "id": id.bytes, "after": after, "limit": limit}

        def ask(db: sqlite3.Connection) -> list[LogLine]:
            rows = db.execute(SQL["lines_of"], asked)
            return [LogLine(message, level, attempt, n, moment(at)) for message, level, attempt, n, at in rows]

        return await self.read(ask)


def _append_all(tx: Transaction, call: tuple[str, Sequence[tuple[Lease, LogLine]]]) -> list[RopewayError | None]:
    """Line by line: the fence and the newest number are looked up once per lease."""
    tenant, lines = call
    known: dict[Lease, list[int] | None] = {}
    answers: list[RopewayError | None] = []
    for lease, line in lines:
        if lease not in known:
            known[lease] = _current(tx, tenant, lease)
        current = known[lease]
        if current is None:
            answers.append(refusal(tx, tenant, lease))
            continue
        current[1] += 1
        body, number = current
        kept = kept_line(line, attempt=lease.attempt, n=number, at=None)
        row = {"body": body, "n": number, "now": tx.now, "attempt": kept.attempt}
        tx.db.execute(SQL["append"], {**row, "level": kept.level, "message": kept.message})
        answers.append(None)
    for current in known.values():
        if current is not None and current[1] > NEVER_TOO_LARGE:
            tx.db.execute(SQL["trim"], {"body": current[0], "lines": MAX_LINES, "bytes": MAX_LOG_BYTES})
    return answers


_append_each = one_by_one(_append_all)


def _current(tx: Transaction, tenant: str, lease: Lease) -> list[int] | None:
    """Body and newest line number of the lease's job; None when the lease is not current."""
    fence = {"tenant": tenant, "id": lease.job_id.bytes, "token": lease.token.bytes, "attempt": lease.attempt}
    row = tx.db.execute(SQL["current_body"], fence).fetchone()
    return None if row is None else list(row)
