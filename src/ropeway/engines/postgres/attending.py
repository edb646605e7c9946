"""Attending: which workers are there."""

from __future__ import annotations

from ropeway.core.fleet import FORGET_AFTER, SEEN_WITHIN, WorkerInfo, check_seen_within
from ropeway.core.job import DEFAULT_TENANT
from ropeway.engines.postgres.store import PostgresStore


class PostgresAttending(PostgresStore):
    async def report_worker(self, info: WorkerInfo, *, tenant: str = DEFAULT_TENANT) -> None:
        await self.notes.fetch(
            self.sql("attending", "report"),
            tenant, info.id, info.host, info.pid, info.version, info.queues, info.types, info.slots, info.running,
            info.rss_bytes, info.state,
        )  # fmt: skip

    async def workers(self, *, seen_within: float = SEEN_WITHIN, tenant: str = DEFAULT_TENANT) -> list[WorkerInfo]:
        check_seen_within(seen_within)
        rows = await self.reads.fetch(self.sql("attending", "workers"), tenant, seen_within, writes=False)
        return [
            WorkerInfo(**{**row, "queues": tuple(row["queues"]), "types": tuple(row["types"])}) for row in rows
        ]

    async def forget_worker(self, id: str, *, tenant: str = DEFAULT_TENANT) -> None:
        await self.notes.fetch(self.sql("attending", "forget"), tenant, id)

    async def forget_absent(self) -> None:
        """Forget who was not heard of for a day."""
        await self.chores.fetch(self.sql("attending", "forget_absent"), FORGET_AFTER)
