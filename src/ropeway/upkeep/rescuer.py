"""Takes jobs back from workers whose leases ran out, so that others run them."""

from __future__ import annotations

import time
from collections.abc import Callable

from ropeway.core.errors import EngineError
from ropeway.engines.protocol import Engine
from ropeway.observability.logs import Logger
from ropeway.observability.metrics import WorkerMetrics
from ropeway.runtime.faultpoints import fault
from ropeway.upkeep.telling import tell_taken_back

#: Seconds after the engine's return in which nothing is taken back: workers could not beat meanwhile, and those
#: that live do so now (they try at least once a second).
GRACE = 3.0


class Rescuer:
    name = "rescue"

    def __init__(
        self,
        engine: Engine,
        log: Logger,
        metrics: WorkerMetrics | None = None,
        *,
        batch: int = 1_000,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._log = log
        self._metrics = metrics
        self._batch = batch
        self._monotonic = monotonic
        self._away = False
        self._not_before = 0.0

    async def run_once(self) -> bool:
        """True when there may be more."""
        if self._away:
            await self._engine.now()
            self._away = False
            self._not_before = self._monotonic() + GRACE
        if self._monotonic() < self._not_before:
            return False
        fault("rescue.before")
        try:
            rescued = await self._engine.rescue(limit=self._batch)
        except EngineError:
            self._away = True
            raise
        fault("rescue.committed")
        await tell_taken_back(self.name, rescued, self._engine, self._log, self._metrics)
        # A batch ends with a whole lease call's jobs, so it need not be full for more to be there.
        return bool(rescued)
