"""Counts what the queues hold, for the metrics of this process."""

from __future__ import annotations

from ropeway.engines.protocol import Engine
from ropeway.observability.metrics import WorkerMetrics

#: Seconds between two counts: as often as Prometheus usually asks.
INTERVAL = 15.0


class Surveyor:
    name = "survey"

    def __init__(self, engine: Engine, metrics: WorkerMetrics) -> None:
        self._engine = engine
        self._metrics = metrics

    async def run_once(self) -> bool:
        self._metrics.queues(await self._engine.queue_stats())
        return False
