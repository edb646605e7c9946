"""Takes back jobs that carry a lease nobody granted: what a store restored from a backup may hold."""

from __future__ import annotations

from ropeway.engines.protocol import Engine
from ropeway.observability.logs import Logger
from ropeway.observability.metrics import WorkerMetrics
from ropeway.upkeep.telling import tell_taken_back

#: Seconds between two audits. Each looks at a bounded part of the store.
INTERVAL = 60.0


class Auditor:
    name = "audit"

    def __init__(
        self, engine: Engine, log: Logger, metrics: WorkerMetrics | None = None, *, batch: int = 1_000
    ) -> None:
        self._engine = engine
        self._log = log
        self._metrics = metrics
        self._batch = batch

    async def run_once(self) -> bool:
        """True when there may be more."""
        rescued = await self._engine.audit(limit=self._batch)
        await tell_taken_back(self.name, rescued, self._engine, self._log, self._metrics)
        return len(rescued) >= self._batch
