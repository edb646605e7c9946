"""Takes jobs back from workers whose leases ran out, so that others run them."""

from __future__ import annotations

import math
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
#: A look that comes so many seconds late shows that this process stood still. Others may have done so with it, one
#: of them with the store in its hand.
STOOD_STILL = 1.0


class Rescuer:
    name = "rescue"

    def __init__(
        self,
        engine: Engine,
        log: Logger,
        metrics: WorkerMetrics | None = None,
        *,
        interval: float = 1.0,
        batch: int = 1_000,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._log = log
        self._metrics = metrics
        # A loop varies its pauses a little.
        self._interval = 1.5 * interval
        self._batch = batch
        self._monotonic = monotonic
        self._away = False
        self._not_before = 0.0
        #: Whether the last look was left out. Who is late every time looks every second time.
        self._left_out = False
        #: When the next look is to come at the latest.
        self._expected = math.inf

    async def run_once(self) -> bool:
        """True when there may be more."""
        if self._monotonic() > self._expected + STOOD_STILL and not self._left_out:
            self._not_before = self._monotonic() + GRACE
        try:
            return await self._look()
        finally:
            self._expected = self._monotonic() + self._interval

    async def _look(self) -> bool:
        if self._away:
            await self._engine.now()
            self._away = False
            self._not_before = self._monotonic() + GRACE
        self._left_out = self._monotonic() < self._not_before
        if self._left_out:
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
