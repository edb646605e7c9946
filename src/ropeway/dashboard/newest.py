"""The newest events of a tenant: read on from where the look before stopped, for all who look.

What each filter takes is kept apart, so that a rare event is not pushed out by the others. The first look takes
the last events of the log, so that there is something to see of a system in which nothing happens just now.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from ropeway.core.errors import PositionExpired
from ropeway.core.events import Event
from ropeway.service.events import Events

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine

#: Events of one page of the log, and pages that a look reads while somebody looks at events; otherwise one.
PAGE: Final = 500
MOST_PAGES: Final = 8

#: Events that are kept for whoever comes, and for each filter: as many as are shown.
MOST_KEPT: Final = 500
MOST_SHOWN: Final = 200

#: Filters that are kept apart at once; the one that was not asked for longest makes room.
MOST_FILTERS: Final = 20

#: Since when nobody has asked for a filter that is dropped.
ASKED_WITHIN: Final = timedelta(seconds=10)

#: What was not shown is told for so long.
TOLD_FOR: Final = timedelta(minutes=1)


class EventFilter(msgspec.Struct, frozen=True):
    """Which events; "" is any."""

    event: str = ""
    queue: str = ""
    type: str = ""

    def takes(self, event: Event) -> bool:
        return (
            self.event in ("", event.event.value)
            and self.queue in ("", event.queue)
            and self.type in ("", event.type)
        )


ALL: Final = EventFilter()


class Shown(msgspec.Struct, frozen=True):
    """The newest events of a filter, the newest first, chosen from `looked_at`.

    `missed` of the last minute were more than can be shown between two looks; `skipped`: some of that minute were
    not even read, so that nobody knows how many they were.
    """

    events: Sequence[Event]
    looked_at: int
    missed: int = 0
    skipped: bool = False


class Newest:
    """The tail of one tenant; times are the engine's."""

    def __init__(self, engine: Engine, tenant: str) -> None:
        self._log = Events(engine, tenant=tenant)
        self._position: str | None = None
        self._kept: deque[Event] = deque(maxlen=MOST_KEPT)
        self._chosen: dict[EventFilter, _Chosen] = {}
        self._skipped_at: datetime | None = None
        self._at: datetime | None = None
        # Two that go on from one position would both show the same events.
        self._reading = asyncio.Lock()

    def shown(self, where: EventFilter) -> Shown:
        """As of the newest read; from now on what it takes is kept apart."""
        chosen = self._chosen.pop(where, None) or _Chosen(where, self._kept)
        if len(self._chosen) >= MOST_FILTERS:
            del self._chosen[next(iter(self._chosen))]
        # At the end: the first one is the one that was not asked for longest.
        self._chosen[where] = chosen
        chosen.asked_at = self._at
        skipped = self._skipped_at is not None and self._at is not None and self._at - self._skipped_at < TOLD_FOR
        return Shown(tuple(chosen.events), chosen.looked_at, chosen.missed, skipped)

    async def read(self, at: datetime) -> None:
        """Read on, to the end of the log if that is not far; `at` is now."""
        async with self._reading:
            await self._read(at)

    async def _read(self, at: datetime) -> None:
        self._at = at
        came: list[Event] = []
        try:
            if self._position is None:
                page = await self._log.newest(limit=MOST_KEPT)
                self._position = page.position
                came += page.events
            elif not await self._read_on(came):
                # It runs faster than anybody reads, or was pruned before it was read: go on at its end.
                self._position = await self._log.now()
                self._skipped_at = at
        finally:
            # Also when the store went away between two pages: what was read is not read again.
            self._add(came, at)

    def _add(self, came: Sequence[Event], at: datetime) -> None:
        self._kept.extendleft(came)
        for chosen in self._chosen.values():
            chosen.add(came, at)
        # Only now: after a pause nobody has asked lately, and what came meanwhile is read for those who come back.
        edge = at - ASKED_WITHIN
        self._chosen = {where: one for where, one in self._chosen.items() if one.asked_since(edge)}

    async def _read_on(self, came: list[Event]) -> bool:
        """Whether the end of the log was reached."""
        assert self._position is not None  # noqa: S101 - there is one since the first read
        for _ in range(MOST_PAGES if self._chosen else 1):
            try:
                page = await self._log.page(self._position, limit=PAGE)
            except PositionExpired:
                return False
            self._position = page.position
            came += page.events
            if len(page.events) < PAGE and page.whole:
                return True
        return False


class _Chosen:
    """What one filter takes."""

    def __init__(self, where: EventFilter, kept: Sequence[Event]) -> None:
        self._where = where
        self.events: deque[Event] = deque(islice(filter(where.takes, kept), MOST_SHOWN), maxlen=MOST_SHOWN)
        self.looked_at = len(kept)
        self.asked_at: datetime | None = None
        self._missed: deque[tuple[datetime, int]] = deque()

    def add(self, came: Sequence[Event], at: datetime) -> None:
        found = [event for event in came if self._where.takes(event)]
        self.events.extendleft(found)
        self.looked_at += len(came)
        if len(found) > MOST_SHOWN:
            self._missed.append((at, len(found) - MOST_SHOWN))
        while self._missed and at - self._missed[0][0] >= TOLD_FOR:
            self._missed.popleft()

    @property
    def missed(self) -> int:
        return sum(number for _, number in self._missed)

    def asked_since(self, edge: datetime) -> bool:
        return self.asked_at is not None and self.asked_at > edge
