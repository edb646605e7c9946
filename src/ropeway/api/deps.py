"""What every handler may use: the engine, and what one server process keeps round it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ropeway.api.attendance import Attendance
from ropeway.api.budget import Budget
from ropeway.api.clock import EngineTime
from ropeway.api.heavy import Heavy
from ropeway.api.places import Places
from ropeway.api.polling import Polls
from ropeway.api.readiness import Readiness
from ropeway.api.streams import Streams
from ropeway.core.access import Limits
from ropeway.service.access import Access
from ropeway.service.limits import Admission
from ropeway.service.notes import Notes
from ropeway.service.seals import Seals, Tickets

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine
    from ropeway.observability.metrics import WorkerMetrics
    from ropeway.settings import Settings


class Deps:
    """Made once for an application; `call.deps` in a handler. The engine is open while it is used."""

    def __init__(self, engine: Engine, settings: Settings, metrics: WorkerMetrics) -> None:
        self.engine = engine
        self.settings = settings
        self.metrics = metrics
        self.access = Access(engine)
        self.admission = Admission(engine, limits_of(settings))
        self.readiness = Readiness(engine)
        #: The bytes of bodies under way, and the threads that read large ones.
        self.bodies = Budget()
        self.heavy = Heavy()
        #: The OpenAPI document, as it is sent.
        self.openapi = b"{}"
        #: Set when the server is asked to stop: long polls and streams end at once.
        self.stopping = asyncio.Event()
        self.polls = Polls(engine, self.stopping)
        self.streams = Streams(engine, confirm=self.access.confirm)
        self.places = Places(settings.max_waiting)
        #: What is given back for callers who went away; the engine stays open until it is.
        self.releasing: set[asyncio.Task[None]] = set()
        self.time = EngineTime(engine)
        metrics.waiting(lambda: self.polls.waiting, lambda: self.streams.listening)
        self.seals = Seals(engine)
        self.tickets = Tickets(engine, self.seals)
        self.notes = Notes(engine)
        self.attendance = Attendance(engine)

    async def start(self) -> None:
        """Look into the store once: a server that could sign nothing should not start."""
        await self.seals.secret()

    async def stop(self) -> None:
        await self.polls.close()
        while self.releasing:
            await asyncio.wait(self.releasing)
        await self.streams.close()
        await self.access.close()
        await self.admission.close()
        self.heavy.close()
        await self.notes.close()


def limits_of(settings: Settings) -> Limits:
    """What a tenant may use that has no limits of its own."""
    return Limits(
        rate_per_second=settings.tenant_rate,
        burst=settings.tenant_burst,
        max_queued=settings.tenant_max_queued,
        max_payload_bytes=settings.max_payload_bytes,
        max_leases=settings.tenant_max_leases,
    )
