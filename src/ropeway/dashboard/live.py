"""What pages show, looked up once per second and process however many people look.

A tenant's overview and the newest of its events are kept up to date while somebody has asked for them lately;
afterwards the loop ends by itself, and a dashboard that nobody watches costs nothing. A job that somebody looks at
is looked at once between two looks at its tenant, for all who do.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from ropeway.core.errors import EngineError, PositionExpired, RopewayError
from ropeway.service.closeup import Closeup, look_closely
from ropeway.service.events import Events
from ropeway.service.overview import MOST_COUNTED, Overview, look

if TYPE_CHECKING:
    from ropeway.core.events import Event
    from ropeway.engines.protocol import Engine

#: Seconds between two looks, and how long somebody counts as looking after they asked.
EVERY: Final = 1.0
WATCHED_SECONDS: Final = 10.0

#: A store that takes long to answer is looked at for at most this share of the time.
MOST_OF_THE_TIME: Final = 0.2

#: Where counts stop at the first look.
FIRST_COUNTED: Final = 1_000

#: Events that are kept to be shown.
MOST_EVENTS: Final = 500


class Live:
    """What one process knows of its tenants right now."""

    def __init__(self, engine: Engine, *, every: float = EVERY) -> None:
        self._engine = engine
        self._every = every
        self._watched: dict[str, _Watched] = {}

    async def overview(self, tenant: str) -> Overview:
        """At most a second old, unless the store is away: then it raises what the store said."""
        watched = await self._watch(tenant)
        if watched.error is not None:
            raise watched.error
        assert watched.overview is not None  # noqa: S101 - without an error there is one
        return watched.overview

    async def events(self, tenant: str) -> Sequence[Event]:
        """The newest events since somebody began to look, the newest first."""
        return tuple((await self._watch(tenant)).events)

    async def job(self, tenant: str, id: UUID) -> Closeup:
        """A job as it was at the newest look at its tenant, or since. Raises NotFound."""
        return await (await self._watch(tenant)).job(id)

    async def changed(self, tenant: str, version: int, *, within: float) -> int:
        """The number of the newest look, as soon as it is not `version`; or after so many seconds."""
        watched = await self._watch(tenant)
        if watched.version == version:
            try:
                async with asyncio.timeout(within):
                    await watched.next_look.wait()
            except TimeoutError:
                pass
            watched.asked_at = time.monotonic()
        return watched.version

    async def refresh(self, tenant: str) -> None:
        """Look now: something was just done, and whoever did it wants to see it."""
        watched = self._watched.get(tenant)
        if watched is not None:
            await watched.look_once()

    def wake(self) -> None:
        """Whoever waits for the next look waits no longer: the server stops."""
        for watched in self._watched.values():
            watched.next_look.set()

    async def close(self) -> None:
        tasks = [task for watched in self._watched.values() for task in watched.tasks()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _watch(self, tenant: str) -> _Watched:
        watched = self._watched.get(tenant)
        if watched is None:
            watched = self._watched[tenant] = _Watched(self._engine, tenant)
            watched.task = asyncio.create_task(self._keep_up(tenant, watched), name=f"ropeway dashboard {tenant}")
        watched.asked_at = time.monotonic()
        await watched.first_look.wait()
        return watched

    async def _keep_up(self, tenant: str, watched: _Watched) -> None:
        try:
            while time.monotonic() - watched.asked_at < WATCHED_SECONDS or not watched.first_look.is_set():
                began = time.monotonic()
                await watched.look_once()
                took = time.monotonic() - began
                await asyncio.sleep(max(self._every - took, (1 / MOST_OF_THE_TIME - 1) * took))
        finally:
            del self._watched[tenant]
            watched.first_look.set()


class _Watched:
    """One tenant that somebody looks at."""

    def __init__(self, engine: Engine, tenant: str) -> None:
        self._engine = engine
        self._tenant = tenant
        self._log = Events(engine, tenant=tenant)
        self.asked_at = time.monotonic()
        self.overview: Overview | None = None
        self.error: RopewayError | None = None
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self.version = 0
        self.first_look = asyncio.Event()
        self.next_look = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self._position: str | None = None
        self._looking = asyncio.Lock()
        #: The jobs that were asked for since the newest look, and those looks that are under way.
        self._jobs: dict[UUID, asyncio.Task[Closeup]] = {}
        self._under_way: set[asyncio.Task[Closeup]] = set()

    def tasks(self) -> list[asyncio.Task[Any]]:
        """All that is under way for it."""
        return [*self._under_way] if self.task is None else [self.task, *self._under_way]

    async def look_once(self) -> None:
        # One at a time: two that go on from one position would both show the same events.
        async with self._looking:
            try:
                # Whoever comes first waits for it: a short count will do until the next look.
                cap = FIRST_COUNTED if self.overview is None else MOST_COUNTED
                overview = await look(self._engine, self._tenant, cap=cap)
                await self._read_events()
            except EngineError as error:
                self.error = error
            else:
                self.overview, self.error = overview, None
        self.version += 1
        # Also those that are not answered yet: they may have begun before what was just done.
        self._jobs = {}
        self.first_look.set()
        self.next_look.set()
        self.next_look = asyncio.Event()

    async def job(self, id: UUID) -> Closeup:
        task = self._jobs.get(id)
        if task is None:
            task = self._jobs[id] = asyncio.create_task(look_closely(self._engine, id, self._tenant))
            self._under_way.add(task)
            task.add_done_callback(self._looked)
        # Shielded, for whoever goes away must not take the answer from the others.
        return await asyncio.shield(task)

    def _looked(self, task: asyncio.Task[Closeup]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            # Those who waited for it were told, if they still do.
            task.exception()

    async def _read_events(self) -> None:
        if self._position is None:
            self._position = await self._log.now()
            return
        try:
            page = await self._log.page(self._position, limit=MOST_EVENTS)
        except PositionExpired:
            # They were pruned before they were read: go on with the next one.
            self._position = await self._log.now()
            return
        self._position = page.position
        self.events.extendleft(page.events)
        if len(page.events) == MOST_EVENTS:
            # It runs faster than anybody reads: go on at its end.
            self._position = await self._log.now()
