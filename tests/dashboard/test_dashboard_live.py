"""What pages are kept up to date by: one look per second however many look, none when nobody does."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

from ropeway.asgi import Server
from ropeway.core.access import Scope
from ropeway.core.errors import EngineError, NotFound, Unavailable
from ropeway.core.states import State
from ropeway.dashboard import live, newest, ticking
from ropeway.dashboard.live import Live
from ropeway.engines.memory import MemoryEngine
from ropeway.service import fleet, sessions
from ropeway.service.keys import Keys
from ropeway.settings import Settings
from tests.api.routes_kit import Frames, until
from tests.dashboard.dashboard_kit import PAGES, enqueued, house, leased, page, with_worker

TENANT = "default"

#: The calls that are counted, and that fail while the store is away.
WATCHED = (
    "queue_stats",
    "workers",
    "now",
    "tail",
    "newest_events",
    "find",
    "find_key",
    "actions",
    "schedules",
    "log_of",
)


class Watched(MemoryEngine):
    """Counts what it is asked, can be away, and tells its tail late."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()
        self.away: EngineError | None = None
        for name in WATCHED:
            setattr(self, name, self._watch(name, getattr(self, name)))

    def _watch(self, name: str, call: Any) -> Any:
        async def watched(*arguments: Any, **options: Any) -> Any:
            self.asked[name] += 1
            # Others get their turn, as with a store on the network.
            await asyncio.sleep(0)
            if self.away is not None:
                raise self.away
            answer = await call(*arguments, **options)
            await asyncio.sleep(0)
            return answer

        return watched


def loops() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("ropeway dashboard")]


@contextlib.asynccontextmanager
async def looking(every: float = 0.01) -> AsyncIterator[tuple[Watched, Live]]:
    async with Watched() as engine:
        made = Live(engine, every=every)
        try:
            yield engine, made
        finally:
            await made.close()
            assert loops() == []


# ── How often ──


async def test_many_at_once_cause_one_look() -> None:
    async with looking(every=60.0) as (engine, watched):
        seen = await asyncio.gather(*(watched.overview(TENANT) for _ in range(200)))
        assert len({id(one) for one in seen}) == 1
        assert engine.asked["queue_stats"] == 1


async def test_many_pages_at_once_cause_one_look_per_second() -> None:
    engine = Watched()
    async with house("memory://", engine=engine) as there:
        people = [await there.person() for _ in range(5)]
        engine.asked.clear()
        began = time.monotonic()
        paths = ("/", "/ui/queues", "/ui/workers", "/ui/jobs")
        await asyncio.gather(*(person.see(path) for person in people for path in paths for _ in range(3)))
        took = time.monotonic() - began
        assert 1 <= engine.asked["queue_stats"] <= 1 + int(took / live.EVERY), took


async def test_all_who_wait_for_the_next_look_get_the_same_one() -> None:
    async with looking() as (engine, watched):

        async def follow() -> list[int]:
            versions, version = [], -1
            for _ in range(5):
                version = await watched.changed(TENANT, version, within=20)
                versions.append(version)
            return versions

        followed = await asyncio.gather(*(follow() for _ in range(50)))
        assert all(versions == followed[0] for versions in followed)
        assert followed[0] == sorted(set(followed[0]))
        assert engine.asked["queue_stats"] <= followed[0][-1] + 1, "nobody but the loop has looked"


async def test_the_loop_ends_when_nobody_looks_and_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with looking() as (engine, watched):
        await watched.overview(TENANT)
        assert loops() == [f"ropeway dashboard {TENANT}"]
        monkeypatch.setattr(live, "WATCHED_SECONDS", 0.02)
        await until(lambda: not loops(), within=10)
        asked = engine.asked["queue_stats"]
        await enqueued(engine, queue="fresh")
        seen = await watched.overview(TENANT)
        assert seen.queue("fresh") is not None, "what was seen before is not shown again"
        assert engine.asked["queue_stats"] == asked + 1


async def test_a_slow_store_is_not_asked_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that takes long is followed by a pause four times as long: a fifth of the time is spent looking."""
    async with looking() as (engine, watched):
        slept: list[float] = []
        sleep = asyncio.sleep

        async def slow(*_: Any, **__: Any) -> list[Any]:
            await sleep(0.05)
            return []

        async def noted(seconds: float) -> None:
            slept.append(seconds)
            await sleep(seconds)

        monkeypatch.setattr(engine, "queue_stats", slow)
        monkeypatch.setattr(live.asyncio, "sleep", noted)
        await watched.overview(TENANT)
        await until(lambda: [seconds for seconds in slept if seconds >= 4 * 0.05], within=10)


async def test_the_first_look_counts_less_than_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes first waits for it."""
    async with looking(every=60.0) as (engine, watched):
        caps: list[int] = []
        look = engine.queue_stats

        async def noted(*arguments: Any, cap: int, **options: Any) -> Any:
            caps.append(cap)
            return await look(*arguments, cap=cap, **options)

        monkeypatch.setattr(engine, "queue_stats", noted)
        await watched.overview(TENANT)
        await watched.refresh(TENANT)
        assert caps == [live.FIRST_COUNTED, live.MOST_COUNTED]


# ── What is seen ──


async def test_looks_at_once_show_each_event_once() -> None:
    """An action looks at once, perhaps while the loop does."""
    async with looking(every=60.0) as (engine, watched):
        await watched.overview(TENANT)
        ids = [await enqueued(engine) for _ in range(3)]
        await asyncio.gather(*(watched.refresh(TENANT) for _ in range(5)))
        assert [event.job_id for event in (await watched.events(TENANT)).events] == ids[::-1]


async def test_events_go_on_after_a_while_without_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    async with looking() as (engine, watched):
        await watched.events(TENANT)
        first = await enqueued(engine)
        await watched.refresh(TENANT)
        monkeypatch.setattr(live, "WATCHED_SECONDS", 0.0)
        await until(lambda: not loops(), within=10)
        second = await enqueued(engine)
        assert [event.job_id for event in (await watched.events(TENANT)).events] == [second, first]
        await until(lambda: not loops(), within=10)
        monkeypatch.setattr(live, "KEEP_SECONDS", -1.0)
        monkeypatch.setattr(newest, "MOST_KEPT", 1)
        shown = await watched.events(TENANT)
        assert [event.job_id for event in shown.events] == [second], "after a longer while it begins anew"


async def test_the_events_of_a_few_tenants_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_KEPT", 2)
    monkeypatch.setattr(live, "WATCHED_SECONDS", 0.0)
    async with looking() as (_, watched):
        for tenant in ("a", "b", "c"):
            await watched.overview(tenant)
            await until(lambda: not loops(), within=10)
        assert list(watched._left) == ["b", "c"]


# ── What the workers run ──


async def test_many_who_look_at_the_workers_cause_one_look() -> None:
    async with looking(every=60.0) as (engine, watched):
        ids = {await enqueued(engine) for _ in range(2)}
        for _ in ids:
            await leased(engine, worker="w1")
        seen = await asyncio.gather(*(watched.at_work(TENANT) for _ in range(200)))
        assert len({id(one) for one in seen}) == 1
        assert engine.asked["find"] == 1
        assert {job.id for job in seen[0].of("w1")} == ids
        assert seen[0].of("w2") == ()
        await watched.refresh(TENANT)
        await watched.at_work(TENANT)
        assert engine.asked["find"] == 2, "until the next look at their tenant"


async def test_many_pages_of_the_workers_cause_one_look_per_second() -> None:
    engine = Watched()
    async with house("memory://", engine=engine) as there:
        people = [await there.person() for _ in range(5)]
        await with_worker(engine)
        engine.asked.clear()
        began = time.monotonic()
        await asyncio.gather(*(person.see("/ui/workers") for person in people for _ in range(5)))
        took = time.monotonic() - began
        assert 1 <= engine.asked["find"] <= 2 + int(took / live.EVERY), took


async def test_what_runs_beyond_what_is_looked_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "PAGE", 2)
    monkeypatch.setattr(fleet, "MOST_PAGES", 2)
    async with looking(every=60.0) as (engine, watched):
        for _ in range(4):
            await enqueued(engine)
            await leased(engine)
        seen = await watched.at_work(TENANT)
        assert (len(seen.of("w1")), seen.complete) == (4, True)
        await enqueued(engine)
        await leased(engine)
        await watched.refresh(TENANT)
        seen = await watched.at_work(TENANT)
        assert (len(seen.of("w1")), seen.complete) == (4, False)


# ── One job ──


async def test_many_who_look_at_one_job_cause_one_look() -> None:
    async with looking(every=60.0) as (engine, watched):
        id, other = await enqueued(engine), await enqueued(engine)
        seen = await asyncio.gather(*(watched.job(TENANT, id) for _ in range(200)), watched.job(TENANT, other))
        assert len({look.detail.job.id for look in seen}) == 2
        assert engine.asked["log_of"] == 2, "one for each job"
        await watched.job(TENANT, id)
        assert engine.asked["log_of"] == 2, "until the next look at its tenant"
        await engine.cancel([id])
        await watched.refresh(TENANT)
        assert (await watched.job(TENANT, id)).detail.job.state is State.CANCELLED
        assert engine.asked["log_of"] == 3


async def test_many_pages_of_one_job_cause_one_look_per_second() -> None:
    engine = Watched()
    async with house("memory://", engine=engine) as there:
        people = [await there.person() for _ in range(5)]
        id = await enqueued(engine)
        engine.asked.clear()
        began = time.monotonic()
        await asyncio.gather(*(person.see(f"/ui/jobs/{id}") for person in people for _ in range(5)))
        took = time.monotonic() - began
        assert 1 <= engine.asked["log_of"] <= 2 + int(took / live.EVERY), took


async def test_a_job_that_is_not_there_is_told_to_all_and_looked_for_again() -> None:
    async with looking(every=60.0) as (engine, watched):
        seen = await asyncio.gather(*(watched.job(TENANT, uuid4()) for _ in range(2)), return_exceptions=True)
        assert [type(one) for one in seen] == [NotFound, NotFound]
        id = await enqueued(engine)
        with pytest.raises(NotFound):
            await watched.job("other", id)


async def test_whoever_goes_away_does_not_take_the_answer_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with looking(every=60.0) as (engine, watched):
        id = await enqueued(engine)
        await watched.overview(TENANT)
        asked, answer = asyncio.Event(), asyncio.Event()
        events_of = engine.events_of

        async def slow(*arguments: Any, **options: Any) -> Any:
            asked.set()
            await answer.wait()
            return await events_of(*arguments, **options)

        monkeypatch.setattr(engine, "events_of", slow)
        first = asyncio.create_task(watched.job(TENANT, id))
        await asked.wait()
        second = asyncio.create_task(watched.job(TENANT, id))
        first.cancel()
        await asyncio.wait([first])
        answer.set()
        assert (await second).detail.job.id == id


async def test_a_look_at_a_job_that_is_under_way_ends_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async with looking(every=60.0) as (engine, watched):
        id = await enqueued(engine)
        await watched.overview(TENANT)
        asked = asyncio.Event()

        async def never(*_: Any, **__: Any) -> Any:
            asked.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(engine, "events_of", never)
        waiting = asyncio.create_task(watched.job(TENANT, id))
        await asked.wait()
        await watched.close()
        await asyncio.wait([waiting], timeout=5)
        assert waiting.cancelled()


# ── The stream ──


@contextlib.asynccontextmanager
async def served(engine: MemoryEngine, *scopes: Scope) -> AsyncIterator[tuple[Server, httpx.AsyncClient, str]]:
    """A server on a port, somebody who has signed in, and the id of their key."""
    key, token = await Keys(engine).create("a test", frozenset(scopes or (Scope.READ,)))
    async with (
        Server(engine, Settings(url="memory://", port=0)) as server,
        httpx.AsyncClient(base_url=server.url, timeout=30) as http,
    ):
        assert (await http.post("/ui/login", data={"key": token})).status_code == 303
        yield server, http, key.id


async def test_a_stream_ticks_with_each_look() -> None:
    async with MemoryEngine() as engine, served(engine) as (_, http, _), http.stream("GET", "/ui/live") as stream:
        assert stream.status_code == 200
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.headers["cache-control"] == "no-store"
        assert stream.headers["x-accel-buffering"] == "no"
        frames = Frames(stream)
        assert await frames.next() == {"retry": "2000"}
        first, second = await frames.next_event(), await frames.next_event()
        assert (first["event"], second["event"]) == ("tick", "tick")
        assert second["data"] > first["data"]


async def test_a_quiet_stream_tells_the_page_that_it_is_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an event: a page does not get to see comments, and takes silence for a stream that is held back."""
    monkeypatch.setattr(ticking, "STILL_THERE", 0.01)
    async with MemoryEngine() as engine, served(engine) as (_, http, _), http.stream("GET", "/ui/live") as stream:
        frames = Frames(stream)
        tick, still = await frames.next_event(), await frames.next_event()
        assert (tick["event"], still["event"]) == ("tick", "still")
        assert still["data"] == tick["data"], "the same look"


async def test_streams_end_when_the_server_stops() -> None:
    async with MemoryEngine() as engine:
        async with contextlib.AsyncExitStack() as stack:
            _, token = await Keys(engine).create("a test", frozenset({Scope.READ}))
            server = Server(engine, Settings(url="memory://", port=0))
            await server.__aenter__()
            http = await stack.enter_async_context(
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=30)
            )
            await http.post("/ui/login", data={"key": token})
            streams = [await stack.enter_async_context(http.stream("GET", "/ui/live")) for _ in range(3)]
            frames = [Frames(stream) for stream in streams]
            for one in frames:
                await one.next_event()
            began = time.monotonic()
            await server.__aexit__(None, None, None)
            assert time.monotonic() - began < 5, "it did not wait until its patience was over"
            for one in frames:
                # The end of the stream, not a broken connection.
                await one.rest()
        assert loops() == []


@pytest.mark.limit(30)
async def test_a_stream_ends_when_its_key_is_revoked() -> None:
    async with (
        MemoryEngine() as engine,
        served(engine) as (_, http, key),
        http.stream("GET", "/ui/live") as stream,
    ):
        frames = Frames(stream)
        await frames.next_event()
        await Keys(engine).revoke(key)
        async with asyncio.timeout(5):
            await frames.rest()


async def test_a_stream_ends_when_its_session_is_signed_out() -> None:
    async with (
        MemoryEngine() as engine,
        served(engine) as (_, http, _),
        http.stream("GET", "/ui/live") as stream,
    ):
        frames = Frames(stream)
        await frames.next_event()
        mark = page(await http.get("/")).mark
        assert (await http.post("/ui/logout", data={"mark": mark})).status_code == 303
        async with asyncio.timeout(5):
            await frames.rest()


async def test_a_stream_ends_when_the_store_goes_away() -> None:
    async with Watched() as engine, served(engine) as (_, http, _), http.stream("GET", "/ui/live") as stream:
        frames = Frames(stream)
        await frames.next_event()
        engine.away = Unavailable("away")
        async with asyncio.timeout(10):
            await frames.rest()


async def test_beyond_so_many_streams_pages_are_told_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticking, "MOST_STREAMS", 1)
    async with MemoryEngine() as engine, served(engine) as (_, http, _):
        async with http.stream("GET", "/ui/live") as stream:
            await Frames(stream).next_event()
            assert (await http.get("/ui/live")).status_code == 503
            assert (await http.get("/")).status_code == 200

        async def free() -> bool:
            async with http.stream("GET", "/ui/live") as another:
                return another.status_code == 200

        await until(free, within=10)


# ── The store is away ──


async def test_a_store_that_is_away_is_told_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise what was looked up just before is still good for a moment.
    monkeypatch.setattr(sessions, "LOOK_SECONDS", 0.0)
    engine = Watched()
    async with house("memory://", engine=engine) as there:
        person = await there.person()
        await person.see("/")
        engine.away = Unavailable("cannot connect to 10.1.2.3:5432 as ropeway", hint="is it running at 10.1.2.3?")
        for path in PAGES:
            response = await person.get(path)
            assert response.status_code == 503, path
            assert "10.1.2.3" not in response.text, "where the store is, is for the log"
            page(response)
        response = await person.post("/ui/queues/default/pause", mark="any")
        assert response.status_code == 503
        assert (await there.stranger().get("/static/ropeway.css")).status_code == 200
        engine.away = None

        async def back() -> bool:
            return (await person.get("/")).status_code == 200

        await until(back, within=10)
        for path in PAGES:
            await person.see(path)


async def test_an_overview_of_a_store_that_is_away_is_not_an_old_one() -> None:
    async with looking() as (engine, watched):
        await watched.overview(TENANT)
        engine.away = Unavailable("away")

        async def refused() -> bool:
            try:
                await watched.overview(TENANT)
            except Unavailable:
                return True
            return False

        await until(refused, within=10)
        engine.away = None

        async def well() -> bool:
            return not await refused()

        await until(well, within=10)
