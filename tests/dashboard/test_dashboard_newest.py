"""The tail of events: nothing is lost in silence, filters keep what they take, and it stays bounded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from ropeway.core.errors import PositionExpired, Unavailable
from ropeway.core.events import EventPage
from ropeway.dashboard import newest
from ropeway.dashboard.newest import ALL, EventFilter, Newest, Shown
from ropeway.engines.memory import MemoryEngine
from tests.dashboard.dashboard_kit import enqueued

RARE = EventFilter(type="rare")


class Reading:
    """A tail that is read when it is told to; seconds pass as it is told."""

    def __init__(self, engine: MemoryEngine) -> None:
        self.engine = engine
        self.tail = Newest(engine, "default")
        self.pages = 0

    async def on(self, seconds: float = 1.0) -> None:
        self._now += timedelta(seconds=seconds)
        await self.tail.read(self._now)

    async def begin(self) -> None:
        self._now = await self.engine.now()
        await self.tail.read(self._now)

    async def make(self, number: int, type: str = "common") -> list[UUID]:
        return [await enqueued(self.engine, type) for _ in range(number)]


@asynccontextmanager
async def reading(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Reading]:
    async with MemoryEngine() as engine:
        made = Reading(engine)
        tail = engine.tail

        async def counted(*arguments: Any, **options: Any) -> EventPage:
            made.pages += 1
            return await tail(*arguments, **options)

        monkeypatch.setattr(engine, "tail", counted)
        await made.begin()
        yield made


def jobs(shown: Shown) -> list[UUID]:
    return [event.job_id for event in shown.events]


async def test_it_begins_with_the_last_events_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "MOST_KEPT", 3)
    async with MemoryEngine() as engine:
        ids = [await enqueued(engine) for _ in range(4)]
        tail = Newest(engine, "default")
        await tail.read(await engine.now())
        shown = tail.shown(ALL)
        assert (jobs(shown), shown.looked_at, shown.missed, shown.skipped) == (ids[:0:-1], 3, 0, False)
        ids.append(await enqueued(engine))
        await tail.read(await engine.now())
        assert jobs(tail.shown(ALL)) == ids[:0:-1], "it goes on from there"


async def test_more_than_can_be_shown_between_two_looks_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "MOST_SHOWN", 3)
    async with reading(monkeypatch) as log:
        log.tail.shown(ALL)
        ids = await log.make(3)
        await log.on()
        assert log.tail.shown(ALL).missed == 0
        ids = await log.make(5)
        await log.on()
        shown = log.tail.shown(ALL)
        assert (jobs(shown), shown.missed, shown.skipped) == (ids[:1:-1], 2, False)
        (last,) = await log.make(1)
        await log.on()
        shown = log.tail.shown(ALL)
        assert (jobs(shown), shown.missed) == ([last, ids[4], ids[3]], 2)
        for _ in range(7):
            await log.on(9.0)
            shown = log.tail.shown(ALL)
        assert shown.missed == 0, "that was long ago"


async def test_a_look_reads_several_pages_for_those_who_look_at_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "PAGE", 2)
    async with reading(monkeypatch) as log:
        log.tail.shown(RARE)
        (rare,) = await log.make(1, "rare")
        await log.make(6)
        (second,) = await log.make(1, "rare")
        await log.on()
        shown = log.tail.shown(RARE)
        assert (jobs(shown), shown.looked_at, shown.skipped) == ([second, rare], 8, False)


async def test_it_goes_on_at_the_end_of_a_log_that_is_too_fast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(newest, "PAGE", 2)
    monkeypatch.setattr(newest, "MOST_PAGES", 2)
    async with reading(monkeypatch) as log:
        log.tail.shown(ALL)
        ids = await log.make(6)
        await log.on()
        shown = log.tail.shown(ALL)
        assert (jobs(shown), shown.skipped) == (ids[3::-1], True)
        (last,) = await log.make(1)
        await log.on()
        assert jobs(log.tail.shown(ALL)) == [last, *ids[3::-1]]
        for _ in range(7):
            await log.on(9.0)
            shown = log.tail.shown(ALL)
        assert not shown.skipped


async def test_a_log_that_was_pruned_is_read_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with reading(monkeypatch) as log:

        async def pruned(*_: Any, **__: Any) -> EventPage:
            raise PositionExpired("gone")

        with monkeypatch.context() as patched:
            patched.setattr(log.engine, "tail", pruned)
            await log.make(1)
            await log.on()
        ids = await log.make(1)
        await log.on()
        shown = log.tail.shown(ALL)
        assert (jobs(shown), shown.skipped) == (ids, True)


async def test_what_was_read_before_the_store_went_away_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "PAGE", 2)
    async with reading(monkeypatch) as log:
        log.tail.shown(ALL)
        ids = await log.make(3)
        tail = log.engine.tail

        async def away(*arguments: Any, **options: Any) -> EventPage:
            if log.pages == 1:
                raise Unavailable("away")
            return await tail(*arguments, **options)

        with monkeypatch.context() as patched:
            patched.setattr(log.engine, "tail", away)
            with pytest.raises(Unavailable):
                await log.on()
        assert jobs(log.tail.shown(ALL)) == ids[1::-1]
        await log.on()
        assert jobs(log.tail.shown(ALL)) == ids[::-1]


# ── Filters ──


async def test_a_rare_event_is_not_pushed_out_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "MOST_SHOWN", 2)
    monkeypatch.setattr(newest, "MOST_KEPT", 2)
    async with reading(monkeypatch) as log:
        log.tail.shown(RARE)
        log.tail.shown(ALL)
        rare = await log.make(1, "rare")
        await log.make(5)
        await log.on()
        await log.make(5)
        await log.on()
        shown = log.tail.shown(RARE)
        assert (jobs(shown), shown.looked_at, shown.missed) == (rare, 11, 0)
        assert {event.type for event in log.tail.shown(ALL).events} == {"common"}


@pytest.mark.parametrize(
    ("where", "number"),
    [
        (ALL, 3),
        (RARE, 1),
        (EventFilter(type="nothing"), 0),
        (EventFilter(queue="default"), 3),
        (EventFilter(queue="other"), 0),
        (EventFilter(event="job.enqueued"), 3),
        (EventFilter(event="job.dlq"), 0),
        (EventFilter(event="job.enqueued", queue="default", type="common"), 2),
    ],
)
async def test_a_filter_begins_with_what_is_kept(
    monkeypatch: pytest.MonkeyPatch, where: EventFilter, number: int
) -> None:
    async with reading(monkeypatch) as log:
        await log.make(2)
        await log.make(1, "rare")
        await log.on()
        shown = log.tail.shown(where)
        assert (len(shown.events), shown.looked_at) == (number, 3)


async def test_the_filter_that_was_not_asked_for_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "MOST_FILTERS", 2)
    monkeypatch.setattr(newest, "MOST_KEPT", 1)
    async with reading(monkeypatch) as log:
        for where in (RARE, ALL):
            log.tail.shown(where)
        rare = await log.make(1, "rare")
        await log.make(1)
        await log.on()
        assert jobs(log.tail.shown(RARE)) == rare
        log.tail.shown(EventFilter(queue="default"))
        assert jobs(log.tail.shown(RARE)) == rare, "it was asked for since"
        assert len(jobs(log.tail.shown(ALL))) == 1, "it began anew, with what is kept"


async def test_for_those_who_do_not_look_at_events_one_page_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "PAGE", 2)
    async with reading(monkeypatch) as log:
        await log.make(6)
        await log.on()
        assert log.pages == 1
        log.tail.shown(ALL)
        await log.make(6)
        await log.on()
        assert log.pages == 5, "three that are full, and the end"
        await log.on(11.0)
        await log.make(6)
        await log.on()
        assert log.pages == 7, "nobody has asked for a while"
