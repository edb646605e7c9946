"""What pages show, looked up once per second and process however many people look.

A tenant's overview and the newest of its events are kept up to date while somebody has asked for them lately;
afterwards the loop ends by itself, and a dashboard that nobody watches costs nothing. A job that somebody looks
at, and what the workers run, are looked at once between two looks at their tenant, for all who do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from ropeway.core.errors import EngineError, RopewayError
from ropeway.dashboard.newest import ALL, EventFilter, Newest, Shown
from ropeway.service.closeup import Closeup, look_closely
from ropeway.service.deaths import Deaths
from ropeway.service.fleet import AtWork, Fleet
from ropeway.service.overview import MOST_COUNTED, Overview, look

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine

#: Seconds between two looks, and how long somebody counts as looking after they asked.
EVERY: Final = 1.0
WATCHED_SECONDS: Final = 10.0

#: A store that takes long to answer is looked at for at most this share of the time.
MOST_OF_THE_TIME: Final = 0.2

#: Where counts stop at the first look.
FIRST_COUNTED: Final = 1_000

#: How long the events of a tenant that nobody looks at are kept, so that whoever comes back sees them go on, and
#: of how many tenants.
KEEP_SECONDS: Final = 300.0
MOST_KEPT: Final = 20

T = TypeVar("T")


class Live:
    """What one process knows of its tenants right now."""

    def __init__(self, engine: Engine, *, every: float = EVERY) -> None:
        self._engine = engine
        self._every = every
        self._watched: dict[str, _Watched] = {}
        #: Of tenants that nobody looks at now: since when, the longest first.
        self._left: dict[str, tuple[float, Newest]] = {}

    async def overview(self, tenant: str) -> Overview:
        """At most a second old, unless the store is away: then it raises what the store said."""
        watched = await self._watch(tenant)
        if watched.error is not None:
            raise watched.error
        assert watched.overview is not None  # noqa: S101 - without an error there is one
        return watched.overview

    async def events(self, tenant: str, where: EventFilter = ALL) -> Shown:
        """The newest events."""
        return (await self._watch(tenant)).newest.shown(where)

    async def at_work(self, tenant: str) -> AtWork:
        """What the workers ran at the newest look at their tenant, or since."""
        watched = await self._watch(tenant)
        return await watched.once("at work", Fleet(self._engine, tenant=tenant).at_work)

    async def job(self, tenant: str, id: UUID) -> Closeup:
        """A job as it was at the newest look at its tenant, or since. Raises NotFound."""
        watched = await self._watch(tenant)
        return await watched.once(id, lambda: look_closely(self._engine, id, tenant))

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
            watched = self._watched[tenant] = _Watched(self._engine, tenant, self._taken_up(tenant))
            watched.task = asyncio.create_task(self._keep_up(tenant, watched), name=f"ropeway dashboard {tenant}")
        watched.asked_at = time.monotonic()
        await watched.first_look.wait()
        return watched

    def _taken_up(self, tenant: str) -> Newest:
        """The events of a tenant as they were left, or the newest of the log."""
        since, newest = self._left.pop(tenant, (0.0, None))
        if newest is None or time.monotonic() - since > KEEP_SECONDS:
            return Newest(self._engine, tenant)
        return newest

    async def _keep_up(self, tenant: str, watched: _Watched) -> None:
        try:
            while time.monotonic() - watched.asked_at < WATCHED_SECONDS or not watched.first_look.is_set():
                began = time.monotonic()
                await watched.look_once()
                took = time.monotonic() - began
                await asyncio.sleep(max(self._every - took, (1 / MOST_OF_THE_TIME - 1) * took))
        finally:
            del self._watched[tenant]
            if len(self._left) >= MOST_KEPT:
                del self._left[next(iter(self._left))]
            self._left[tenant] = (time.monotonic(), watched.newest)
            watched.first_look.set()


class _Watched:
    """One tenant that somebody looks at."""

    def __init__(self, engine: Engine, tenant: str, newest: Newest) -> None:
        self._engine = engine
        self._tenant = tenant
        self._deaths = Deaths(engine, tenant=tenant)
        self.newest = newest
        self.asked_at = time.monotonic()
        self.overview: Overview | None = None
        self.error: RopewayError | None = None
        self.version = 0
        self.first_look = asyncio.Event()
        self.next_look = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()
        #: What was asked for besides since the newest look, and those looks that are under way.
        self._besides: dict[Hashable, asyncio.Task[Any]] = {}
        self._under_way: set[asyncio.Task[Any]] = set()

    def tasks(self) -> list[asyncio.Task[Any]]:
        """All that is under way for it."""
        return [*self._under_way] if self.task is None else [self.task, *self._under_way]

    async def look_once(self) -> None:
        # One at a time: two that go on from one position would both show the same events.
        async with self._looking:
            try:
                # Whoever comes first waits for it: a short count will do until the next look.
                cap = FIRST_COUNTED if self.overview is None else MOST_COUNTED
                overview = await look(self._engine, self._tenant, cap=cap, deaths=self._deaths)
                await self.newest.read(overview.at)
            except EngineError as error:
                self.error = error
            else:
                self.overview, self.error = overview, None
        self.version += 1
        # Also those that are not answered yet: they may have begun before what was just done.
        self._besides = {}
        self.first_look.set()
        self.next_look.set()
        self.next_look = asyncio.Event()

    async def once(self, what: Hashable, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The answer to a question that is asked once between two looks, for all who want to know."""
        task: asyncio.Task[T] | None = self._besides.get(what)
        if task is None:
            task = self._besides[what] = asyncio.create_task(ask())
            self._under_way.add(task)
            task.add_done_callback(self._looked)
        # Shielded, for whoever goes away must not take the answer from the others.
        return await asyncio.shield(task)

    def _looked(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            # Those who waited for it were told, if they still do.
            task.exception()
