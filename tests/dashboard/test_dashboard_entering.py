"""Who comes in: with a key, with a link that is good once, and for how long; everybody else stays outside."""

from __future__ import annotations

from http.cookies import Morsel, SimpleCookie
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

import httpx
import pytest

from ropeway.api.below import Below
from ropeway.asgi import Site
from ropeway.core.access import Scope
from ropeway.core.errors import Unauthenticated
from ropeway.dashboard.cookies import NOTICE, SESSION
from ropeway.dashboard.sessions import LINK_SECONDS, SESSION_SECONDS
from ropeway.engines.memory import MemoryEngine
from ropeway.runtime.clock import ManualClock
from ropeway.service import sessions
from ropeway.service.access import FIRST_ID, Principal
from ropeway.service.keys import Keys
from ropeway.service.sessions import LINK
from tests.api.routes_kit import until
from tests.dashboard.dashboard_kit import PAGES, House, Page, Person, check_headers, enqueued, house, page

EVERYWHERE = (*PAGES, "/ui/jobs/0198c0de-0000-7000-8000-000000000000", "/ui/jobs/nonsense", "/ui/live")


def cookie_of(response: httpx.Response) -> Morsel[str]:
    """The session that an answer begins."""
    made: SimpleCookie = SimpleCookie()
    for line in response.headers.get_list("set-cookie"):
        made.load(line)
    (found,) = [one for name, one in made.items() if name.startswith(SESSION)]
    return found


def session_of(person: Person) -> tuple[str, str]:
    """The name and the value of the cookie that keeps somebody signed in."""
    (found,) = [(one.name, one.value or "") for one in person.http.cookies.jar if one.name.startswith(SESSION)]
    return found


def is_login(shown: Page) -> bool:
    return any(given.get("name") == "key" and given["type"] == "password" for given in shown.all("input"))


def with_cookie(there: House, name: str, value: str) -> httpx.AsyncClient:
    client = there.client()
    client.headers["cookie"] = f"{name}={value}"
    return client


def led_to_login(response: httpx.Response) -> bool:
    return response.status_code == 303 and urlsplit(response.headers["location"]).path.endswith("ui/login")


async def link_of(there: House) -> str:
    """The link that a first start prints."""
    assert await there.server.api.deps.access.create_first_key() is not None
    link = await there.server.dashboard.sessions.first_link()
    assert link is not None
    return link


# ── Outside ──


async def test_without_a_session_every_page_leads_to_the_login(local_store: str) -> None:
    async with house(local_store) as there:
        await enqueued(there.engine, "secret.work")
        stranger = there.stranger()
        for path in EVERYWHERE:
            response = await stranger.get(path)
            check_headers(response)
            assert response.status_code == 303
            where = response.headers["location"]
            assert not where.startswith(("/", "http")), where
            asked = urljoin(f"https://proxy/prefix{path}", where)
            assert asked.partition("?")[0] == "https://proxy/prefix/ui/login"
            assert response.content == b""
        assert is_login(await stranger.see("/ui/login"))


async def test_a_part_of_a_page_that_asks_for_itself_sends_the_whole_page_to_the_login(memory_store: str) -> None:
    """A redirect would put the login where the part was."""
    async with house(memory_store) as there:
        for path in EVERYWHERE:
            response = await there.stranger().get(path, hx_request="true")
            assert response.status_code == 204
            where = urlsplit(urljoin(f"https://proxy/prefix{path}", response.headers["hx-redirect"]))
            assert where.path == "/prefix/ui/login"


# ── To where one wanted to go ──

ID = "0198c0de-0000-7000-8000-000000000000"


@pytest.mark.parametrize("path", ["/ui/jobs?queue=mails&error=a%26b+c", f"/ui/jobs/{ID}", "/ui/audit", "/"])
async def test_signing_in_leads_to_the_page_that_was_asked_for(memory_store: str, path: str) -> None:
    """A link to a job, sent by somebody, is worth nothing if it ends at the overview."""
    async with house(memory_store) as there:
        _, token = await there.key()
        person = there.stranger()
        sent = await person.get(path)
        assert led_to_login(sent)
        login = urljoin(str(sent.url), sent.headers["location"])
        response = await person.get(login)
        for key, status in (("wrong", 401), (token, 303)):
            ((action, fields),) = page(response).posts()
            address = urljoin(str(response.url), action)
            response = await person.post(address, [*fields, ("key", key)], mark=None)
            assert response.status_code == status
        assert urljoin(str(response.url), response.headers["location"]) == f"http://localhost{path}"


@pytest.mark.parametrize(
    "wanted",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example",
        "javascript:alert(1)",
        "ui/../../evil",
        "ui/jobs/%2e%2e/%2E%2e/evil",
        "ui/jobs//evil.example",
        "ui/jobs/.\t./x",
        "ui/jobs\r\nSet-Cookie: a=b",
        "ui/jobs?error=ä",
        f"ui/jobs?error={'x' * 2_000}",
        "ui/jobsome",
        "ui/enter?ticket=x",
        "ui/login?next=ui/jobs",
        "ui/live",
        "ui/history",
        "UI/jobs",
    ],
)
async def test_signing_in_leads_nowhere_else(memory_store: str, wanted: str) -> None:
    async with house(memory_store) as there:
        _, token = await there.key()
        person = there.stranger()
        login = await person.see(f"/ui/login?{urlencode({'next': wanted})}")
        assert [fields for _, fields in login.posts()] == [[]]
        response = await person.post("/ui/login", {"key": token, "next": wanted}, mark=None)
        assert response.status_code == 303
        assert response.headers["location"] == "../"
        assert "a=b" not in str(response.headers)


async def test_only_pages_are_come_back_to(memory_store: str) -> None:
    """Not what scripts ask for, and not what a form was to do."""
    async with house(memory_store) as there:
        stranger = there.stranger()
        for response in (
            await stranger.get("/ui/live"),
            await stranger.get("/ui/history?range=15m"),
            await stranger.post("/ui/queues/default/pause", mark="x"),
        ):
            assert led_to_login(response)
            assert parse_qsl(urlsplit(response.headers["location"]).query) == []


# ── Servers beside one another ──


async def test_servers_of_two_stores_on_one_host_keep_their_own_sessions(memory_store: str) -> None:
    """Browsers do not tell ports apart."""
    async with house(memory_store) as here, house(memory_store) as there:
        cookies = [session_of(await one.person()) for one in (here, there)]
        assert cookies[0][0] != cookies[1][0]
        for one in (here, there):
            client = one.client()
            client.headers["cookie"] = "; ".join(f"{name}={value}" for name, value in cookies)
            assert (await client.get("/")).status_code == 200


async def test_servers_of_one_store_share_their_sessions(sqlite_store: str) -> None:
    async with house(sqlite_store) as here, house(sqlite_store) as there:
        assert (await with_cookie(there, *session_of(await here.person())).get("/")).status_code == 200


async def test_below_a_path_of_the_host_cookies_stay_below_it(memory_store: str) -> None:
    async with house(memory_store) as there:
        below = httpx.ASGITransport(app=Below(Site(there.server.api, there.server.dashboard), "/tools/ropeway"))
        _, token = await there.key()
        await enqueued(there.engine)
        names = set()
        for prefix, path in (("/tools/ropeway", "/tools/ropeway"), ("", "/")):
            async with httpx.AsyncClient(transport=below, base_url="http://localhost") as client:
                person = Person(client, "")
                response = await person.post(f"{prefix}/ui/login", {"key": token}, mark=None)
                assert cookie_of(response)["path"] == path
                names.add(cookie_of(response).key)
                mark = (await person.see(f"{prefix}/ui/jobs")).mark
                done = await person.post(f"{prefix}/ui/queues/default/pause", mark=mark)
                assert {one.path for one in client.cookies.jar} == {path}
                assert {one.name.rpartition("_")[0] for one in client.cookies.jar} == {SESSION, NOTICE}
                shown = await person.follow(done)
                assert "is paused" in shown.text
                assert (await person.post(f"{prefix}/ui/logout", mark=mark)).status_code == 303
                assert not list(client.cookies.jar)
        assert len(names) == 2, "one of the whole host would hide the other"


# ── With a key ──


async def test_a_good_key_opens_a_session(any_store: str) -> None:
    async with house(any_store) as there:
        id, token = await there.key(Scope.READ)
        person = there.stranger()
        response = await person.post("/ui/login", {"key": f"  {token} "}, mark=None)
        cookie = cookie_of(response)
        assert cookie["httponly"]
        assert cookie["samesite"] == "lax", "a link from elsewhere finds its reader signed in"
        assert response.headers["cross-origin-opener-policy"] == "same-origin", "and its site sees nothing of it"
        assert cookie["path"] == "/"
        assert int(cookie["max-age"]) == SESSION_SECONDS
        assert not cookie["secure"], "over plain HTTP a browser would not send it"
        assert token not in str(response.headers)
        assert token.rpartition("_")[2] not in cookie.value
        shown = await person.follow(response)
        assert "Sign out a test" in shown.text
        assert id


@pytest.mark.parametrize(
    "settings", [{"behind_proxy": True}, {"tls_cert": "cert.pem", "tls_key": "key.pem"}], ids=["proxy", "tls"]
)
async def test_over_tls_all_cookies_travel_over_nothing_else(
    memory_store: str, settings: dict[str, object]
) -> None:
    async with house(memory_store, **settings) as there:
        _, token = await there.key()
        await enqueued(there.engine)
        person = await there.person(base="https://localhost")
        response = await there.stranger().post("/ui/login", {"key": token}, mark=None)
        assert cookie_of(response)["secure"]
        for path, fields in (("/ui/queues/default/pause", {}), ("/ui/logout", {})):
            lines = (await person.post(path, fields)).headers.get_list("set-cookie")
            assert lines
            assert all("secure" in line.lower() for line in lines), lines


@pytest.mark.parametrize("key", ["", "nonsense", "rw_live_2222_2222", "ä" * 50, "\ud7ff", "x" * 10_000])
async def test_a_wrong_key_opens_nothing(memory_store: str, key: str) -> None:
    async with house(memory_store) as there:
        response = await there.stranger().post("/ui/login", {"key": key}, mark=None)
        assert response.status_code == 401
        assert "set-cookie" not in response.headers
        shown = page(response)
        assert "That key is not good" in shown.text
        assert is_login(shown)


async def test_a_revoked_key_opens_nothing(memory_store: str) -> None:
    async with house(memory_store) as there:
        id, token = await there.key()
        await Keys(there.engine).revoke(id)
        assert (await there.stranger().post("/ui/login", {"key": token}, mark=None)).status_code == 401


@pytest.mark.parametrize("scopes", [(Scope.ENQUEUE,), (Scope.WORK,), (Scope.ENQUEUE, Scope.WORK)])
async def test_a_key_that_may_not_look_opens_nothing(memory_store: str, scopes: tuple[Scope, ...]) -> None:
    async with house(memory_store) as there:
        _, token = await there.key(*scopes)
        response = await there.stranger().post("/ui/login", {"key": token}, mark=None)
        assert response.status_code == 403
        assert "set-cookie" not in response.headers
        assert "it needs the scope read" in page(response).text


# ── The session ──


async def test_a_forged_session_is_none(local_store: str) -> None:
    async with house(local_store) as there:
        person = await there.person()
        name, good = session_of(person)
        deps = there.server.api.deps
        other_purpose = await deps.seals.seal(f'["{person.key_id}","9999-01-01T00:00:00Z","x"]', "something else")
        ticket = await deps.tickets.issue(Principal("", person.key_id, "", frozenset()))
        forged = [
            good[:-1],
            good[1:],
            good[::-1],
            good.swapcase(),
            "",
            "x",
            "a.b",
            good + "A",
            other_purpose,
            ticket,
        ]
        assert (await with_cookie(there, name, good).get("/")).status_code == 200
        for text in forged:
            response = await with_cookie(there, name, str(text)).get("/")
            assert response.status_code == 303, text


async def test_a_session_of_another_store_is_none(memory_store: str) -> None:
    async with house(memory_store) as here, house(memory_store) as there:
        name, cookie = session_of(await here.person())
        other, _ = session_of(await there.person())
        assert (await with_cookie(here, name, cookie).get("/")).status_code == 200
        assert (await with_cookie(there, other, cookie).get("/")).status_code == 303


async def test_a_session_ends_after_half_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "LOOK_SECONDS", 0.0)
    clock = ManualClock()
    async with house("memory://", engine=MemoryEngine(clock=clock)) as there:
        cookie = session_of(await there.person())
        clock.advance(SESSION_SECONDS - 1)
        assert (await with_cookie(there, *cookie).get("/")).status_code == 200
        clock.advance(1)
        assert (await with_cookie(there, *cookie).get("/")).status_code == 303


@pytest.mark.limit(30)
async def test_a_revoked_key_loses_its_sessions_within_seconds(memory_store: str) -> None:
    async with house(memory_store) as there:
        person, other = await there.person(), await there.person()
        await person.see("/")
        await Keys(there.engine).revoke(person.key_id)

        async def outside() -> bool:
            return (await person.get("/ui/jobs")).status_code == 303

        await until(outside, within=5.0)
        await other.see("/ui/jobs")


async def test_whoever_signs_out_is_outside(local_store: str) -> None:
    async with house(local_store) as there:
        person = await there.person()
        mark = await person.mark()
        response = await person.post("/ui/logout", mark=mark)
        assert response.status_code == 303
        assert response.headers["location"] == "../ui/login"
        assert not person.http.cookies
        assert (await person.get("/")).status_code == 303


async def test_a_session_that_was_signed_out_is_over_for_whoever_kept_its_cookie(any_store: str) -> None:
    async with house(any_store) as there:
        person, other = await there.person(), await there.person()
        cookie = session_of(person)
        assert (await with_cookie(there, *cookie).get("/")).status_code == 200
        await person.post("/ui/logout")
        for path in EVERYWHERE:
            response = await with_cookie(there, *cookie).get(path)
            assert response.status_code == 303, path
            assert led_to_login(response)
        await other.see("/")


async def test_a_session_that_was_signed_out_is_over_at_the_other_servers_of_the_store(
    sqlite_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "LOOK_SECONDS", 0.0)
    async with house(sqlite_store) as here, house(sqlite_store) as there:
        person = await here.person()
        cookie = session_of(person)
        assert (await with_cookie(there, *cookie).get("/")).status_code == 200
        await person.post("/ui/logout")
        assert (await with_cookie(there, *cookie).get("/")).status_code == 303


# ── By a link ──


async def test_a_link_is_good_once(any_store: str) -> None:
    async with house(any_store) as there:
        link = await link_of(there)
        person = there.stranger()
        response = await person.get(link)
        assert cookie_of(response)["httponly"]
        shown = await person.follow(response)
        assert "operator" in shown.text
        again = await there.stranger().get(link)
        assert again.status_code == 401
        assert "set-cookie" not in again.headers
        assert "used already" in page(again).text


async def test_a_link_is_good_for_minutes() -> None:
    clock = ManualClock()
    async with house("memory://", engine=MemoryEngine(clock=clock)) as there:
        link = await link_of(there)
        clock.advance(LINK_SECONDS)
        assert (await there.stranger().get(link)).status_code == 401


@pytest.mark.parametrize("query", ["", "?ticket=", "?ticket=nonsense", "?ticket=%00", "?other=1"])
async def test_a_forged_link_opens_nothing(memory_store: str, query: str) -> None:
    async with house(memory_store) as there:
        response = await there.stranger().get(f"/ui/enter{query}")
        assert response.status_code == 401
        assert "set-cookie" not in response.headers
        assert is_login(page(response))


async def test_what_a_key_can_ask_for_signs_nobody_in(memory_store: str) -> None:
    """Whoever has a key could lead others to a link that signs them in under it, and read what they do there."""
    async with house(memory_store) as there:
        link = await link_of(there)
        id, _ = await there.key()
        tickets = there.server.api.deps.tickets
        stream = await tickets.issue(Principal("", id, "", frozenset()))
        response = await there.stranger().get(f"/ui/enter?ticket={stream}")
        assert response.status_code == 401
        assert "set-cookie" not in response.headers
        assert (await tickets.redeem(stream)).key_id == id, "it is still good for what it was made for"
        with pytest.raises(Unauthenticated):
            await tickets.redeem(link.partition("ticket=")[2])


async def test_a_link_of_a_key_that_may_not_look_opens_nothing(memory_store: str) -> None:
    async with house(memory_store) as there:
        id, _ = await there.key(Scope.ENQUEUE)
        ticket = await there.server.api.deps.tickets.issue(Principal("", id, "", frozenset()), use=LINK)
        response = await there.stranger().get(f"/ui/enter?ticket={ticket}")
        assert response.status_code == 403
        assert "set-cookie" not in response.headers


async def test_there_is_no_link_without_a_first_key_that_is_good(memory_store: str) -> None:
    async with house(memory_store) as there:
        sessions = there.server.dashboard.sessions
        assert await sessions.first_link() is None
        link = await link_of(there)
        await Keys(there.engine).revoke(FIRST_ID)
        assert await sessions.first_link() is None
        assert (await there.stranger().get(link)).status_code == 401


# ── From elsewhere ──


@pytest.mark.parametrize("auth", [True, False])
async def test_a_request_for_another_host_is_refused(memory_store: str, auth: bool) -> None:
    """A name that was made to lead here must not open the pages, least of all where nobody signs in."""
    async with house(memory_store, auth=auth) as there:
        await enqueued(there.engine, "secret.work")
        for path in (*PAGES, "/ui/login", "/ui/nope"):
            for host in ("evil.example", "localhost.evil.example", ""):
                response = await there.stranger().get(path, host=host)
                assert response.status_code == 421, (path, host)
                assert "secret.work" not in response.text
                page(response)


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost:81", "http://localhost.evil"]
)
async def test_a_form_of_another_site_is_refused(memory_store: str, origin: str) -> None:
    async with house(memory_store, auth=False) as there:
        await enqueued(there.engine)
        person = there.stranger()
        person.http.headers["origin"] = origin
        own = there.stranger()
        mark = await own.mark()
        for path, fields in (("/ui/queues/default/pause", {}), ("/ui/login", {"key": "x"})):
            assert (await person.post(path, fields, mark=mark)).status_code == 403
        (stats,) = await there.engine.queue_stats()
        assert not stats.paused
        own.http.headers["origin"] = "http://localhost"
        assert (await own.post("/ui/queues/default/pause", mark=mark)).status_code == 303


# ── Where nobody signs in ──


async def test_an_open_dashboard_asks_nobody_on_loopback_and_the_api_still_does(memory_store: str) -> None:
    async with house(memory_store, open_dashboard=True) as there:
        await enqueued(there.engine)
        person = there.stranger()
        for path in PAGES:
            shown = await person.see(path)
            assert "Sign out" not in shown.text
        await person.follow(await person.press("/ui/queues", "default/pause"))
        assert [one.actor for one in await there.engine.actions()] == ["anybody (none)"]
        assert (await person.post("/ui/queues/default/resume", mark=None)).status_code == 403, (
            "forms keep their mark"
        )
        assert (await person.get("/v1/queues")).status_code == 401


async def test_an_open_dashboard_is_not_open_beyond_loopback(memory_store: str) -> None:
    async with house(memory_store, open_dashboard=True, host="0.0.0.0", behind_proxy=True) as there:
        assert not there.server.dashboard.sessions.open
        for path in EVERYWHERE:
            assert (await there.stranger().get(path)).status_code == 303
