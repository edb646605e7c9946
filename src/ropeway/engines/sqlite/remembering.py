"""Remembering: samples of how it was."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import asdict

from ropeway.core.history import KEEP_LONG_STEPS, KEEP_STEPS, LONG_STEP, STEP, Depth, Observed, Sample
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
        statement = SQL["history" if queue is None else "history_of_queue"]
        return await self.read(lambda db: [_sample(row) for row in db.execute(statement, asked)])

    async def latest(self, *, step: int, since: datetime, until: datetime, busy: bool = False) -> list[Sample]:
        asked = {"step": step, "since": micros(since), "until": micros(until), "busy": busy}
        return await self.read(lambda db: [_sample(row) for row in db.execute(SQL["latest"], asked)])

    async def depths(self, *, cap: int = 10_000, tenant: str = DEFAULT_TENANT) -> list[Depth]:
        now = micros(self.clock.now())

        def ask(db: sqlite3.Connection) -> list[Depth]:
            of_tenant = {"tenant": tenant}
            running: dict[str, int] = dict(db.execute(SQL["running"], of_tenant).fetchall())
            free = {queue for (queue,) in db.execute(SQL["free_queues"], of_tenant)}
            depths = []
            for queue in sorted(free | running.keys()):
                asked = {"tenant": tenant, "queue": queue, "now": now, "limit": cap + 1}
                waiting, first = db.execute(SQL["waiting"], asked).fetchone()
                oldest = None if first is None else (now - first) / 1e6
                depths.append(Depth(queue, min(waiting, cap), running.get(queue, 0), oldest, waiting > cap))
            return [one for one in depths if one.waiting or one.running]

        return await self.read(ask)

    async def forget_samples(self) -> None:
        """Remove samples whose time is over, a little at a time; looked for before a turn is asked for."""
        now = self.clock.now()
        tenants = await self.read(lambda db: db.execute(SQL["sampled_tenants"]).fetchall())
        for (tenant,) in tenants:
            for step, kept in ((STEP, KEEP_STEPS), (LONG_STEP, KEEP_LONG_STEPS)):
                before = micros(now - timedelta(seconds=kept))
                await self._forget({"tenant": tenant, "step": step, "before": before, "limit": BATCH})

    async def _forget(self, old: dict[str, Any]) -> None:
        def any_left(db: sqlite3.Connection) -> bool:
            return db.execute(SQL["old_samples"], old).fetchone() is not None

        def forget(tx: Transaction, _: None) -> None:
            tx.db.execute(SQL["forget_samples"], old)

        while await self.read(any_left):
            await self.write(one_by_one(forget), None, FLUSH_WEIGHT)


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
