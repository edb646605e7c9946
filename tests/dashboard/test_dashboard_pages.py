"""The pages: each answers, shows what is stored, leads only where it should, and shows hostile text as text."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote, urlencode, urljoin
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

from ropeway.asgi import Server
from ropeway.core.access import Scope
from ropeway.core.auditlog import NewAction
from ropeway.core.fields import MAX_TAG_LENGTH
from ropeway.core.fleet import WorkerInfo
from ropeway.core.history import ALL_QUEUES, STEP, Sample, last_step
from ropeway.core.job import NewJob, Progress
from ropeway.core.joblog import LogLine
from ropeway.core.outcome import Done, Failed
from ropeway.core.payload import JobError
from ropeway.core.states import State
from ropeway.dashboard import newest
from ropeway.dashboard.asking import FILTERS
from ropeway.dashboard.columns import COLUMNS, USUAL
from ropeway.engines.memory import MemoryEngine
from ropeway.engines.postgres import inspecting
from ropeway.engines.protocol import Engine
from ropeway.runtime.clock import ManualClock
from ropeway.service import fleet
from ropeway.settings import Settings
from tests.dashboard.dashboard_kit import (
    PAGES,
    Page,
    Person,
    dead,
    enqueued,
    house,
    in_every_state,
    leased,
    page,
    settled,
    with_schedule,
    with_worker,
)


async def furnished(engine: Engine) -> dict[State, UUID]:
    """A store with something on every page."""
    await with_worker(engine)
    await with_schedule(engine)
    await engine.note_actions([NewAction("somebody", "queue.pause", "default")])
    await engine.pause("queued")
    return await in_every_state(engine)


def jobs_on(shown: Page) -> list[str]:
    """The ids in the list of jobs, from top to bottom."""
    rows = [given.get("id", "") for given in shown.all("tr")]
    return [row.removeprefix("job-") for row in rows if row.startswith("job-")]


def told_wrong(shown: Page) -> bool:
    """Whether the page tells that something was typed wrong."""
    return any(given.get("role") == "alert" for given in shown.all("p"))


# ── Every page ──


async def test_every_page_answers_on_an_empty_store(any_store: str) -> None:
    async with house(any_store) as there:
        person = await there.person()
        for path in PAGES:
            shown = await person.see(path)
            assert len(shown.all("h1")) == 1, path
            assert [given["href"] for given in shown.all("a") if given.get("aria-current") == "page"], path


async def test_every_page_answers_on_a_store_with_something_of_each(any_store: str) -> None:
    async with house(any_store) as there:
        made = await furnished(there.engine)
        person = await there.person()
        for path in PAGES:
            await person.see(path)
        for state, id in made.items():
            shown = await person.see(f"/ui/jobs/{id}")
            assert state.value in shown.text
        assert sorted(jobs_on(await person.see("/ui/jobs"))) == sorted(map(str, made.values()))
        assert "ValueError broken" in (await person.see("/ui/dead")).text
        assert "nightly" in (await person.see("/ui/schedules")).text
        assert "w1" in (await person.see("/ui/workers")).text
        assert "somebody queue.pause default" in (await person.see("/ui/audit")).text
        overview = (await person.see("/")).text
        assert "The queue queued is paused; 1 job waits in it." in overview
        assert "1 job of dead died within the last hour; 1 is dead in all." in overview


async def test_events_are_shown_as_they_happen_the_newest_first(local_store: str) -> None:
    async with house(local_store) as there:
        person = await there.person()
        await person.see("/ui/events")
        first, second = await enqueued(there.engine, "alpha"), await enqueued(there.engine, "beta")
        # An action looks at the store at once: nobody has to wait for the next second.
        assert (await person.post("/ui/queues/default/pause")).status_code == 303
        shown = await person.see("/ui/events")
        rows = [given["id"] for given in shown.all("tr") if given.get("id", "").startswith("event-")]
        assert rows == [f"event-{second}-1", f"event-{first}-1"]
        alone = await person.see("/ui/events?type=alpha")
        assert str(first)[-6:] in alone.text
        assert str(second)[-6:] not in alone.text
        nothing = await person.see("/ui/events?event=job.dlq")
        assert "None of the newest 2 events is like that." in nothing.text


async def test_the_page_of_events_tells_how_many_it_did_not_show(
    memory_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest, "MOST_SHOWN", 2)
    async with house(memory_store) as there:
        person = await there.person()
        for path in ("/ui/events", "/ui/events?type=rare"):
            assert "not shown" not in (await person.see(path)).text
        await enqueued(there.engine, "rare")
        for _ in range(5):
            await enqueued(there.engine, "common")
        await there.server.dashboard._live.refresh("default")
        assert "4 events of the last minute were not shown" in (await person.see("/ui/events")).text
        alone = await person.see("/ui/events?type=rare")
        assert "not shown" not in alone.text
        assert len([given for given in alone.all("tr") if given.get("id", "").startswith("event-")]) == 1


async def test_a_worker_that_fell_silent_is_shown_and_told(memory_store: str) -> None:
    engine = MemoryEngine()
    async with house(memory_store, engine=engine) as there:
        await with_worker(engine, "killed")
        await with_worker(engine, "there", queues=("other",))
        # As if it had reported half an hour ago.
        told = engine.workers

        async def workers(**asked: Any) -> list[WorkerInfo]:
            ago = await engine.now() - timedelta(minutes=30)
            found = [replace(one, seen_at=ago) if one.id == "killed" else one for one in await told(**asked)]
            return [one for one in found if one.id != "killed" or asked["seen_within"] > 1_800]

        engine.workers = workers  # type: ignore[method-assign]
        await enqueued(engine)
        person = await there.person()
        shown = (await person.see("/")).text
        assert "The worker killed was last heard of 30 min ago, and said no goodbye." in shown
        assert "Nobody works on the queue default" in shown
        assert "Workers 1 4 slots, 1 silent" in " ".join(shown.split())
        rows = [given["id"] for given in (await person.see("/ui/workers")).all("tr") if "id" in given]
        assert rows == ["worker-there", "worker-killed"]


async def test_what_a_worker_runs_is_shown_and_where_it_was_cut(
    memory_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "PAGE", 7)
    monkeypatch.setattr(fleet, "MOST_PAGES", 1)
    async with house(memory_store) as there:
        for id in ("idle", "w1", "w2"):
            await with_worker(there.engine, id)
        person = await there.person()

        async def cells(number: int, worker: str) -> dict[str, str]:
            for _ in range(number):
                await enqueued(there.engine, "job.of." + worker)
                await leased(there.engine, worker=worker)
            await there.server.dashboard._live.refresh("default")
            parts = re.split(r"(idle|w1|w2) host, process 42", (await person.see("/ui/workers")).text)
            return dict(zip(parts[1::2], parts[2::2], strict=True))

        shown = await cells(7, "w1")
        assert "job.of.w1, job.of.w1, job.of.w1, job.of.w1, job.of.w1 … and 2 more" in shown["w1"]
        assert "nothing" in shown["w2"]
        shown = await cells(7, "w2")
        assert "job.of.w2, job.of.w2, job.of.w2, job.of.w2, job.of.w2 … and more" in shown["w2"]
        assert "… 1 running" in shown["w1"], "it reported one, and the newest seven are not among its own"
        assert "nothing" not in shown["w1"]


async def test_how_long_jobs_may_wait_is_a_setting(memory_store: str) -> None:
    for target, late in ((4.0, True), (6.0, False)):
        clock = ManualClock(datetime.now(UTC))
        async with house(memory_store, engine=MemoryEngine(clock=clock), age_target=target) as there:
            person = await there.person()
            await enqueued(there.engine)
            clock.advance(5.0)
            await with_worker(there.engine)
            shown = (await person.see("/")).text
            assert ("The oldest job that could run in default has waited" in shown) is late


async def test_the_settings_page_tells_no_password(memory_store: str) -> None:
    """The URL of a store may carry one."""
    secret = "hunter2hunter2"
    async with house(f"postgresql://u:{secret}@127.0.0.1:1/none", engine=MemoryEngine()) as there:
        person = await there.person()
        response = await person.get("/ui/settings")
        assert response.status_code == 200
        assert secret not in response.text
        assert "127.0.0.1" in response.text


# ── The list of jobs ──


@pytest.fixture
def several() -> dict[str, NewJob]:
    return {
        "plain": NewJob("alpha", queue="one"),
        "other": NewJob("beta", queue="two"),
        "keyed": NewJob("alpha", queue="three", idempotency_key="order 7/ä&b"),
        "tagged": NewJob("alpha", queue="three", tags=("red", "blue")),
    }


async def test_each_filter_finds_its_jobs(any_store: str, several: dict[str, NewJob]) -> None:
    async with house(any_store) as there:
        ids = {
            name: str(made.id)
            for name, made in zip(several, await there.engine.enqueue(list(several.values())), strict=True)
        }
        for state, id in (await in_every_state(there.engine)).items():
            ids[state.value] = str(id)
        person = await there.person(Scope.READ)

        async def found(**asked: str) -> set[str]:
            shown = await person.see(f"/ui/jobs?{urlencode(asked)}")
            assert not told_wrong(shown), asked
            names = {id: name for name, id in ids.items()}
            return {names[id] for id in jobs_on(shown)}

        assert await found() == set(ids)
        assert await found(queue="three") == {"keyed", "tagged"}
        assert await found(type="beta") == {"other"}
        assert await found(status="dead") == {"dead"}
        assert await found(status="retrying,scheduled") == {"retrying", "scheduled"}
        assert await found(key="order 7/ä&b") == {"keyed"}
        assert await found(tag="blue") == {"tagged"}
        assert await found(error="line is busy") == {"retrying"}
        assert await found(worker="w1") == {"running"}
        assert await found(reason="rejected") == {"dead"}
        assert await found(after="2000-01-01T00:00") == set(ids)
        assert await found(before="2000-01-01T00:00") == set()
        assert await found(after="9000-01-01T00:00") == set()
        assert await found(id=ids["tagged"]) == {"tagged"}
        assert await found(id=str(uuid4())) == set()
        assert await found(queue="three", tag="red", status=" queued ") == {"tagged"}


@pytest.mark.parametrize(
    "asked",
    [
        {"status": "bogus"},
        {"status": "dead,"},
        {"reason": "boredom"},
        {"after": "yesterday"},
        {"before": "2026-13-01T00:00"},
        {"queue": "no such name!"},
        {"type": "<b>"},
        {"key": "a\0b"},
        {"key": "k" * 513},
        {"error": "e" * 257},
        {"tag": "t" * 1_000},
        {"worker": "w" * 129},
        {"id": "zz"},
        {"id": "01"},
    ],
    ids=lambda asked: next(iter(asked)),
)
async def test_a_bad_filter_is_told_on_the_page(memory_store: str, asked: dict[str, str]) -> None:
    async with house(memory_store) as there:
        await enqueued(there.engine)
        person = await there.person()
        shown = await person.see(f"/ui/jobs?{urlencode(asked)}")
        assert told_wrong(shown)
        assert jobs_on(shown) == [], "what was not understood is not shown as if it were everything"


@pytest.mark.parametrize("place", ["x", "../../etc", "0" * 31, "G" * 32])
async def test_a_bad_place_in_the_list_is_refused(memory_store: str, place: str) -> None:
    async with house(memory_store) as there:
        response = await (await there.person()).get(f"/ui/jobs?{urlencode({'from': place})}")
        assert response.status_code == 422
        assert "not a page of this list" in page(response).text


async def test_older_leads_through_all_jobs_once_and_keeps_the_filter(any_store: str) -> None:
    async with house(any_store) as there:
        made = await there.engine.enqueue([NewJob("work", queue="many") for _ in range(120)])
        await enqueued(there.engine, queue="other")
        person = await there.person()
        path, seen, sizes = "/ui/jobs?queue=many", [], []
        while True:
            shown = await person.see(path)
            on_page = jobs_on(shown)
            seen += on_page
            sizes.append(len(on_page))
            older = [given["href"] for given in shown.all("a") if given.get("rel") == "next"]
            if not older:
                break
            path = urljoin(path, older[0])
        assert sizes == [50, 50, 20]
        assert seen == sorted((str(answer.id) for answer in made), reverse=True)
        newest = [given["href"] for given in shown.all("a") if given["href"].endswith("ui/jobs?queue=many")]
        assert newest, "a later page leads back to the first"


async def test_a_job_found_by_its_id_is_not_offered_as_all_that_were_found(memory_store: str) -> None:
    """The id is no filter of bulk actions: "all found" would have meant all jobs there are."""
    async with house(memory_store) as there:
        id = await enqueued(there.engine)
        await enqueued(there.engine)
        person = await there.person()
        assert "Cancel all found" in (await person.see("/ui/jobs?queue=default")).text
        assert "all found" not in (await person.see(f"/ui/jobs?id={id}")).text


# ── The columns of the list ──


def headings(shown: Page) -> list[str]:
    """What stands above the columns of the list, without the boxes and the id."""
    labels = "|".join(map(re.escape, COLUMNS.values()))
    # The boxes that choose them come first; below the table's head comes the first job.
    head = shown.text.partition("Clear")[2].partition(" Id ")[2]
    found = re.match(rf"(?:(?:{labels}) ?)*", head)
    assert found is not None
    return re.findall(labels, found[0])


def checked(shown: Page) -> list[str]:
    boxes = [given for given in shown.all("input") if given.get("name") == "columns"]
    return [given["value"] for given in boxes if "checked" in given]


async def test_the_usual_columns_are_shown_to_those_who_do_not_choose(memory_store: str) -> None:
    async with house(memory_store) as there:
        await enqueued(there.engine)
        person = await there.person()
        for path in (
            "/ui/jobs",
            "/ui/jobs?columns=",
            "/ui/jobs?columns=,%20,",
            f"/ui/jobs?columns={','.join(USUAL)}",
        ):
            shown = await person.see(path)
            assert headings(shown) == [COLUMNS[name] for name in USUAL], path
            assert checked(shown) == list(USUAL)


@pytest.mark.parametrize(
    "query", ["columns=worker,status", "columns=status&columns=worker", "columns=worker&columns=status,worker"]
)
async def test_the_chosen_columns_are_shown_in_their_order(any_store: str, query: str) -> None:
    """As boxes send them, and as the links write them."""
    async with house(any_store) as there:
        await enqueued(there.engine, "alpha.beta")
        await leased(there.engine, worker="the-worker")
        shown = await (await there.person()).see(f"/ui/jobs?{query}")
        assert headings(shown) == ["State", "Worker"]
        assert checked(shown) == ["status", "worker"]
        assert "the-worker" in shown.text
        assert "alpha.beta" not in shown.text


async def test_every_column_shows_what_it_is_called_for(memory_store: str) -> None:
    async with house(memory_store) as there:
        await enqueued(
            there.engine, "alpha.beta", queue="mails", priority=3, tags=("red",), idempotency_key="order 7"
        )
        taken = await leased(there.engine, "mails")
        error = JobError("FuelError", "the tank is empty")
        await settled(there.engine, taken, Failed(error, retry_after=600.0))
        shown = await (await there.person()).see(f"/ui/jobs?columns={','.join(COLUMNS)}")
        assert headings(shown) == list(COLUMNS.values())
        for words in (
            "alpha.beta",
            "mails",
            "retrying",
            " 3 ",
            "1 / 5",
            "red",
            "order 7",
            "FuelError: the tank is empty",
        ):
            assert words in shown.text, words
        assert len(shown.all("td")) == len(COLUMNS) + 2, "a cell for each, the box and the id"


async def test_the_columns_are_kept_from_page_to_page(memory_store: str) -> None:
    async with house(memory_store) as there:
        await there.engine.enqueue([NewJob("work", queue="many") for _ in range(120)])
        person = await there.person()
        path = "/ui/jobs?queue=many&columns=type&columns=priority"
        for _ in range(2):
            shown = await person.see(path)
            (older,) = [given["href"] for given in shown.all("a") if given.get("rel") == "next"]
            path = urljoin(path, older)
        shown = await person.see(path)
        assert headings(shown) == ["Type", "Priority"]
        newest = [given["href"] for given in shown.all("a") if given["href"].endswith("columns=type%2Cpriority")]
        assert len(newest) == 2, "back to the newest, and without the filter"
        (form,) = [fields for action, fields in shown.posts() if ("verb", "cancel") in fields]
        assert ("back", "ui/jobs?queue=many&columns=type%2Cpriority") in form
        asking = page(await person.post("/ui/jobs/bulk", form, mark=None))
        assert [given for given in asking.all("a") if given["href"].endswith("queue=many&columns=type%2Cpriority")]


@pytest.mark.parametrize("asked", ["nonsense", "type,nonsense", "Type", "id", "type;queue"])
async def test_a_column_that_there_is_not_is_refused(memory_store: str, asked: str) -> None:
    async with house(memory_store) as there:
        response = await (await there.person()).get(f"/ui/jobs?{urlencode({'columns': asked})}")
        assert response.status_code == 422
        shown = page(response)
        assert "there is no column" in shown.text
        assert "some of type, queue, status" in shown.text


# ── One job ──


async def test_a_job_that_succeeded_shows_what_it_got_and_gave(any_store: str) -> None:
    async with house(any_store) as there:
        id = await enqueued(there.engine, "sum.up", payload=b'{"numbers":[40,2]}', tags=("red",))
        taken = await leased(there.engine)
        assert await there.engine.log([(taken.lease, LogLine("adding up", "warning"))]) == [None]
        await settled(there.engine, taken, Done(b'{"sum":42}'))
        shown = await (await there.person()).see(f"/ui/jobs/{id}")
        for words in ('"numbers": [ 40, 2 ]', '"sum": 42', "warning adding up", "sum.up", "red", "succeeded"):
            assert words in shown.text
        assert "Why it is not running" not in shown.text
        assert {given.get("class") for given in shown.all("rect")} >= {"running"}


async def test_a_job_that_died_shows_its_traceback_and_offers_to_run_again(any_store: str) -> None:
    async with house(any_store) as there:
        id = await dead(there.engine, "the tank is empty", error="FuelError")
        shown = await (await there.person()).see(f"/ui/jobs/{id}")
        for words in ("FuelError: the tank is empty", "Traceback: it fell", "Attempt 1: failed", "rejected"):
            assert words in shown.text
        assert [action for action, _ in shown.posts()] == [f"../../ui/jobs/{id}/retry"]


async def test_a_job_that_runs_shows_how_far_it_is(any_store: str) -> None:
    async with house(any_store) as there:
        id = await enqueued(there.engine)
        taken = await leased(there.engine, worker="the worker")
        progress = Progress(done=1_234_567.0, total=2_000_000.0, message="half way up")
        assert await there.engine.progress([(taken.lease, progress)]) == [None]
        shown = await (await there.person()).see(f"/ui/jobs/{id}")
        for words in ("half way up", "1234567 of 2000000", "What it does", "the worker"):
            assert words in shown.text


def updates(shown: Page) -> str | None:
    """What the part of a page that keeps itself true waits for."""
    (part,) = [given for given in shown.all("div") if given.get("id") == "live"]
    return part.get("hx-trigger")


async def test_the_log_of_a_job_is_followed_while_it_runs(any_store: str) -> None:
    async with house(any_store) as there:
        id = await enqueued(there.engine)
        person = await there.person()
        path = f"/ui/jobs/{id}"
        assert updates(await person.see(path)) == "ropeway:slow from:body"
        taken = await leased(there.engine)
        await there.server.dashboard._live.refresh("default")
        shown = await person.see(path)
        assert updates(shown) == "ropeway:tick from:body", "with every look, not with every third"
        assert "adding up" not in shown.text
        await there.engine.log([(taken.lease, LogLine("adding up"))])
        await there.engine.progress([(taken.lease, Progress(1.0, 2.0, "half way"))])
        await there.server.dashboard._live.refresh("default")
        shown = await person.see(path)
        assert "info adding up" in shown.text
        assert "half way" in shown.text
        (log,) = [given for given in shown.all("pre") if given.get("class") == "log"]
        assert (log["role"], "data-follow" in log) == ("log", True)
        await settled(there.engine, taken, Done(b"1"))
        await there.server.dashboard._live.refresh("default")
        shown = await person.see(path)
        assert updates(shown) is None, "nothing more comes"
        assert not [given for given in shown.all("pre") if "data-follow" in given]


async def test_a_job_that_does_not_run_shows_why(local_store: str) -> None:
    async with house(local_store) as there:
        person = await there.person()
        ids = await in_every_state(there.engine)
        await there.engine.pause("queued")

        async def why(state: State) -> str:
            shown = (await person.see(f"/ui/jobs/{ids[state]}")).text
            return shown.partition("Why it is not running")[2].partition("Its life")[0]

        assert "The queue queued is paused" in await why(State.QUEUED)
        assert "No worker is alive" in await why(State.QUEUED)
        assert "It is scheduled for" in await why(State.SCHEDULED)
        assert "Attempt 1 of" in await why(State.RETRYING)
        assert await why(State.DEAD) == ""


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/ui/jobs/0198c0de-0000-7000-8000-000000000000", 404),
        ("/ui/jobs/nonsense", 422),
        ("/ui/jobs/0198C0DE-0000-7000-8000-000000000000", 422),
        ("/ui/jobs/%3Cscript%3Ealert(1)%3C%2Fscript%3E", 405),
        ("/ui/nope", 404),
        ("/ui/", 404),
        ("/ui/jobs/a/b/c/d", 404),
        ("/ui/logout", 405),
        ("/static/nope.css", 404),
        ("/static/", 404),
        ("/ui/dead?queue=%21", 422),
    ],
)
async def test_what_is_not_there_is_a_page_too(memory_store: str, path: str, status: int) -> None:
    async with house(memory_store) as there:
        response = await (await there.person()).get(path)
        assert response.status_code == status, response.text
        check_harmless(page(response))


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/", "GET, HEAD"),
        ("DELETE", "/ui/jobs", "GET, HEAD"),
        ("GET", "/ui/logout", "POST"),
        ("PUT", "/ui/login", "GET, HEAD, POST"),
        ("OPTIONS", "/ui/dead/replay", "POST"),
        ("PATCH", "/ui/jobs/bulk", "GET, HEAD, POST"),
        ("POST", "/ui/live", "GET, HEAD"),
        ("POST", "/static/ropeway.css", "GET, HEAD"),
        ("DELETE", "/favicon.ico", "GET, HEAD"),
    ],
)
async def test_an_address_that_is_for_other_methods_names_them(
    memory_store: str, method: str, path: str, allowed: str
) -> None:
    async with house(memory_store) as there:
        response = await there.stranger().http.request(method, path)
        assert response.status_code == 405
        assert response.headers["allow"] == allowed
        assert "this address is not for that" in page(response).text
        assert "allow" not in (await there.stranger().get("/ui/nope")).headers


async def test_what_breaks_inside_is_a_page_without_the_reason(
    memory_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(memory_store) as there:
        person = await there.person()

        async def broken(*_: object, **__: object) -> None:
            raise RuntimeError("abracadabra")

        monkeypatch.setattr(there.engine, "find", broken)
        response = await person.get("/ui/jobs")
        assert response.status_code == 500
        assert "the server's log has the reason" in page(response).text
        assert "abracadabra" not in response.text


# ── Files ──


@pytest.mark.parametrize("name", ["ropeway.css", "ropeway.js", "favicon.svg", "vendor/htmx.min.js"])
async def test_our_files_are_served_to_everybody_and_asked_for_again(memory_store: str, name: str) -> None:
    async with house(memory_store) as there:
        stranger = there.stranger()
        response = await stranger.get(f"/static/{name}")
        assert response.status_code == 200
        assert response.content
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-cache"
        again = await stranger.get(f"/static/{name}", if_none_match=response.headers["etag"])
        assert again.status_code == 304
        assert (await stranger.get("/favicon.ico")).headers["content-type"].startswith("image/svg")


TRAVERSALS = (
    "/static/../app.py",
    "/static/../../app.py",
    "/static/vendor/../../app.py",
    "/static/%2e%2e/app.py",
    "/static/%2e%2e%2fapp.py",
    "/static/..%2fapp.py",
    "/static/..%5capp.py",
    "/static/%252e%252e/app.py",
    "/static/../templates/base.html",
    "/static//etc/passwd",
    "/static/%2fetc%2fpasswd",
    "/static/./../app.py",
    "/static/ropeway.css%00.py",
    "/static/%00",
    "/static/" + "a" * 5_000,
    "/ui/../static/../app.py",
)


async def test_no_address_leads_out_of_the_folder_of_files() -> None:
    """On a port, because clients tidy such addresses up before they send them."""
    async with MemoryEngine() as engine, Server(engine, Settings(url="memory://", port=0)) as server:
        for path in TRAVERSALS:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
            assert answer.startswith(b"HTTP/1.1 404 "), (path, answer[:200])
            for inside in (b"class Dashboard", b"root:", b"{% block"):
                assert inside not in answer, path


# ── Addresses ──


def leads_out(shown: Page, path: str) -> list[str]:
    """The addresses on a page that would leave the prefix under which a proxy shows it."""
    prefix = "https://proxy.example/some/prefix"
    here = prefix + path
    return [
        address
        for address in shown.addresses()
        if address.startswith(("/", "http", "\\")) or not urljoin(here, address).startswith(f"{prefix}/")
    ]


async def test_all_addresses_are_relative_and_stay_below_any_prefix(memory_store: str) -> None:
    async with house(memory_store) as there:
        made = await furnished(there.engine)
        await there.engine.enqueue([NewJob("work") for _ in range(60)])
        person = await there.person()
        jobs = [f"/ui/jobs/{id}" for id in made.values()]
        for path in (*PAGES, *jobs, "/ui/jobs?queue=default&status=queued", "/ui/dead?queue=dead"):
            shown = await person.see(path)
            assert shown.addresses()
            assert leads_out(shown, path) == [], path
        for path in (
            "/ui/nope",
            "/ui/a/b/c",
            "/ui/jobs/a%2Fb",
            "/ui/a%3Fb%2Fc",
            "/ui/jobs/x%23/y",
            "/static/nope",
        ):
            assert leads_out(page(await person.get(path)), path) == [], path
        confirm = page(await person.post("/ui/jobs/bulk", {"verb": "cancel"}))
        assert leads_out(confirm, "/ui/jobs/bulk") == []
        cancel = f"/ui/jobs/{made[State.QUEUED]}/cancel"
        assert leads_out(page(await person.post(cancel)), cancel) == []
        replay = page(await person.post("/ui/dead/replay"))
        assert leads_out(replay, "/ui/dead/replay") == []
        login = page(await there.stranger().get("/ui/login"))
        assert leads_out(login, "/ui/login") == []


async def test_every_link_on_every_page_leads_to_a_page(memory_store: str) -> None:
    async with house(memory_store) as there:
        made = await furnished(there.engine)
        person = await there.person()
        links = set()
        for path in (*PAGES, f"/ui/jobs/{made[State.DEAD]}"):
            shown = await person.see(path)
            for given in (*shown.all("a"), *shown.all("link")):
                links.add(urljoin(path, given["href"]).partition("#")[0])
        assert len(links) > 15
        for link in links:
            assert (await person.get(link)).status_code == 200, link


# ── Hostile text ──

HOSTILE = {
    "script": "<script>alert(1)</script>",
    "image": '"><img src=x onerror=alert(1)>',
    "attribute": "' onmouseover='alert(1)' style='color:red",
    "address": "javascript:alert(1)//",
    "breakout": "</code></pre></title></textarea><style>*{display:none}</style><svg onload=alert(1)>",
    "template": "{{ 7*191 }}{% raw %}${7*191}",
    "entity": "&lt;b&gt;&#60;i&#62;",
    "comment": "--><!-- ]]> <!DOCTYPE x>",
    "right to left": "\u202egnp.exe\u2066",
    "combining": "e" + "\u0301" * 50,
}

OURS = ("static/vendor/htmx.min.js", "static/vendor/idiomorph-ext.min.js", "static/ropeway.js")
#: The overview draws as well.
WITH_CHARTS = (*OURS, "static/vendor/uPlot.iife.min.js", "static/charts.js")


class _Comments(HTMLParser):
    """Counts what is no element."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.declarations: list[str] = []
        self.feed(html)

    def handle_comment(self, data: str) -> None:
        self.declarations.append(data)

    def handle_decl(self, decl: str) -> None:
        self.declarations.append(decl)


def check_harmless(shown: Page) -> None:
    """No element and no attribute is there that our templates do not have."""
    scripts = [given.get("src", "").partition("?")[0] for given in shown.all("script")]
    assert tuple(script.lstrip("./") for script in scripts) in (OURS, WITH_CHARTS)
    for tag, given in shown.elements:
        assert tag not in ("img", "style", "iframe", "object", "embed", "base", "textarea", "b1"), tag
        assert not [name for name in given if name.startswith("on") or name == "style"], (tag, given)
    for address in shown.addresses():
        assert not address.strip().lower().startswith(("javascript:", "data:", "vbscript:")), address


def spaced(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("kind", HOSTILE)
async def test_hostile_text_is_shown_as_text(memory_store: str, kind: str) -> None:
    text = HOSTILE[kind]
    async with house(memory_store) as there:
        engine = there.engine
        payload = json.dumps({"payload": text}, ensure_ascii=False).encode()
        running = await enqueued(
            engine,
            payload=payload,
            idempotency_key=f"key {text}",
            tags=(f"tag {text}"[:MAX_TAG_LENGTH],),
            headers={f"header {text}": f"value {text}"},
        )
        worker = f"worker {text}"[:128]
        await with_worker(engine, worker)
        taken = await leased(engine, worker=worker)
        await engine.log([(taken.lease, LogLine(f"logged {text}", text[:16]))])
        await engine.progress([(taken.lease, Progress(1.0, 2.0, f"progress {text}"))])
        failed = await enqueued(engine)
        error = JobError(f"Type {text}", f"message {text}", f"trace {text}")
        await settled(engine, await leased(engine, worker=worker), Failed(error, retry=False))
        done = await enqueued(engine)
        result = json.dumps(f"result {text}", ensure_ascii=False)
        await settled(engine, await leased(engine), Done(result.encode()))
        await engine.note_actions([NewAction(f"actor {text}", f"did {text}", f"target {text}")])
        person = await there.person(name=f"key {text}"[:100])

        async def seen(path: str, *expected: str) -> None:
            response = await person.get(path)
            shown = page(response)
            check_harmless(shown)
            assert _Comments(response.text).declarations == ["doctype html"]
            for words in expected:
                assert spaced(words) in shown.text, (path, words)

        of_running = (f"key {text}", f"tag {text}"[:MAX_TAG_LENGTH], f"header {text}", f"value {text}")
        said = (f"logged {text}", f"progress {text}", worker)
        await seen(f"/ui/jobs/{running}", json.dumps(text, ensure_ascii=False), *of_running, *said)
        await seen(f"/ui/jobs/{failed}", f"Type {text}", f"message {text}", f"trace {text}", worker)
        await seen(f"/ui/jobs/{done}", result)
        await seen("/ui/jobs", f"message {text}"[:90])
        await seen("/ui/dead")
        await seen("/ui/workers", worker)
        await seen("/ui/audit", f"actor {text}", f"did {text}", f"target {text}")
        await seen("/", f"key {text}"[:100])
        for name in (*FILTERS, "id", "from", "columns"):
            await seen(f"/ui/jobs?{urlencode({name: text})}")
        await seen(f"/ui/events?{urlencode({'queue': text, 'type': text, 'event': text})}")
        await seen(f"/ui/dead?{urlencode({'queue': text})}")
        await seen(f"/ui/dead?{urlencode({'group': text})}")
        await seen(f"/ui/jobs?columns={','.join(COLUMNS)}", worker, f"tag {text}"[:MAX_TAG_LENGTH])
        await seen(f"/ui/{quote(text, safe='')}")
        await check_forms(person, text)


async def check_forms(person: Person, text: str) -> None:
    """What is typed into forms comes back on a page that asks, or that refuses."""
    verb = quote(text, safe="")
    for path, fields in (
        ("/ui/jobs/bulk", {"verb": "cancel", "error": text, "back": text}),
        ("/ui/jobs/bulk", {"verb": text}),
        ("/ui/jobs/bulk", {"verb": "cancel", "queue": text}),
        ("/ui/jobs/bulk", {"verb": "cancel", "id": "01234567-89ab-7000-8000-0123456789ab", "back": text}),
        ("/ui/dead/replay", {"queue": text}),
        ("/ui/dead/replay", {"fingerprint": text}),
        (f"/ui/queues/default/{verb}", {}),
        (f"/ui/queues/{verb}/pause", {}),
        (f"/ui/schedules/{verb}/run", {}),
        ("/ui/login", {"key": text}),
    ):
        response = await person.post(path, fields)
        if response.status_code == 303:
            # Some of it is a good name after all: the notice is what shows it.
            check_harmless(await person.follow(response))
        else:
            assert response.status_code < 500, path
            check_harmless(page(response))


# ── Charts ──


async def test_the_charts_get_what_was_remembered(any_store: str) -> None:
    async with house(any_store) as there:
        at = last_step(await there.engine.now())
        whole = Sample("default", ALL_QUEUES, at, STEP, enqueued=5, waiting=7)
        await there.engine.remember([whole, Sample("default", "mail", at, STEP, enqueued=2)])
        person = await there.person()
        answer = await person.get("/ui/history?range=15m")
        assert answer.status_code == 200
        told = answer.json()
        assert len(told["at"]) == len(told["enqueued"]) == len(told["wait_p95"])
        index = told["at"].index(int(at.timestamp()))
        assert (told["enqueued"][index], told["waiting"][index]) == (20, 7)
        assert told["enqueued"][index - 1] is None
        of_one = (await person.get("/ui/history?range=15m&queue=mail")).json()
        assert of_one["enqueued"][index] == 8


@pytest.mark.parametrize("asked", ["range=2y", "range=", "range=15m&queue=a%20b"])
async def test_what_there_is_no_chart_of_is_refused(local_store: str, asked: str) -> None:
    async with house(local_store) as there:
        person = await there.person()
        assert (await person.get(f"/ui/history?{asked}")).status_code == 422


async def test_another_tenant_sees_its_own_history(local_store: str) -> None:
    async with house(local_store) as there:
        at = last_step(await there.engine.now())
        await there.engine.remember([Sample("other", ALL_QUEUES, at, STEP, enqueued=5)])
        person = await there.person()
        told = (await person.get("/ui/history")).json()
        assert set(told["enqueued"]) == {None}


async def test_a_search_that_stopped_can_go_on(postgres_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspecting, "SEARCH", 10)
    async with house(postgres_store) as there:
        rare = await enqueued(there.engine, "rare")
        await there.engine.enqueue([NewJob("common") for _ in range(30)])
        person = await there.person()
        shown = await person.see("/ui/jobs?type=rare")
        assert jobs_on(shown) == []
        assert "No job is like that so far" in shown.text
        assert "Looked at all jobs made since" in shown.text
        (on,) = [given["href"] for given in shown.all("a") if given.get("rel") == "next"]
        found = await person.see(urljoin("http://test/ui/jobs", on).removeprefix("http://test"))
        assert jobs_on(found) == [str(rare)]
        assert "Looked at all jobs" not in found.text
        common = await person.see("/ui/jobs?type=common")
        assert len(jobs_on(common)) == 10, "what was found on the way is shown"
