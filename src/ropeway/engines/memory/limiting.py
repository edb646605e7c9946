"""Limiting: buckets of tokens that all callers share."""

from __future__ import annotations

from ropeway.core import limits
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.limits import FORGET_AFTER, FORGET_TICKETS_AFTER, TICKETS, Taken
from ropeway.engines.memory.store import MemoryStore, later


class MemoryLimiting(MemoryStore):
    async def take_tokens(
        self, name: str, wanted: float, *, rate: float, burst: float, tenant: str = DEFAULT_TENANT
    ) -> Taken:
        before = self.buckets.get((tenant, name))
        after, taken = limits.take(before, wanted, rate=rate, burst=burst, now=self.clock.now())
        self.buckets[tenant, name] = after
        return taken

    def forget_buckets(self) -> None:
        """Forget buckets that nobody took from for a day: they would be full again. Those of tickets sooner."""
        now = self.clock.now()
        edge, edge_of_tickets = later(now, -FORGET_AFTER), later(now, -FORGET_TICKETS_AFTER)
        for (tenant, name), bucket in list(self.buckets.items()):
            if bucket.at <= (edge_of_tickets if name.startswith(TICKETS) else edge):
                del self.buckets[tenant, name]
