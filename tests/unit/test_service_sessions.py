"""Sessions: how long they are good, who ends them, and what a store is asked for them."""

from __future__ import annotations

import pytest

from ropeway.core.access import Scope
from ropeway.core.errors import Unauthenticated, Unavailable
from ropeway.core.limits import FORGET_AFTER
from ropeway.service import sessions
from ropeway.service.access import Access, Principal
from ropeway.service.keys import Keys
from ropeway.service.seals import Seals, Tickets
from ropeway.service.sessions import LOOK_SECONDS, SESSION_SECONDS, Sessions
from tests.unit.service_kit import CountingEngine, Time, counting


def process(engine: CountingEngine, time: Time) -> Sessions:
    """The sessions as one process of the store sees them."""
    seals = Seals(engine)
    access = Access(engine, clock=time.monotonic)
    return Sessions(engine, access, seals, Tickets(engine, seals), clock=time.monotonic)


async def somebody(engine: CountingEngine) -> Principal:
    key, _ = await Keys(engine).create("ada", {Scope.READ})
    return Principal("", key.id, "", frozenset())


async def is_over(process: Sessions, text: str) -> bool:
    try:
        await process.open(text)
    except Unauthenticated:
        return True
    return False


async def test_a_session_is_good_everywhere_until_its_time_is_over() -> None:
    async with counting() as (engine, time):
        who = await somebody(engine)
        here, there = process(engine, time), process(engine, time)
        text = await here.begin(who)
        for one in (here, there):
            session, principal = await one.open(text)
            assert (session.key_id, principal.name) == (who.key_id, "ada")
        time.advance(SESSION_SECONDS - 1)
        assert not await is_over(there, text)
        time.advance(1)
        assert await is_over(there, text)


async def test_a_session_that_was_ended_is_over_here_at_once_and_elsewhere_soon() -> None:
    async with counting() as (engine, time):
        who = await somebody(engine)
        here, there = process(engine, time), process(engine, time)
        text, other = await here.begin(who), await here.begin(who)
        assert not await is_over(there, text)
        session, _ = await here.open(text)
        await here.end(session)
        await here.end(session)
        assert await is_over(here, text)
        time.advance(LOOK_SECONDS)
        assert await is_over(there, text)
        assert await is_over(process(engine, time), text), "also for a process that starts later"
        assert not await is_over(here, other), "another session of the same key goes on"
        time.advance(SESSION_SECONDS - LOOK_SECONDS - 1)
        await engine.prune()
        assert await is_over(process(engine, time), text), "for as long as it would have been good"
        assert SESSION_SECONDS < FORGET_AFTER


async def test_the_store_is_asked_now_and_then_however_many_pages_are_open() -> None:
    async with counting() as (engine, time):
        here = process(engine, time)
        text = await here.begin(await somebody(engine))
        for _ in range(50):
            await here.open(text)
        assert engine.asked["take_tokens"] == 1
        now = engine.asked["now"]
        time.advance(LOOK_SECONDS)
        for _ in range(50):
            await here.open(text)
        assert engine.asked["take_tokens"] == 2
        assert engine.asked["now"] == now + 1
        session, _ = await here.open(text)
        await here.end(session)
        asked = engine.asked["take_tokens"]
        for _ in range(50):
            assert await is_over(here, text)
            time.advance(LOOK_SECONDS)
        assert engine.asked["take_tokens"] == asked, "what was ended stays so"


async def test_a_session_is_not_called_ended_when_the_store_does_not_know() -> None:
    async with counting() as (engine, time):
        here = process(engine, time)
        text = await here.begin(await somebody(engine))
        session, _ = await here.open(text)
        engine.away = Unavailable("away")
        with pytest.raises(Unavailable):
            await here.end(session)
        engine.away = None
        assert not await is_over(here, text)


async def test_no_more_is_remembered_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_KEPT", 3)
    async with counting() as (engine, time):
        here = process(engine, time)
        who = await somebody(engine)
        ended = await here.begin(who)
        await here.end((await here.open(ended))[0])
        for _ in range(10):
            await here.open(await here.begin(who))
        assert len(here._good_until) == 3
        assert await is_over(here, ended), "the store has not forgotten"
