"""Remembering: samples of how it was."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import asyncpg

from ropeway.core.history import KEEP_LONG_STEPS, KEEP_STEPS, LONG_STEP, STEP, Depth, Histogram, Observed, Sample
from ropeway.core.job import DEFAULT_TENANT
from ropeway.engines.postgres.store import PostgresStore
from ropeway.engines.remembering import FEW, observed, share_of, window

#: Events on one page of the log, about.
ON_A_PAGE = 70


class PostgresRemembering(PostgresStore):
    async def observe(self, since: datetime, until: datetime, *, most: int = 20_000) -> list[Observed]:
        pages = max(1, most // ON_A_PAGE)
        rows = await self.chores.fetch(self.sql("remembering", "observe"), since, until, pages, FEW, writes=False)
        counts = [row for row in rows if row["event"] is not None]
        counted = window(
            since,
            until,
            first=min((row["reach"] for row in counts), default=None),
            newest=max((row["newest"] for row in counts), default=None),
        )
        return observed(
            ((row["tenant"], row["queue"], row["event"], row["number"]) for row in counts),
            ((row["tenant"], row["queue"], row["wait"], row["run"]) for row in rows if row["event"] is None),
            share_of(counted, since, until),
        )

    async def remember(self, samples: Sequence[Sample]) -> None:
        if not samples:
            return
        columns = [[getattr(sample, name) for sample in samples] for name in Sample.__struct_fields__[:-2]]
        histograms = [[_array(sample.waits) for sample in samples], [_array(sample.runs) for sample in samples]]
        await self.chores.fetch(self.sql("remembering", "remember"), *columns, *histograms)

    async def history(
        self,
        *,
        step: int,
        since: datetime,
        until: datetime | None = None,
        queue: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Sample]:
        asked: list[object] = [tenant, step, since, until]
        name = "history"
        if queue is not None:
            name = "history_of_queue"
            asked.append(queue)
        rows = await self.reads.fetch(self.sql("remembering", name), *asked, writes=False)
        return [_sample(row) for row in rows]

    async def latest(self, *, step: int, since: datetime, until: datetime, busy: bool = False) -> list[Sample]:
        statement = self.sql("remembering", "latest")
        rows = await self.chores.fetch(statement, step, since, until, busy, writes=False)
        return [_sample(row) for row in rows]

    async def depths(self, *, cap: int = 10_000, tenant: str = DEFAULT_TENANT) -> list[Depth]:
        rows = await self.chores.fetch(self.sql("remembering", "depths"), tenant, cap + 1, writes=False)
        return [
            Depth(row["queue"], min(row["waiting"], cap), row["running"], row["oldest"], row["seen"] > cap)
            for row in rows
        ]

    async def forget_samples(self, now: datetime) -> None:
        rows = await self.chores.fetch(self.sql("remembering", "sampled_tenants"), writes=False)
        tenants = [row["tenant"] for row in rows]
        for step, kept in ((STEP, KEEP_STEPS), (LONG_STEP, KEEP_LONG_STEPS)):
            before = now - timedelta(seconds=kept)
            await self.chores.fetch(self.sql("remembering", "forget_samples"), tenants, step, before)


def _sample(row: asyncpg.Record) -> Sample:
    return Sample(**{**row, "waits": tuple(row["waits"]), "runs": tuple(row["runs"])})


def _array(counts: Histogram) -> str:
    """An array inside an array would have to be of the same length for all: each is sent as text."""
    return "{" + ",".join(map(str, counts)) + "}"
