"""Cancels jobs that were not started in time."""

from __future__ import annotations

from ropeway.engines.protocol import Engine
from ropeway.observability.logs import Logger
from ropeway.runtime.faultpoints import fault
from ropeway.upkeep.telling import tell_sweep


class Expirer:
    name = "expire"

    def __init__(self, engine: Engine, log: Logger, *, batch: int = 1_000) -> None:
        self._engine = engine
        self._log = log
        self._batch = batch

    async def run_once(self) -> bool:
        """True when there may be more."""
        expired = await self._engine.expire(limit=self._batch)
        fault("expire.committed")
        tell_sweep(self._log, self.name, expired=len(expired))
        return len(expired) >= self._batch
