"""Events as they happen, for any number of listeners: one loop per process reads the log and hands it round.

A listener is attached at the end of a page of that loop, and then reads what there was before on its own; what it
gets twice it drops by (job, seq). A listener that does not keep up is cut off instead of being remembered without
bound: it comes back with the id of the last event it has seen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from ropeway.api.listeners import Listener, News
from ropeway.core.errors import EngineError, PositionExpired, RopewayError, Unauthenticated, Unavailable

if TYPE_CHECKING:
    from ropeway.core.events import Event, EventPage
    from ropeway.engines.protocol import Engine
    from ropeway.service.access import Principal

log = logging.getLogger("ropeway.api.streams")

#: Events that one read takes, and seconds between two reads when nothing is new.
PAGE = 500
PAUSE = 0.25

#: Seconds between two looks at the progress of jobs that are watched, and how many one question asks for.
LOOK_SECONDS = 0.5
_JOBS_AT_ONCE = 500

#: Seconds that a new listener waits for the store.
ATTACH_SECONDS = 5.0

#: Seconds between two looks whether the keys of all open streams are still good.
CONFIRM_SECONDS = 2.0

_LONGEST_WAIT = 5.0

K = TypeVar("K")

Confirm = Callable[["Principal"], Awaitable[object]]


class Streams:
    """The listeners of one process and the loop that serves them."""

    def __init__(
        self,
        engine: Engine,
        *,
        pause: float = PAUSE,
        look_seconds: float = LOOK_SECONDS,
        confirm: Confirm | None = None,
        confirm_seconds: float = CONFIRM_SECONDS,
    ) -> None:
        self._engine = engine
        self._confirm = confirm
        self._confirm_seconds = confirm_seconds
        #: All streams that have a principal, also those that still read what there was before.
        self._open: set[Listener] = set()
        self._confirmer: asyncio.Task[None] | None = None
        self._pause = pause
        self._look_seconds = look_seconds
        self._of_jobs: dict[tuple[str, UUID], set[Listener]] = {}
        self._of_tenants: dict[str, set[Listener]] = {}
        self._coming: list[tuple[Listener, asyncio.Future[None]]] = []
        self._poked = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._looker: asyncio.Task[None] | None = None

    @property
    def listening(self) -> int:
        """How many streams are served now."""
        return sum(map(len, self._of_jobs.values())) + sum(map(len, self._of_tenants.values()))

    def poke(self) -> None:
        """Something was written by this process: whoever listens need not wait for the next read."""
        if self._of_jobs or self._of_tenants:
            self._poked.set()

    def open(self, listener: Listener) -> None:
        """A stream begins: from here on it is cut off when its key is revoked. Must be followed by `detach`."""
        if listener.principal is not None and self._confirm is not None:
            self._open.add(listener)
            if self._confirmer is None or self._confirmer.done():
                self._confirmer = asyncio.create_task(self._confirm_all(self._confirm))

    async def attach(self, listener: Listener) -> None:
        """From here on the listener gets all that is new, including whatever becomes visible meanwhile.

        Raises Unavailable. Must be followed by `detach`.
        """
        attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._coming.append((listener, attached))
        self._poked.set()
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read())
        try:
            async with asyncio.timeout(ATTACH_SECONDS):
                await attached
        except TimeoutError:
            self.detach(listener)
            raise Unavailable("the event log cannot be read just now", hint="try again in a moment") from None
        except BaseException:
            self.detach(listener)
            raise

    def detach(self, listener: Listener) -> None:
        self._open.discard(listener)
        self._coming = [(other, future) for other, future in self._coming if other is not listener]
        if listener.job_id is not None:
            _discard(self._of_jobs, (listener.tenant, listener.job_id), listener)
        else:
            _discard(self._of_tenants, listener.tenant, listener)

    async def close(self) -> None:
        """Cut everybody off and end the loops."""
        for listener in self._all():
            listener.cut_off()
        tasks = [task for task in (self._reader, self._looker, self._confirmer) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # ── Keys ──

    async def _confirm_all(self, confirm: Confirm) -> None:
        """Look at the keys of all streams, each key once."""
        while self._open:
            await asyncio.sleep(self._confirm_seconds)
            by_key: dict[str, tuple[Principal, list[Listener]]] = {}
            for listener in self._open:
                if (who := listener.principal) is not None:
                    by_key.setdefault(who.key_id, (who, []))[1].append(listener)
            for who, listeners in by_key.values():
                try:
                    await confirm(who)
                except Unauthenticated:
                    for listener in listeners:
                        listener.cut_off()
                except RopewayError as error:
                    # While the store is away there is nothing to tell either.
                    log.debug("the keys of streams cannot be looked at", extra={"error": error.code})

    # ── The log ──

    async def _read(self) -> None:
        """Read the log as long as somebody listens."""
        position: str | None = None
        wait = self._pause
        while self._coming or self._of_jobs or self._of_tenants:
            # Only who came before the read began is attached at its end: what it does not see by then comes later.
            coming, self._coming = self._coming, []
            self._poked.clear()
            try:
                if position is None:
                    position = await self._engine.tail_position()
                page = await self._engine.tail(position, limit=PAGE)
            except PositionExpired:
                # The store was away for longer than it keeps events: nobody's place is good any more.
                self._cut_all()
                self._coming = [*coming, *self._coming]
                position = None
                continue
            except EngineError as error:
                _fail(coming, error)
                log.debug("the event log cannot be read", extra={"error": error.code})
                wait = min(wait * 2, _LONGEST_WAIT)
                await asyncio.sleep(wait)
                continue
            wait = self._pause
            position = page.position
            self._hand_round(page)
            if len(page.events) >= PAGE:
                self._coming = [*coming, *self._coming]
                continue
            self._settle_in(coming, position)
            if not self._poked.is_set():
                await self._rest(wait)

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._poked.wait()
        except TimeoutError:
            return

    def _settle_in(self, coming: Iterable[tuple[Listener, asyncio.Future[None]]], position: str) -> None:
        for listener, attached in coming:
            if attached.done():
                continue
            listener.position = position
            if listener.job_id is not None:
                self._of_jobs.setdefault((listener.tenant, listener.job_id), set()).add(listener)
                if self._looker is None or self._looker.done():
                    self._looker = asyncio.create_task(self._look())
            else:
                self._of_tenants.setdefault(listener.tenant, set()).add(listener)
            attached.set_result(None)

    def _hand_round(self, page: EventPage) -> None:
        by_tenant: dict[str, list[Event]] = {}
        for event in page.events:
            if event.tenant in self._of_tenants:
                by_tenant.setdefault(event.tenant, []).append(event)
            for listener in self._of_jobs.get((event.tenant, event.job_id), ()):
                listener.give(News([event], page.position))
        for tenant, listeners in self._of_tenants.items():
            events = by_tenant.get(tenant, [])
            for listener in listeners:
                listener.position = page.position
                wanted = events if listener.wants is None else [one for one in events if listener.wants(one)]
                if wanted:
                    listener.give(News(wanted, page.position))

    def _cut_all(self) -> None:
        for listener in self._all():
            listener.cut_off()

    def _all(self) -> list[Listener]:
        return [listener for group in (*self._of_jobs.values(), *self._of_tenants.values()) for listener in group]

    # ── Progress and logs, which are no events ──

    async def _look(self) -> None:
        """Look at the jobs that run and are watched, all of them in a few questions."""
        while self._of_jobs:
            await asyncio.sleep(self._look_seconds)
            watched: dict[str, list[UUID]] = {}
            for (tenant, id), listeners in self._of_jobs.items():
                if any(listener.running for listener in listeners):
                    watched.setdefault(tenant, []).append(id)
            for tenant, ids in watched.items():
                for start in range(0, len(ids), _JOBS_AT_ONCE):
                    await self._look_at(tenant, ids[start : start + _JOBS_AT_ONCE])

    async def _look_at(self, tenant: str, ids: list[UUID]) -> None:
        try:
            jobs = await self._engine.get(ids, tenant=tenant)
        except RopewayError as error:
            log.debug("watched jobs cannot be looked at", extra={"error": error.code})
            return
        for id, job in zip(ids, jobs, strict=True):
            if job is not None:
                for listener in self._of_jobs.get((tenant, id), ()):
                    listener.give(News([], "", job))


def _discard(groups: dict[K, set[Listener]], key: K, listener: Listener) -> None:
    group = groups.get(key)
    if group is not None:
        group.discard(listener)
        if not group:
            del groups[key]


def _fail(coming: Iterable[tuple[Listener, asyncio.Future[None]]], error: EngineError) -> None:
    for _, attached in coming:
        if not attached.done():
            attached.set_exception(error)
