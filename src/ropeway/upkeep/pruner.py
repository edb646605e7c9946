"""Removes ended jobs, events and keys whose time is over; PostgreSQL also gets the partitions of coming days."""

from __future__ import annotations

from ropeway.engines.protocol import Engine
from ropeway.observability.logs import Logger
from ropeway.upkeep.telling import tell_sweep

#: Seconds between two prunes; what goes is counted in days.
INTERVAL = 3_600.0


class Pruner:
    name = "prune"

    def __init__(self, engine: Engine, log: Logger) -> None:
        self._engine = engine
        self._log = log

    async def run_once(self) -> bool:
        """Always False: a prune goes on until nothing is left."""
        pruned = await self._engine.prune()
        tell_sweep(self._log, self.name, jobs=pruned.jobs, events=pruned.events, keys=pruned.keys)
        return False
