"""Who comes in: with a key, with a link that is good once, and for how long; everybody else stays outside."""

from __future__ import annotations

from http.cookies import SimpleCookie
from urllib.parse import urljoin

import httpx
import pytest

from ropeway.core.access import Scope
from ropeway.dashboard.sessions import COOKIE, LINK_SECONDS, SESSION_SECONDS
from ropeway.engines.memory import MemoryEngine
from ropeway.runtime.clock import ManualClock
from ropeway.service import sessions
from ropeway.service.access import FIRST_ID, Principal
from ropeway.service.keys import Keys
from tests.api.routes_kit import until
from tests.dashboard.dashboard_kit import PAGES, House, Page, check_headers, enqueued, house, page

EVERYWHERE = (*PAGES, "/ui/jobs/0198c0de-0000-7000-8000-000000000000", "/ui/jobs/nonsense", "/ui/live")


def cookie_of(response: httpx.Response) -> SimpleCookie:
    """The session that an answer begins."""
    made: SimpleCookie = SimpleCookie()
    for line in response.headers.get_list("set-cookie"):
        made.load(line)
    assert COOKIE in made, response.headers
    return made


def is_login(shown: Page) -> bool:
    return any(given.get("name") == "key" and given["type"] == "password" for given in shown.all("input"))


def with_cookie(there: House, value: str) -> httpx.AsyncClient:
    client = there.client()
    client.headers["cookie"] = f"{COOKIE}={value}"
    return client


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
            assert urljoin(f"https://proxy/prefix{path}", where) == "https://proxy/prefix/ui/login"
            assert response.content == b""
        assert is_login(await stranger.see("/ui/login"))


async def test_a_part_of_a_page_that_asks_for_itself_sends_the_whole_page_to_the_login(memory_store: str) -> None:
    """A redirect would put the login where the part was."""
    async with house(memory_store) as there:
        for path in EVERYWHERE:
            response = await there.stranger().get(path, hx_request="true")
            assert response.status_code == 204
            assert urljoin(f"https://proxy/prefix{path}", response.headers["hx-redirect"]).endswith(
                "/prefix/ui/login"
            )


# ── With a key ──


async def test_a_good_key_opens_a_session(any_store: str) -> None:
    async with house(any_store) as there:
        id, token = await there.key(Scope.READ)
        person = there.stranger()
        response = await person.post("/ui/login", {"key": f"  {token} "}, mark=None)
        cookie = cookie_of(response)[COOKIE]
        assert cookie["httponly"]
        assert cookie["samesite"] == "strict"
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
        assert cookie_of(response)[COOKIE]["secure"]
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
        good = person.http.cookies[COOKIE]
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
        assert (await with_cookie(there, good).get("/")).status_code == 200
        for text in forged:
            response = await with_cookie(there, str(text)).get("/")
            assert response.status_code == 303, text


async def test_a_session_of_another_store_is_none(memory_store: str) -> None:
    async with house(memory_store) as here, house(memory_store) as there:
        cookie = (await here.person()).http.cookies[COOKIE]
        assert (await with_cookie(here, cookie).get("/")).status_code == 200
        assert (await with_cookie(there, cookie).get("/")).status_code == 303


async def test_a_session_ends_after_half_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "LOOK_SECONDS", 0.0)
    clock = ManualClock()
    async with house("memory://", engine=MemoryEngine(clock=clock)) as there:
        cookie = (await there.person()).http.cookies[COOKIE]
        clock.advance(SESSION_SECONDS - 1)
        assert (await with_cookie(there, cookie).get("/")).status_code == 200
        clock.advance(1)
        assert (await with_cookie(there, cookie).get("/")).status_code == 303


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
        assert COOKIE not in person.http.cookies
        assert (await person.get("/")).status_code == 303


async def test_a_session_that_was_signed_out_is_over_for_whoever_kept_its_cookie(any_store: str) -> None:
    async with house(any_store) as there:
        person, other = await there.person(), await there.person()
        cookie = person.http.cookies[COOKIE]
        assert (await with_cookie(there, cookie).get("/")).status_code == 200
        await person.post("/ui/logout")
        for path in EVERYWHERE:
            response = await with_cookie(there, cookie).get(path)
            assert response.status_code == 303, path
            assert response.headers["location"].endswith("ui/login")
        await other.see("/")


async def test_a_session_that_was_signed_out_is_over_at_the_other_servers_of_the_store(
    sqlite_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "LOOK_SECONDS", 0.0)
    async with house(sqlite_store) as here, house(sqlite_store) as there:
        person = await here.person()
        cookie = person.http.cookies[COOKIE]
        assert (await with_cookie(there, cookie).get("/")).status_code == 200
        await person.post("/ui/logout")
        assert (await with_cookie(there, cookie).get("/")).status_code == 303


# ── By a link ──


async def test_a_link_is_good_once(any_store: str) -> None:
    async with house(any_store) as there:
        link = await link_of(there)
        person = there.stranger()
        response = await person.get(link)
        assert cookie_of(response)[COOKIE]["httponly"]
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


async def test_a_link_of_a_key_that_may_not_look_opens_nothing(memory_store: str) -> None:
    async with house(memory_store) as there:
        id, _ = await there.key(Scope.ENQUEUE)
        ticket = await there.server.api.deps.tickets.issue(Principal("", id, "", frozenset()))
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
