"""Remembering: samples of how it was."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import asdict

from ropeway.core.history import KEEP_LONG_STEPS, KEEP_STEPS, LONG_STEP, STEP, Observed, Sample
from ropeway.core.job import DEFAULT_TENANT
from ropeway.engines.remembering import FEW, observed, share_of, window
from ropeway.engines.sqlfile import statements
from ropeway.engines.sqlite.rows import micros, moment, optional_micros
from ropeway.engines.sqlite.store import SqliteStore
from ropeway.engines.sqlite.writer import FLUSH_WEIGHT, Transaction, one_by_one

SQL = statements("ropeway.engines.sqlite", "sql/remembering.sql")

#: Samples removed in one transaction, so that other writers soon get their turn.
BATCH = 1_000


class SqliteRemembering(SqliteStore):
    async def observe(self, since: datetime, until: datetime, *, most: int = 20_000) -> list[Observed]:
        def ask(db: sqlite3.Connection) -> list[Observed]:
            number, first, newest = db.execute(SQL["looked_at"], {"most": most}).fetchone()
            reach = (moment(first), moment(newest)) if number == most else (None, None)
            counted = window(since, until, first=reach[0], newest=reach[1])
            asked = {"since": micros(counted[0]), "until": micros(counted[1]), "most": most, "few": FEW}
            return observed(
                db.execute(SQL["happened"], asked),
                ((*lane, wait / 1e6, run / 1e6) for *lane, wait, run in db.execute(SQL["ended"], asked)),
                share_of(counted, since, until),
            )

        return await self.read(ask)

    async def remember(self, samples: Sequence[Sample]) -> None:
        if samples:
            await self.write(_remember_all, [_row(sample) for sample in samples], len(samples))

    async def history(
        self,
        *,
        step: int,
        since: datetime,
        until: datetime | None = None,
        queue: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Sample]:
        asked = {
            "tenant": tenant,
            "step": step,
            "since": micros(since),
            "until": optional_micros(until),
            "queue": queue,
        }
        return await self.read(lambda db: [_sample(row) for row in db.execute(SQL["history"], asked)])

    async def forget_samples(self) -> None:
        """Remove samples whose time is over, a little at a time."""
        now = self.clock.now()
        for step, kept in ((STEP, KEEP_STEPS), (LONG_STEP, KEEP_LONG_STEPS)):
            asked = {"step": step, "before": micros(now - timedelta(seconds=kept)), "limit": BATCH}

            def forget(tx: Transaction, _: None, asked: dict[str, Any] = asked) -> int:
                return tx.db.execute(SQL["forget_samples"], asked).rowcount

            while await self.write(one_by_one(forget), None, FLUSH_WEIGHT) == BATCH:
                pass


def _row(sample: Sample) -> dict[str, Any]:
    return {
        **asdict(sample),
        "at": micros(sample.at),
        "waits": msgspec.json.encode(sample.waits).decode(),
        "runs": msgspec.json.encode(sample.runs).decode(),
    }


def _remember(tx: Transaction, rows: list[dict[str, Any]]) -> None:
    tx.db.executemany(SQL["remember"], rows)


_remember_all = one_by_one(_remember)


def _sample(row: tuple[Any, ...]) -> Sample:
    fields = dict(zip(Sample.__struct_fields__, row, strict=True))
    fields |= {
        "at": moment(fields["at"]),
        "waits": _histogram(fields["waits"]),
        "runs": _histogram(fields["runs"]),
    }
    return Sample(**fields)


_histogram = msgspec.json.Decoder(tuple[int, ...]).decode
