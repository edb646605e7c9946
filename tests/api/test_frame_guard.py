"""Before anything else: headers, hosts, origins, methods, request ids."""

from __future__ import annotations

import asyncio
import re

import pytest

from ropeway.api.guard import MAX_HEADER_BYTES, MAX_HEADERS
from ropeway.api.protocol import MAX_HEAD_BYTES
from tests.api.frame_kit import frame

ALWAYS = {"cache-control": "no-store", "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}


@pytest.mark.parametrize("path", ["/open", "/nowhere", "/things", "/fail/bug"])
async def test_every_answer_has_an_id_and_says_what_browsers_must_not_do(path: str) -> None:
    async with frame() as served:
        for method in ("GET", "PUT", "OPTIONS"):
            answer = await served.ask(method, path)
            assert re.fullmatch(r"[0-9a-f]{24}", answer.headers["x-request-id"])
            assert answer.headers.items() >= ALWAYS.items()
            assert not any(name.startswith("access-control") for name in answer.headers)
            assert "server" not in answer.headers


@pytest.mark.parametrize("given", ["a", "A.b_c-9", "x" * 128])
async def test_a_request_keeps_the_id_it_came_with(given: str) -> None:
    async with frame() as served:
        good = await served.ask("GET", "/open", headers={"X-Request-Id": given})
        bad = await served.ask("GET", "/nowhere", headers={"X-Request-Id": given})
    assert good.headers["x-request-id"] == bad.headers["x-request-id"] == bad.json["request_id"] == given


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "ä", "<b>", "a/b"])
async def test_an_id_that_cannot_be_shown_is_replaced(given: str) -> None:
    async with frame() as served:
        answer = await served.ask("GET", "/open", headers={"X-Request-Id": given})
    assert re.fullmatch(r"[0-9a-f]{24}", answer.headers["x-request-id"])


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8000", "[::1]:80", "jobs.example.com."])
async def test_a_request_for_this_host_is_taken(host: str) -> None:
    async with frame(host_names="jobs.example.com") as served:
        assert (await served.ask("GET", "/open", headers={"Host": host})).status == 204


@pytest.mark.parametrize("auth", [True, False])
@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "10.0.0.1", "", "localhost:a", None])
async def test_a_request_for_another_host_is_not(host: str | None, auth: bool) -> None:
    async with frame(auth=auth) as served:
        answer = await served.ask("GET", "/open", headers={"Host": host})
    # Without any Host it is no HTTP/1.1 to some parsers, and for nobody to all.
    assert (answer.status, answer.code) in [(421, "wrong_host"), (400, "bad_request")]


async def test_two_hosts_are_none() -> None:
    async with frame() as served, served.connected() as line:
        await line.send(b"GET /open HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n")
        assert (await line.answer()).code == "wrong_host"


@pytest.mark.parametrize("auth", [True, False])
@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:3000", "https://localhost.evil"]
)
async def test_a_page_of_another_origin_is_refused_with_or_without_keys(origin: str, auth: bool) -> None:
    async with frame(auth=auth) as served:
        for method, path in (("GET", "/open"), ("POST", "/things"), ("OPTIONS", "/things")):
            answer = await served.ask(method, path, b"{}", headers={"Origin": origin})
            assert (answer.status, answer.code) == (403, "bad_origin")
            assert not any(name.startswith("access-control") for name in answer.headers)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_page_of_its_own_origin_is_served(scheme: str) -> None:
    async with frame() as served:
        headers = {"Host": "localhost:8000", "Origin": f"{scheme}://localhost:8000"}
        assert (await served.ask("GET", "/open", headers=headers)).status == 204


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/things", "GET, HEAD, POST"),
        ("TRACE", "/things", "GET, HEAD, POST"),
        ("OPTIONS", "/open", "GET, HEAD"),
        ("GET", "/things/x", "DELETE, PUT"),
        ("HEAD", "/things/x", "DELETE, PUT"),
        ("PATCH", "/things/batch", "POST"),
    ],
)
async def test_a_method_that_a_path_does_not_take(method: str, path: str, allowed: str) -> None:
    async with frame() as served:
        answer = await served.ask(method, path)
    assert (answer.status, answer.headers["allow"]) == (405, allowed)
    if method != "HEAD":
        assert answer.code == "method_not_allowed"


async def test_head_is_get_without_its_body() -> None:
    async with frame() as served:
        get = await served.ask("GET", "/things?limit=3")
        async with served.connected() as line:
            await line.send(await served.head("HEAD", "/things?limit=3"), await served.head("GET", "/open"))
            head = await line.answer("HEAD")
            after = await line.answer()
    assert (head.status, head.headers["content-length"]) == (200, str(len(get.body)))
    assert after.status == 204, "nothing of a body stood between the two answers"


@pytest.mark.parametrize(
    "path", ["/thing", "/things/", "//things", "/things/a/raw/b", "/things//raw", "/%2e%2e/things", "*"]
)
async def test_a_path_that_is_none(path: str) -> None:
    async with frame() as served:
        answer = await served.ask("GET", path)
    assert (answer.status, answer.code) == (404, "not_found")


async def test_an_escaped_slash_does_not_end_a_part_of_the_path() -> None:
    async with frame() as served:
        answer = await served.ask("DELETE", "/things/a%2Fb%20%C3%A4")
        assert answer.json["params"] == {"name": "a/b ä"}
        assert (await served.ask("DELETE", "/things/%FF")).code == "invalid_field"


# ── Too much of a head ──


async def test_as_many_headers_as_are_accepted_and_one_more() -> None:
    async with frame() as served:
        more = {f"X-{n}": "1" for n in range(MAX_HEADERS - 2)}  # besides Host and Authorization
        assert (await served.ask("GET", "/open", headers=more)).status == 204
        answer = await served.ask("GET", "/open", headers={**more, "X-One": "1"})
        assert (answer.status, answer.code) == (431, "headers_too_large")
        assert (await served.ask("GET", "/open")).status == 204


@pytest.mark.parametrize("size", [MAX_HEADER_BYTES, 65_536, 300_000])
async def test_a_header_that_is_too_large(size: int) -> None:
    async with frame() as served:
        answer = await served.ask("GET", "/open", headers={"X-Large": "x" * size})
        assert (answer.status, answer.code) == (431, "headers_too_large")
        assert "x-request-id" in answer.headers
        assert (await served.ask("GET", "/open")).status == 204


async def test_headers_without_end_are_cut_off() -> None:
    async with frame() as served, served.connected() as line:
        await line.send(b"GET /open HTTP/1.1\r\nHost: localhost\r\nX-Large: ")
        sent = 0
        while not line.writer.is_closing() and sent <= 4 * MAX_HEAD_BYTES:
            await line.send(b"x" * 16_384)
            sent += 16_384
            await asyncio.sleep(0)
        answer = await line.answer()
        assert answer.status == 431
        assert await line.ended()


@pytest.mark.parametrize(
    "sent", [b"\r\n\r\n", b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /\x00 HTTP/1.1\r\n\r\n"]
)
async def test_what_is_no_http_gets_a_problem_too(sent: bytes) -> None:
    async with frame() as served, served.connected() as line:
        await line.send(sent, b"FOO\x01BAR\r\n\r\n")
        answer = await line.answer()
        assert (answer.status, answer.code) == (400, "bad_request")
        assert answer.json["request_id"] == answer.headers["x-request-id"]
        assert await line.ended()


@pytest.mark.parametrize("method", [b"FOO", b"get", b"X-Y", b"PROPFIND"])
async def test_a_method_that_nobody_knows_is_not_allowed(method: bytes) -> None:
    async with frame() as served, served.connected() as line:
        await line.send(method + b" /open HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = await line.answer()
        assert (answer.status, answer.code) == (405, "method_not_allowed")
        assert "GET" in answer.headers["allow"]


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"http://localhost/open", 204),
        (b"HTTP://LOCALHOST:1/open", 204),
        (b"http://evil.example/open", 421),
        (b"http://localhost@evil.example/open", 421),
        (b"http://evil.example:80/open", 421),
    ],
)
async def test_a_host_in_the_target_is_the_one_that_counts(target: bytes, status: int) -> None:
    async with frame() as served, served.connected() as line:
        await line.send(b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await line.answer()).status == status


async def test_names_of_hosts_may_have_blanks_round_them() -> None:
    async with frame(host_names=" a.example , b.example,") as served:
        for host, status in (("a.example", 204), ("b.example", 204), ("c.example", 421)):
            assert (await served.ask("GET", "/open", headers={"Host": host})).status == status


async def test_a_head_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropeway.api.protocol.HEAD_SECONDS", 0.1)
    monkeypatch.setattr("ropeway.asgi.HEAD_SECONDS", 0.1)
    async with frame() as served, served.connected() as half, served.connected() as silent:
        await half.send(b"GET /open HTTP/1.1\r\nHost:")
        answer = await half.answer()
        assert (answer.status, answer.code) == (408, "request_timeout")
        assert await half.ended()
        assert await silent.ended()


async def test_a_connection_is_good_for_many_requests_refused_ones_too() -> None:
    body = b'{"name":"a"}'
    async with frame() as served, served.connected() as line:
        for _ in range(2):
            for method, path, token, status in (
                ("POST", "/things", "", 200),
                ("GET", "/nowhere", "", 404),
                ("POST", "/nowhere", "", 404),
                ("POST", "/things", None, 401),
                ("DELETE", "/things/batch", "", 405),
            ):
                await line.send(await served.head(method, path, body, token=token), body)
                answer = await line.answer()
                assert (answer.status, answer.headers.get("connection")) == (status, None)
