"""The dashboard over a real engine, asked in process, and pages read as a browser reads them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode, urljoin
from uuid import UUID, uuid4

import httpx

from ropeway.asgi import Server, Site
from ropeway.core.access import Scope
from ropeway.core.fleet import WorkerInfo
from ropeway.core.job import NewJob
from ropeway.core.outcome import Done, Failed, Outcome
from ropeway.core.payload import JobError
from ropeway.core.schedule import NewSchedule
from ropeway.core.states import State
from ropeway.engines.open import engine_for
from ropeway.engines.protocol import Engine, Leased, Settled, Settlement, WorkerRef
from ropeway.service.keys import Keys
from ropeway.settings import Settings

FORM = "application/x-www-form-urlencoded"

#: Word for word, so that whoever loosens it meets this test.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}

PAGES = (
    "/",
    "/ui/queues",
    "/ui/jobs",
    "/ui/dead",
    "/ui/schedules",
    "/ui/workers",
    "/ui/events",
    "/ui/audit",
    "/ui/settings",
)


# ── Pages ──


class Page(HTMLParser):
    """The elements of a page, with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self._text: list[str] = []
        self._forms: list[tuple[dict[str, str], list[tuple[str, str]]]] = []
        self._open_form: list[tuple[str, str]] | None = None
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.elements.append((tag, given))
        if tag in ("td", "th", "dd", "dt", "li", "br", "option"):
            # To the eye they stand apart.
            self._text.append(" ")
        if tag == "form":
            self._open_form = []
            self._forms.append((given, self._open_form))
        elif tag == "input" and self._open_form is not None and given.get("type") == "hidden":
            self._open_form.append((given["name"], given.get("value", "")))

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._open_form = None

    def handle_data(self, data: str) -> None:
        self._text.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self._text).split())

    def all(self, tag: str) -> list[dict[str, str]]:
        return [given for name, given in self.elements if name == tag]

    def addresses(self) -> list[str]:
        """Whatever leads somewhere or loads something."""
        names = ("href", "src", "action", "formaction", "hx-get", "hx-post", "data-stream", "poster", "srcset")
        return [given[name] for _, given in self.elements for name in names if name in given]

    def posts(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """The forms that do something, but for signing out: where they go, and what they hide."""
        found = [(given["action"], fields) for given, fields in self._forms if given.get("method") == "post"]
        return [(action, fields) for action, fields in found if not action.endswith("ui/logout")]

    @property
    def mark(self) -> str:
        """What the forms of this page carry."""
        return next(given["value"] for given in self.all("input") if given.get("name") == "mark")


def page(response: httpx.Response) -> Page:
    """The page of an answer, whatever its status; it is HTML with the headers that all pages have."""
    assert response.headers["content-type"] == "text/html; charset=utf-8", response
    check_headers(response)
    return Page(response.text)


def check_headers(response: httpx.Response) -> None:
    found = {name: response.headers.get(name) for name in HEADERS}
    assert found == HEADERS, response.url


# ── People ──


class Person:
    """A browser: cookies, and forms as pages have them."""

    def __init__(self, http: httpx.AsyncClient, key_id: str) -> None:
        self.http = http
        self.key_id = key_id
        self._mark: str | None = None

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self.http.get(path, headers={k.replace("_", "-"): v for k, v in headers.items()})

    async def see(self, path: str) -> Page:
        response = await self.get(path)
        assert response.status_code == 200, response.text
        return page(response)

    async def mark(self) -> str:
        """It is the same on all pages of a session."""
        if self._mark is None:
            self._mark = (await self.see("/ui/jobs")).mark
        return self._mark

    async def post(
        self, path: str, fields: Sequence[tuple[str, str]] | Mapping[str, str] = (), *, mark: str | None = ""
    ) -> httpx.Response:
        """A form; with the mark of this session unless given, None is none."""
        given = list(fields.items() if isinstance(fields, Mapping) else fields)
        if mark is not None:
            given.append(("mark", mark or await self.mark()))
        return await self.http.post(path, content=urlencode(given).encode(), headers={"content-type": FORM})

    async def press(self, response_to: str, action: str, **more: str) -> httpx.Response:
        """Send the one form of a page whose address ends so, as it stands there."""
        found = [one for one in (await self.see(response_to)).posts() if one[0].endswith(action)]
        assert len(found) == 1, (action, found)
        address, fields = found[0]
        return await self.post(urljoin(response_to, address), [*fields, *more.items()], mark=None)

    async def confirm(self, asking: httpx.Response) -> httpx.Response:
        """Say yes on a page that asks: send its one form as it stands there."""
        assert asking.status_code == 200, asking.text
        ((action, fields),) = page(asking).posts()
        return await self.post(urljoin(str(asking.url), action), fields, mark=None)

    async def follow(self, response: httpx.Response) -> Page:
        """The page that a redirect leads to: by an address that is relative to the one that was asked."""
        assert response.status_code == 303, response.text
        where = response.headers["location"]
        assert not where.startswith(("/", "http", "\\")), where
        return await self.see(urljoin(str(response.url), where))


class House:
    """One server without a port, and people who look at it."""

    def __init__(self, server: Server, engine: Engine, transport: httpx.ASGITransport) -> None:
        self.server = server
        self.engine = engine
        self._transport = transport
        self._people: list[httpx.AsyncClient] = []

    def client(self, base: str = "http://localhost") -> httpx.AsyncClient:
        made = httpx.AsyncClient(transport=self._transport, base_url=base)
        self._people.append(made)
        return made

    def stranger(self) -> Person:
        return Person(self.client(), "")

    async def key(self, *scopes: Scope, name: str = "a test") -> tuple[str, str]:
        """The id and the text of a new key."""
        key, token = await Keys(self.engine).create(name, frozenset(scopes or (Scope.ADMIN,)))
        return key.id, token

    async def person(self, *scopes: Scope, name: str = "a test", base: str = "http://localhost") -> Person:
        """Somebody who has signed in; an operator unless the scopes say otherwise."""
        id, token = await self.key(*scopes, name=name)
        person = Person(self.client(base), id)
        response = await person.post("/ui/login", {"key": token}, mark=None)
        assert response.status_code == 303, response.text
        return person

    async def close(self) -> None:
        for client in self._people:
            await client.aclose()


@contextlib.asynccontextmanager
async def house(
    url: str, *, engine: Engine | None = None, auth: bool = True, open_dashboard: bool = False, **settings: Any
) -> AsyncIterator[House]:
    """The whole site in this process."""
    chosen = Settings(url=url, port=0, **settings)
    async with engine or engine_for(chosen) as opened:
        server = Server(opened, chosen, auth=auth, open_dashboard=open_dashboard)
        await server.api.start()
        made = House(server, opened, httpx.ASGITransport(app=Site(server.api, server.dashboard)))
        try:
            yield made
        finally:
            await made.close()
            await server.dashboard.close()
            await server.api.stop()


# ── What is stored ──


async def enqueued(engine: Engine, type: str = "work", **fields: Any) -> UUID:
    (answer,) = await engine.enqueue([NewJob(type, **fields)])
    return answer.id


async def leased(engine: Engine, queue: str = "default", worker: str = "w1") -> Leased:
    """The next job of a queue, taken by a worker."""
    batch = await engine.lease([queue], 1, WorkerRef(worker, uuid4()))
    (one,) = batch.leases
    return one


async def settled(engine: Engine, taken: Leased, outcome: Outcome) -> Settled:
    (answer,) = await engine.settle([Settlement(taken.lease, outcome)])
    assert isinstance(answer, Settled), answer
    return answer


async def dead(
    engine: Engine, message: str = "broken", *, queue: str = "default", error: str = "ValueError"
) -> UUID:
    """A job that died of this."""
    id = await enqueued(engine, queue=queue)
    taken = await leased(engine, queue)
    assert taken.job.id == id, "the queue was not empty"
    answer = await settled(engine, taken, Failed(JobError(error, message, "Traceback: it fell"), retry=False))
    assert answer.state is State.DEAD
    return id


async def in_every_state(engine: Engine) -> dict[State, UUID]:
    """A job in each state that a job can be put into, each in a queue of its name."""
    made = {State.DEAD: await dead(engine, queue="dead")}
    for state in (State.SUCCEEDED, State.RETRYING, State.RUNNING):
        made[state] = await enqueued(engine, queue=state.value)
        taken = await leased(engine, state.value)
        if state is State.SUCCEEDED:
            await settled(engine, taken, Done(b'{"sum":42}'))
        elif state is State.RETRYING:
            await settled(engine, taken, Failed(JobError("OSError", "the line is busy"), retry_after=600.0))
    made[State.QUEUED] = await enqueued(engine, queue="queued")
    made[State.SCHEDULED] = await enqueued(engine, queue="scheduled", delay=3_600.0)
    made[State.CANCELLED] = await enqueued(engine, queue="cancelled")
    await engine.cancel([made[State.CANCELLED]])
    found = await engine.get(list(made.values()))
    assert [job.state for job in found if job is not None] == list(made), "each is what it is called"
    return made


async def with_worker(engine: Engine, id: str = "w1", *, queues: tuple[str, ...] = ("default",)) -> None:
    await engine.report_worker(WorkerInfo(id, "host", 42, "1.0", queues, (), slots=4, running=1, rss_bytes=2**26))


async def with_schedule(engine: Engine, name: str = "nightly") -> None:
    await engine.put_schedule(NewSchedule(name=name, cron="0 7 * * *", type="report", queue="reports"))


async def state_of(engine: Engine, id: UUID) -> State:
    (job,) = await engine.get([id])
    assert job is not None
    return job.state


async def noted(engine: Engine) -> list[tuple[str, str, str, int | None]]:
    """Who did what to what, the newest first, and to how many."""
    return [(one.actor, one.action, one.target, one.count) for one in await engine.actions()]
