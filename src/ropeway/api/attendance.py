"""How many workers a tenant may have: each keeps a row of the store for a day."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ropeway.core.errors import QuotaExceeded
from ropeway.core.fleet import FORGET_AFTER

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine

#: Workers of one tenant that the store keeps at once.
MOST_WORKERS = 10_000

#: Seconds between two looks for workers that other processes have heard of, or that were forgotten.
LOOK_EVERY = 10.0


class Attendance:
    """The workers that are known, by tenant. Those of other processes are learnt late: the limit is a wide one."""

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._known: dict[str, set[str]] = {}
        self._looked_at: dict[str, float] = {}

    async def admit(self, tenant: str, id: str) -> None:
        """Raises QuotaExceeded for a worker beyond the limit; one that is known stays known."""
        known = self._known.get(tenant)
        if known is not None and id in known:
            return
        if known is None or self._clock() - self._looked_at[tenant] >= LOOK_EVERY:
            self._looked_at[tenant] = self._clock()
            workers = await self._engine.workers(seen_within=FORGET_AFTER, tenant=tenant)
            known = self._known[tenant] = {worker.id for worker in workers}
        if id not in known and len(known) >= MOST_WORKERS:
            raise QuotaExceeded(
                f"the tenant has {MOST_WORKERS} workers, and may have no more",
                hint="report under the same id for as long as a worker lives, and DELETE it when it ends",
            )
        known.add(id)

    def forget(self, tenant: str, id: str) -> None:
        self._known.get(tenant, set()).discard(id)
