"""The schedules that the code declares, written into the store before work begins."""

from __future__ import annotations

from collections.abc import Iterable

from ropeway.core.errors import MissingScope
from ropeway.core.schedule import NewSchedule
from ropeway.engines.protocol import Engine
from ropeway.observability.logs import Logger
from ropeway.observability.names import SCHEDULES_REFUSED


async def declare(engine: Engine, schedules: Iterable[NewSchedule], *, tenant: str, log: Logger) -> None:
    """Store them. A key that may not do that does not keep the worker from its work: the log tells it."""
    for schedule in schedules:
        try:
            await engine.put_schedule(schedule, tenant=tenant)
        except MissingScope as error:
            log.warning(
                SCHEDULES_REFUSED,
                schedule=schedule.name,
                error=error.message,
                hint="a key that declares schedules needs the scopes work and enqueue, or admin",
            )
            return
