"""The chores that a process does, by its settings, started and stopped as one."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from ropeway.engines.protocol import Engine
from ropeway.observability import logs
from ropeway.observability.metrics import WorkerMetrics
from ropeway.runtime.service import Loop, Outage, stop_all
from ropeway.settings import Settings
from ropeway.upkeep import auditor, historian, pruner, surveyor
from ropeway.upkeep.auditor import Auditor
from ropeway.upkeep.expirer import Expirer
from ropeway.upkeep.historian import Historian
from ropeway.upkeep.pruner import Pruner
from ropeway.upkeep.recurrer import Recurrer
from ropeway.upkeep.rescuer import Rescuer
from ropeway.upkeep.surveyor import Surveyor


class Chore(Protocol):
    """Something to be done again and again: `run_once` says whether there is more to do right away."""

    name: str

    async def run_once(self) -> bool: ...


class Upkeep:
    """Loops over an open engine: what the settings `reaper` and `dispatcher` switch on.

    It opens and closes nothing. `survey` also counts what the queues hold, for the metrics. `outage` is for a
    process that uses the same engine in other loops as well, so that the log tells of its absence once.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        metrics: WorkerMetrics | None = None,
        *,
        log: logs.Logger | None = None,
        outage: Outage | None = None,
        survey: bool = False,
    ) -> None:
        self._log = logs.logger("ropeway.upkeep") if log is None else log
        self._outage = Outage(self._log) if outage is None else outage
        self.loops: list[Loop] = []
        if settings.reaper:
            rescuer = Rescuer(engine, self._log, metrics, interval=settings.reaper_interval)
            self._add(rescuer, settings.reaper_interval)
            self._add(Expirer(engine, self._log), settings.reaper_interval)
            self._add(Auditor(engine, self._log, metrics), auditor.INTERVAL, patient=True)
            self._add(Pruner(engine, self._log), pruner.INTERVAL)
            self._add(Historian(engine), historian.INTERVAL, patient=True)
        if settings.dispatcher:
            self._add(Recurrer(engine, self._log), settings.dispatcher_interval)
        if survey and metrics is not None:
            self._add(Surveyor(engine, metrics), surveyor.INTERVAL)

    def _add(self, chore: Chore, interval: float, *, patient: bool = False) -> None:
        """`patient` is what nobody waits for: workers that are started together do not all look at once."""
        self.loops.append(
            Loop(chore.name, interval, chore.run_once, log=self._log, outage=self._outage, patient=patient)
        )

    @property
    def chores(self) -> dict[str, float]:
        """What it does, and every how many seconds."""
        return {loop.name: loop.interval for loop in self.loops}

    @property
    def outage(self) -> Outage:
        return self._outage

    def start(self) -> None:
        """Start the loops on the running event loop; once."""
        for loop in self.loops:
            loop.start()

    async def stop(self, *, within: float = 5.0) -> None:
        """Let calls under way finish for at most `within` seconds. May be repeated."""
        await stop_all(self.loops, within=within)

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()
