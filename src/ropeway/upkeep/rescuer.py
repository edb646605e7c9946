"""Takes jobs back from workers whose leases ran out, so that others run them."""

from __future__ import annotations

from ropeway.engines.protocol import Engine
from ropeway.observability.logs import Logger
from ropeway.observability.metrics import WorkerMetrics
from ropeway.upkeep.telling import tell_taken_back


class Rescuer:
    name = "rescue"

    def __init__(
        self, engine: Engine, log: Logger, metrics: WorkerMetrics | None = None, *, batch: int = 1_000
    ) -> None:
        self._engine = engine
        self._log = log
        self._metrics = metrics
        self._batch = batch

    async def run_once(self) -> bool:
        """True when there may be more."""
        rescued = await self._engine.rescue(limit=self._batch)
        await tell_taken_back(self.name, rescued, self._engine, self._log, self._metrics)
        # A batch ends with a whole lease call's jobs, so it need not be full for more to be there.
        return bool(rescued)
