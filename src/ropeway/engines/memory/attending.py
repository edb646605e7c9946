"""Attending: which workers are there."""

from __future__ import annotations

from msgspec.structs import replace

from ropeway.core.fleet import FORGET_AFTER, SEEN_WITHIN, WorkerInfo, check_seen_within
from ropeway.core.job import DEFAULT_TENANT
from ropeway.engines.memory.store import MemoryStore, later


class MemoryAttending(MemoryStore):
    async def report_worker(self, info: WorkerInfo, *, tenant: str = DEFAULT_TENANT) -> None:
        now = self.clock.now()
        known = self.attendance.get((tenant, info.id))
        started = known.started_at if known is not None and known.same_process(info) else now
        self.attendance[tenant, info.id] = replace(info, started_at=started, seen_at=now)

    async def workers(self, *, seen_within: float = SEEN_WITHIN, tenant: str = DEFAULT_TENANT) -> list[WorkerInfo]:
        edge = later(self.clock.now(), -check_seen_within(seen_within))
        return [
            info
            for (owner, _), info in sorted(self.attendance.items())
            if owner == tenant and info.seen_at is not None and info.seen_at >= edge
        ]

    async def forget_worker(self, id: str, *, tenant: str = DEFAULT_TENANT) -> None:
        self.attendance.pop((tenant, id), None)

    def forget_absent(self) -> None:
        """Forget who was not heard of for a day."""
        edge = later(self.clock.now(), -FORGET_AFTER)
        for name, info in list(self.attendance.items()):
            if info.seen_at is not None and info.seen_at <= edge:
                del self.attendance[name]
