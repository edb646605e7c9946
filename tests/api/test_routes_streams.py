"""Streams: past, live, resumed, cut; the tail and its pages; tickets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ropeway.api import listeners, sse
from ropeway.api.listeners import Listener, News
from ropeway.core.access import Scope
from ropeway.core.events import Event
from ropeway.core.job import NewJob
from ropeway.testing.clock import MovableClock
from tests.api.routes_kit import (
    Caller,
    Frames,
    Stage,
    on_every_engine,
    on_memory,
    served_from_every_engine,
    served_from_memory,
    until,
)

JSON = "application/json"


def streaming(caller: Caller, path: str, **headers: str) -> Any:
    sent = {**caller._headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return caller.http.stream("GET", path, headers=sent)


async def run(caller: Caller, verb: str = "ack", **body: Any) -> str:
    id, token = await caller.leased()
    await caller.post(f"/v1/jobs/{id}/{verb}", {**token, **body})
    return id


# ── One job ──


@served_from_every_engine
async def test_a_job_is_told_from_its_beginning_to_its_end(stage: Stage) -> None:
    caller = await stage.caller()
    made = await caller.job()
    async with streaming(caller, f"/v1/jobs/{made['id']}/stream") as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        frames = Frames(answer)
        first = await frames.next_event()
        assert (first["event"], first["id"], first["data"]["seq"]) == ("job.enqueued", "1", 1)
        id, token = await caller.leased()
        started = await frames.next_event()
        assert (started["event"], started["id"]) == ("job.started", "2")
        note = {"done": 1, "total": 2, "logs": [{"message": "half way"}]}
        await caller.post(f"/v1/jobs/{id}/progress", {**token, **note})
        told = {frame["event"]: frame for frame in (await frames.next_event(), await frames.next_event())}
        assert told["job.log"]["data"]["message"] == "half way"
        assert told["job.progress"]["data"]["done"] == 1
        assert all("id" not in frame for frame in told.values())
        await caller.post(f"/v1/jobs/{id}/progress", {**token, "logs": [{"message": "last words"}]})
        await caller.post(f"/v1/jobs/{id}/ack", token)
        rest = await frames.rest()
        assert [frame["event"] for frame in rest] == ["job.log", "job.completed"]
        assert rest[0]["data"]["message"] == "last words"
        assert rest[1]["id"] == "3"
    await until(lambda: stage.api.deps.streams.listening == 0)


@on_every_engine
async def test_an_ended_job_is_told_and_closed(stage: Stage) -> None:
    caller = await stage.caller()
    await caller.job()
    id = await run(caller)
    whole = await caller.get(f"/v1/runs/{id}/stream")
    assert [line for line in whole.text.splitlines() if line.startswith("id:")] == ["id: 1", "id: 2", "id: 3"]
    after = await caller.get(f"/v1/jobs/{id}/stream", Last_Event_ID="2")
    assert [line for line in after.text.splitlines() if line.startswith("id:")] == ["id: 3"]
    # Nothing is left to tell: a browser need not come back.
    assert (await caller.get(f"/v1/jobs/{id}/stream", Last_Event_ID="3")).status_code == 204


@served_from_every_engine
async def test_a_stream_is_resumed_without_a_gap(stage: Stage) -> None:
    caller = await stage.caller()
    made = await caller.job(max_attempts=25, retry={"base": 0, "cap": 0})
    seen: list[str] = []
    for round in range(4):
        headers = {"Last_Event_ID": seen[-1]} if seen else {}
        async with streaming(caller, f"/v1/jobs/{made['id']}/stream", **headers) as answer:
            frames = Frames(answer)
            await run(caller, "nack" if round < 3 else "ack", **({"error": "no"} if round < 3 else {}))
            seen.append((await frames.next_event())["id"])
            if round == 3:
                seen += [frame["id"] for frame in await frames.rest()]
        # What happens while nobody listens is told later.
    assert seen == [str(seq) for seq in range(1, len(seen) + 1)]
    events = (await caller.get(f"/v1/jobs/{made['id']}/events")).json()["events"]
    assert len(events) == len(seen)


@served_from_memory
async def test_what_is_read_and_heard_is_told_once(stage: Stage) -> None:
    caller = await stage.caller()
    made = await caller.job()
    events_of = stage.engine.events_of
    token: dict[str, Any] = {}

    async def late(*args: Any, **kwargs: Any) -> list[Event]:
        if not token:
            # The listener is attached already: it will hear of this, and find it among the past events too.
            token.update((await caller.leased())[1])
        return await events_of(*args, **kwargs)

    stage.engine.events_of = late  # type: ignore[method-assign]
    async with streaming(caller, f"/v1/jobs/{made['id']}/stream") as answer:
        frames = Frames(answer)
        seen = [(await frames.next_event())["id"], (await frames.next_event())["id"]]
        await caller.post(f"/v1/jobs/{made['id']}/ack", token)
        seen += [frame["id"] for frame in await frames.rest()]
    assert seen == ["1", "2", "3"]


@on_memory
async def test_what_a_job_s_stream_refuses(stage: Stage) -> None:
    caller = await stage.caller()
    id = (await caller.job())["id"]
    other = await stage.caller(tenant="other")
    missing = "01a1dfde-0000-7000-8000-000000000000"
    unknown = await caller.get(f"/v1/jobs/{missing}/stream", X_Request_Id="r")
    foreign = await other.get(f"/v1/jobs/{id}/stream", X_Request_Id="r")
    assert unknown.status_code == 404
    assert unknown.content == foreign.content
    assert (await caller.get("/v1/jobs/nope/stream")).json()["code"] == "invalid_id"
    for last in ("x", "-1", "9" * 30):
        answer = await caller.get(f"/v1/jobs/{id}/stream", Last_Event_ID=last)
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_cursor")
    worker = await stage.caller(Scope.WORK)
    assert (await worker.get(f"/v1/jobs/{id}/stream")).status_code == 403
    assert stage.api.deps.streams.listening == 0


@served_from_memory
async def test_a_quiet_stream_says_that_it_is_there(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "COMMENT_SECONDS", 0.02)
    caller = await stage.caller()
    made = await caller.job(delay=600)
    async with streaming(caller, f"/v1/jobs/{made['id']}/stream") as answer:
        frames = Frames(answer)
        await frames.next_event()
        assert "comment" in await frames.next()
    async with streaming(caller, "/v1/events") as answer:
        frames = Frames(answer)
        # In the tail the comment also says where to go on from.
        assert {"comment", "id"} <= set(await frames.next())


def test_a_listener_that_does_not_keep_up_is_cut_off() -> None:
    listener = Listener("default")
    event: Any = Event  # what it is does not matter here
    for _ in range(listeners.MOST_BEHIND):
        listener.give(News([event], "1"))
    assert not listener.cut
    listener.give(News([event], "1"))
    assert listener.cut


# ── The tail ──


@on_every_engine
async def test_pages_of_the_tail_go_on_where_the_last_one_ended(stage: Stage) -> None:
    caller, other = await stage.caller(), await stage.caller(tenant="other")
    for n in range(5):
        await caller.job(f"t{n}")
        await other.job("foreign")
    first = (await caller.get("/v1/events?limit=3", Accept=JSON)).json()
    second = (await caller.get(f"/v1/events?limit=3&after={first['next_after']}", Accept=JSON)).json()
    types = [event["type"] for event in first["events"] + second["events"]]
    assert types == ["t0", "t1", "t2", "t3", "t4"]
    third = (await caller.get(f"/v1/events?after={second['next_after']}", Accept=JSON)).json()
    assert third["events"] == []
    await caller.job("t5")
    (event,) = (await caller.get(f"/v1/events?after={third['next_after']}", Accept=JSON)).json()["events"]
    assert event["type"] == "t5"
    end = (await caller.get("/v1/events?after=end", Accept=JSON)).json()
    assert end["events"] == []
    # A place in one tenant's log is none in another's.
    stolen = await other.get(f"/v1/events?after={first['next_after']}", Accept=JSON)
    assert (stolen.status_code, stolen.json()["code"]) == (400, "bad_cursor")


@on_every_engine
async def test_the_last_events_are_a_page_to_follow_the_tail_from(stage: Stage) -> None:
    caller, other = await stage.caller(), await stage.caller(tenant="other")
    for n in range(3):
        await caller.job(f"t{n}")
    await other.job("foreign")
    page = (await caller.get("/v1/events?last=3", Accept=JSON)).json()
    assert [event["type"] for event in page["events"]] == ["t1", "t2"], "those of others count"
    wanted = (await caller.get("/v1/events?last=500&type=t0", Accept=JSON)).json()
    assert [event["type"] for event in wanted["events"]] == ["t0"]
    await caller.job("t3")
    later = (await caller.get(f"/v1/events?after={page['next_after']}", Accept=JSON)).json()
    assert [event["type"] for event in later["events"]] == ["t3"]


@on_memory
async def test_the_last_events_are_asked_for_alone(stage: Stage) -> None:
    caller = await stage.caller()
    for query in ("last=0", "last=501", "last=x"):
        assert (await caller.get(f"/v1/events?{query}", Accept=JSON)).status_code == 422
    both = await caller.get("/v1/events?last=1&after=end", Accept=JSON)
    assert (both.status_code, both.json()["code"]) == (422, "conflicting_fields")
    stream = await caller.get("/v1/events?last=1")
    assert stream.status_code == 422
    assert "not for a stream" in stream.text


@on_memory
async def test_a_page_has_only_what_is_wanted(stage: Stage) -> None:
    caller = await stage.caller()
    for n in range(300):
        await caller.job("noise" if n % 100 else "signal", queue="mail" if n < 150 else "post")
    found = (await caller.get("/v1/events?type=signal&limit=10", Accept=JSON)).json()
    events = found["events"]
    while len(events) < 3:
        found = (
            await caller.get(f"/v1/events?type=signal&limit=10&after={found['next_after']}", Accept=JSON)
        ).json()
        events += found["events"]
    assert [event["queue"] for event in events] == ["mail", "mail", "post"]
    assert (await caller.get("/v1/events?event=job.started", Accept=JSON)).json()["events"] == []
    for query in ("event=nope", "queue=a%20b", "limit=0", "limit=501", "x=1"):
        assert (await caller.get(f"/v1/events?{query}", Accept=JSON)).status_code == 422
    for after in ("x", "AAAA", "%00"):
        answer = await caller.get(f"/v1/events?after={after}", Accept=JSON)
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_cursor")


@served_from_every_engine
async def test_the_tail_is_told_live_and_resumed_without_a_gap(stage: Stage) -> None:
    caller, other = await stage.caller(), await stage.caller(tenant="other")
    await caller.job("before")
    wanted = [f"t{n}" for n in range(40)]
    seen: list[str] = []
    place = ""
    for start in range(0, 40, 10):
        async with streaming(caller, "/v1/events", **({"Last_Event_ID": place} if place else {})) as answer:
            frames = Frames(answer)
            if not place:
                place = (await frames.next())["id"]
            for type in wanted[start : start + 5]:
                await other.job("foreign")
                await caller.job(type)
            while seen[-1:] != wanted[start + 4 : start + 5]:
                frame = await frames.next_event()
                place = frame.get("id", place)
                if frame["data"]["type"] not in seen:
                    seen.append(frame["data"]["type"])
        for type in wanted[start + 5 : start + 10]:
            await caller.job(type)
    rest = (await caller.get(f"/v1/events?after={place}", Accept=JSON)).json()["events"]
    seen += [event["type"] for event in rest if event["type"] not in seen]
    assert seen == wanted


@served_from_memory
async def test_the_tail_from_the_start_with_a_filter(stage: Stage) -> None:
    caller = await stage.caller()
    for n in range(1_100):
        await caller.engine.enqueue([NewJob(type=f"t{n % 3}")])
    async with streaming(caller, "/v1/events?after=start&type=t1") as answer:
        frames = Frames(answer)
        found = [await frames.next_event() for _ in range(367)]
        assert {frame["data"]["type"] for frame in found} == {"t1"}
        assert len({frame["data"]["job_id"] for frame in found}) == 367
        made = await caller.job("t1")
        assert (await frames.next_event())["data"]["job_id"] == made["id"]


@served_from_memory
async def test_many_listeners_share_one_reader(stage: Stage) -> None:
    caller = await stage.caller()
    reads = 0
    tail = stage.engine.tail

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal reads
        reads += 1
        return await tail(*args, **kwargs)

    stage.engine.tail = counted  # type: ignore[method-assign]

    async def listen(opened: asyncio.Semaphore) -> str:
        async with streaming(caller, "/v1/events") as answer:
            frames = Frames(answer)
            await frames.next()
            opened.release()
            return (await frames.next_event())["data"]["job_id"]

    opened = asyncio.Semaphore(0)
    listeners = [asyncio.create_task(listen(opened)) for _ in range(50)]
    for _ in listeners:
        await opened.acquire()
    before = reads
    made = await caller.job()
    assert set(await asyncio.gather(*listeners)) == {made["id"]}
    assert reads - before < 25
    await until(lambda: stage.api.deps.streams.listening == 0)


@served_from_memory
async def test_streams_end_when_the_server_stops(stage: Stage) -> None:
    caller = await stage.caller()
    async with streaming(caller, "/v1/events") as answer:
        frames = Frames(answer)
        await frames.next()
        stage.api.end_waiting()
        assert await frames.rest() == []


# ── Tickets ──


@served_from_every_engine
async def test_a_ticket_opens_one_stream_once(stage: Stage) -> None:
    caller = await stage.caller(Scope.READ, Scope.ENQUEUE)
    nobody = stage.stranger()
    made = await caller.job()
    given = (await caller.post("/v1/streams/ticket")).json()
    assert given["expires_in"] == 60
    path = f"/v1/jobs/{made['id']}/stream?ticket={given['ticket']}"
    async with streaming(nobody, path) as answer:
        assert answer.status_code == 200
        assert (await Frames(answer).next_event())["event"] == "job.enqueued"
    assert (await nobody.get(path)).status_code == 401
    assert (await nobody.get(f"/v1/jobs/{made['id']}/stream")).status_code == 401


@on_memory
async def test_a_ticket_is_good_for_nothing_else(stage: Stage) -> None:
    caller = await stage.caller()
    made = await caller.job()
    nobody = stage.stranger()

    async def ticket() -> str:
        return (await caller.post("/v1/streams/ticket")).json()["ticket"]

    assert (await nobody.get(f"/v1/jobs/{made['id']}?ticket={await ticket()}")).status_code == 401
    forged = (await ticket())[:-2] + "AA"
    assert (await nobody.get(f"/v1/jobs/{made['id']}/stream?ticket={forged}")).status_code == 401
    cursor = (await caller.get("/v1/events", Accept=JSON)).json()["next_after"]
    assert (await nobody.get(f"/v1/jobs/{made['id']}/stream?ticket={cursor}")).status_code == 401


@on_memory
async def test_a_ticket_ends_with_its_minute_and_with_its_key(stage: Stage) -> None:
    caller = await stage.caller()
    made = await caller.job()
    nobody = stage.stranger()
    late = (await caller.post("/v1/streams/ticket")).json()["ticket"]
    clock = MovableClock(stage.engine.clock.now())  # type: ignore[attr-defined]
    stage.engine.clock = clock  # type: ignore[attr-defined]
    clock.advance(61)
    assert (await nobody.get(f"/v1/jobs/{made['id']}/stream?ticket={late}")).status_code == 401
    fresh = (await caller.post("/v1/streams/ticket")).json()["ticket"]
    (key,) = (await caller.get("/v1/keys")).json()["keys"]
    await caller.ask("DELETE", f"/v1/keys/{key['id']}")
    assert (await nobody.get(f"/v1/jobs/{made['id']}/stream?ticket={fresh}")).status_code == 401


# ── Keys that are good no more ──


@pytest.mark.parametrize("path", ["/v1/events", "/v1/jobs/{id}/stream"])
@served_from_every_engine
async def test_a_stream_ends_when_its_key_is_revoked(stage: Stage, path: str) -> None:
    stays, goes = await stage.caller(), await stage.caller(Scope.READ)
    made = await stays.job()
    path = path.format(id=made["id"])
    async with streaming(stays, path) as still, streaming(goes, path) as answer:
        await until(lambda: stage.api.deps.streams.listening == 2)
        (key,) = [one for one in (await stays.get("/v1/keys")).json()["keys"] if one["scopes"] == ["read"]]
        await stays.ask("DELETE", f"/v1/keys/{key['id']}")
        async with asyncio.timeout(20):
            await Frames(answer).rest()
        assert stage.api.deps.streams.listening == 1
        assert still.status_code == 200
    await until(lambda: stage.api.deps.streams.listening == 0)
    assert stage.api.deps.places._all == 0


@served_from_memory
async def test_a_stream_by_ticket_ends_when_its_tenant_is_switched_off(stage: Stage) -> None:
    caller = await stage.caller(tenant="acme")
    ticket = (await caller.post("/v1/streams/ticket")).json()["ticket"]
    async with stage.http.stream("GET", f"/v1/events?ticket={ticket}") as answer:
        await until(lambda: stage.api.deps.streams.listening == 1)
        await stage.engine.change_tenant("acme", is_active=False)
        async with asyncio.timeout(20):
            await Frames(answer).rest()
    await until(lambda: stage.api.deps.streams.listening == 0)
