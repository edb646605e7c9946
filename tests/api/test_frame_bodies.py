"""Bodies and parameters: size, time, kind, and every field by its type, before a handler sees them."""

from __future__ import annotations

import asyncio
import http.client
import json
from contextlib import closing
from typing import Any

import pytest

from ropeway.api.reading import BATCH_BYTES, ROUND_A_PAYLOAD
from tests.api.frame_kit import Answer, frame

SMALL = {"max_payload_bytes": 1_000}
LIMIT = 1_000 + ROUND_A_PAYLOAD


def _thing(size: int) -> bytes:
    return b'{"name":"' + b"x" * (size - 11) + b'"}'


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


CHUNKED = {"Content-Length": None, "Content-Type": "application/json", "Transfer-Encoding": "chunked"}

# ── Size ──


async def test_a_body_as_large_as_may_be_and_one_byte_more() -> None:
    async with frame(**SMALL) as served:
        assert (await served.ask("POST", "/things", _thing(LIMIT))).status == 200
        answer = await served.ask("POST", "/things", _thing(LIMIT + 1))
    assert (answer.status, answer.code) == (413, "payload_too_large")


async def test_a_body_that_is_declared_too_large_is_refused_unread() -> None:
    async with frame(**SMALL) as served, served.connected() as line:
        await line.send(await served.head("POST", "/things", b"", headers={"Content-Length": str(LIMIT + 1)}))
        answer = await line.answer()
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        assert (await served.ask("GET", "/open")).status == 204


async def test_a_body_in_chunks_is_refused_at_the_limit() -> None:
    async with frame(**SMALL) as served, served.connected() as line:
        await line.send(await served.head("POST", "/things", headers=CHUNKED))
        for _ in range(LIMIT // 4_000 + 2):
            await line.send(_chunk(b" " * 4_000))
        answer = await line.answer()
        assert (answer.status, answer.code) == (413, "payload_too_large")
        assert await line.ended()


async def test_a_body_in_chunks_is_as_good_as_another() -> None:
    async with frame() as served, served.connected() as line:
        await line.send(await served.head("POST", "/things", headers=CHUNKED))
        for piece in (b'{"na', b'me":', b'"a"}'):
            await line.send(_chunk(piece))
        await line.send(b"0\r\n\r\n")
        assert (await line.answer()).json["body"]["name"] == "a"


async def test_a_batch_may_be_larger() -> None:
    body = b'{"jobs":[' + _thing(LIMIT) + b"]}"
    async with frame(**SMALL) as served:
        assert (await served.ask("POST", "/things/batch", body)).status == 201
        async with served.connected() as line:
            length = {"Content-Length": str(BATCH_BYTES + 1)}
            await line.send(await served.head("POST", "/things/batch", b"", headers=length))
            answer = await line.answer()
    assert (answer.status, answer.code) == (413, "batch_too_large")


async def test_a_client_that_sends_all_before_it_reads_still_gets_its_answer() -> None:
    """Most do. A connection that is closed while they send is an error to them, and the answer is never read."""
    body = b"x" * 3_000_000

    def ask(port: int, path: str, token: str) -> int:
        headers = {"Host": "localhost", "Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            connection.request("POST", path, body, headers)
            with connection.getresponse() as answer:
                return answer.status

    async with frame(**SMALL) as served:
        good = await served.token()
        for path, token, status in (("/things", good, 413), ("/nowhere", good, 404), ("/things", "bad", 401)):
            assert await asyncio.to_thread(ask, served.port, path, token) == status


async def test_a_body_that_nobody_asked_for_is_no_hindrance() -> None:
    async with frame() as served, served.connected() as line:
        for _ in range(2):
            await line.send(await served.head("DELETE", "/things/a", b"hello"), b"hello")
            assert (await line.answer()).status == 200


# ── Time ──


@pytest.mark.parametrize("start", [b"", b"{"])
async def test_a_body_that_stalls_is_not_waited_for(start: bytes) -> None:
    async with frame(patience=0.1) as served, served.connected() as line:
        await line.send(await served.head("POST", "/things", b"x" * 10), start)
        answer = await line.answer()
        assert (answer.status, answer.code) == (408, "request_timeout")
        assert await line.ended()
        assert (await served.ask("POST", "/things", b'{"name":"a"}')).status == 200


async def test_a_body_that_drips_is_not_waited_for_either() -> None:
    async with frame(patience=0.3) as served, served.connected() as line:
        await line.send(await served.head("POST", "/things", headers=CHUNKED))
        answer = asyncio.create_task(line.answer())
        while not answer.done():
            # Each piece comes well within the time that the whole body has.
            await line.send(_chunk(b" "))
            await asyncio.wait([answer], timeout=0.05)
        assert (await answer).code == "request_timeout"


async def test_a_client_that_hangs_up_midway_leaves_nothing_behind() -> None:
    async with frame() as served:
        async with served.connected() as line:
            await line.send(await served.head("POST", "/things", b"x" * 100), b"x")
        assert (await served.ask("POST", "/things", b'{"name":"a"}')).status == 200


# ── Kind ──


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/json; charset=latin-1",
        "application/jsonx",
        "application/problem+json",
        "",
        None,
    ],
)
async def test_only_json_is_taken(kind: str | None) -> None:
    async with frame() as served:
        answer = await served.ask("POST", "/things", b'{"name":"a"}', headers={"Content-Type": kind})
    assert (answer.status, answer.code) == (415, "unsupported_media_type")


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON", "application/json; charset=utf-8",
                                  'application/json;charset="UTF-8"'])  # fmt: skip
async def test_json_may_be_named_in_several_ways(kind: str) -> None:
    async with frame() as served:
        assert (await served.ask("POST", "/things", b'{"name":"a"}', headers={"Content-Type": kind})).status == 200


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "gzip, identity"])
async def test_nothing_compressed_is_taken(encoding: str) -> None:
    async with frame() as served:
        answer = await served.ask("POST", "/things", b'{"name":"a"}', headers={"Content-Encoding": encoding})
        assert (answer.status, answer.code) == (415, "unsupported_media_type")


# ── Contents ──


@pytest.mark.parametrize(
    ("body", "status", "code", "pointer"),
    [
        (b"", 400, "malformed_json", None),
        (b'{"name":"a"', 400, "malformed_json", None),
        (b'{"name":"a",}', 400, "malformed_json", None),
        (b'\xef\xbb\xbf{"name":"a"}', 400, "malformed_json", None),
        (b'{"name":"\xff"}', 400, "invalid_utf8", None),
        (b'{"name":"a","name":"b"}', 400, "duplicate_key", "/name"),
        (b'{"name":"a","payload":{"x":{"y":1,"y":2}}}', 400, "duplicate_key", "/payload/x/y"),
        (b"[" * 100_000, 422, "too_deep", None),
        (b'{"name":"a\\u0000"}', 422, "nul_character", "/name"),
        (b'{"name":"a","payload":["\\ud800"]}', 422, "invalid_unicode", "/payload/0"),
        (b'{"name":"a","payload":[1e400]}', 422, "number_range", "/payload/0"),
        (b'{"name":"a","size":9223372036854775808}', 422, "number_range", "/size"),
        (b"[]", 422, "invalid_field", "/"),
        (b'"x"', 422, "invalid_field", "/"),
        (b"{}", 422, "invalid_field", "/name"),
        (b'{"name":1}', 422, "invalid_field", "/name"),
        (b'{"name":null}', 422, "invalid_field", "/name"),
        (b'{"name":"a","size":"3"}', 422, "invalid_field", "/size"),
        (b'{"name":"a","size":true}', 422, "invalid_field", "/size"),
        (b'{"name":"a","size":3.5}', 422, "invalid_field", "/size"),
        (b'{"name":"a","kind":"rw_live_secret"}', 422, "invalid_field", "/kind"),
        (b'{"name":"a","tenant_id":"other"}', 422, "unknown_field", "/tenant_id"),
        (b'{"name":"a","inner":{"weight":"x"}}', 422, "invalid_field", "/inner/weight"),
        (b'{"name":"a","inner":{"weight":1,"x":2}}', 422, "unknown_field", "/inner/x"),
    ],
)  # fmt: skip
async def test_what_is_wrong_with_a_body_is_named_and_not_repeated(
    body: bytes, status: int, code: str, pointer: str | None
) -> None:
    async with frame() as served:
        answer = await served.ask("POST", "/things", body)
    assert (answer.status, answer.code) == (status, code)
    flaws = answer.json.get("errors")
    assert (flaws and flaws[0]["pointer"]) == pointer
    assert b"rw_live_secret" not in answer.body
    assert b"`" not in answer.json["detail"].encode()


async def test_a_payload_may_be_as_deep_in_a_body_as_anywhere() -> None:
    deep = b"[" * 64 + b"]" * 64
    async with frame() as served:
        assert (await served.ask("POST", "/things", b'{"name":"a","payload":' + deep + b"}")).status == 200
        batch = b'{"jobs":[{"name":"a","payload":' + deep + b"}]}"
        assert (await served.ask("POST", "/things/batch", batch)).status == 201


@pytest.mark.parametrize(
    "flaw", ['{"name":1}', '{"name":"a","x":1}', '{"name":"\\u0000"}', '{"name":"a","name":"b"}', "{}"]
)
async def test_the_item_of_a_batch_that_is_wrong_is_named(flaw: str) -> None:
    items = ['{"name":"a"}'] * 9
    items[7] = flaw
    async with frame() as served:
        answer = await served.ask("POST", "/things/batch", f'{{"jobs":[{",".join(items)}]}}'.encode())
    assert answer.json["index"] == 7
    assert answer.json["errors"][0]["pointer"].startswith("/jobs/7/")


async def test_a_body_that_may_be_left_out() -> None:
    async with frame() as served:
        for body in (None, b"", b"{}", b'{"weight":2}'):
            assert (await served.ask("PUT", "/things/a", body)).status == 204
        assert (await served.ask("PUT", "/things/a", b'{"x":2}')).code == "unknown_field"
        assert (await served.ask("PUT", "/things/a", None, headers={"Content-Type": "text/plain"})).status == 415


async def test_a_lenient_route_gets_whatever_comes() -> None:
    async with frame() as served:
        for body in (b"\xff\xfe", b"{", b'{"a":1,"a":2}', b"x" * 2_000_000):
            assert (await served.ask("POST", "/things/a/raw", body)).json["size"] == len(body)


# ── Streams of lines ──

NDJSON = {"Content-Type": "application/x-ndjson"}


async def test_a_streamed_body_may_be_longer_than_any_other() -> None:
    body = b"x" * (BATCH_BYTES + 1_000_000)
    async with frame() as served:
        answer = await served.ask("POST", "/upload", body, headers=NDJSON)
        assert answer.json["size"] == len(body)
        assert (await served.ask("POST", "/upload", b'{"name":"a"}')).json["body"]["name"] == "a"


async def test_a_streamed_body_that_is_not_read_to_its_end_closes_the_connection() -> None:
    async with frame() as served:
        for _ in range(2):
            answer = await served.ask("POST", "/upload/part", b"x" * 500_000, headers=NDJSON)
            assert (answer.status, answer.headers["connection"]) == (200, "close")


async def test_a_streamed_body_that_stalls() -> None:
    async with frame(patience=0.1) as served, served.connected() as line:
        head = await served.head("POST", "/upload", b"x" * 10, headers=NDJSON)
        await line.send(head, b"x")
        assert (await line.answer()).code == "request_timeout"


# ── Parameters ──


async def _query(text: str) -> Answer:
    async with frame() as served:
        return await served.ask("GET", f"/things?{text}")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", {"limit": 50, "queue": None, "deep": False}),
        ("limit=3&queue=a%20b+c", {"limit": 3, "queue": "a b c", "deep": False}),
        ("deep=true&&queue=null", {"limit": 50, "queue": "null", "deep": True}),
    ],
)
async def test_parameters_are_read_by_their_types(text: str, wanted: dict[str, Any]) -> None:
    assert (await _query(text)).json["query"] == wanted


@pytest.mark.parametrize(
    ("text", "code", "pointer"),
    [
        ("limit=x", "invalid_field", "/limit"),
        ("limit=", "invalid_field", "/limit"),
        ("limit=1.5", "invalid_field", "/limit"),
        ("limit=1&limit=1", "invalid_field", "/limit"),
        ("unknown=1", "unknown_field", "/unknown"),
        ("ticket=x", "unknown_field", "/ticket"),
        ("queue=%FF", "invalid_field", "/queue"),
        ("Limit=1", "unknown_field", "/Limit"),
    ],
)
async def test_parameters_that_cannot_be_used(text: str, code: str, pointer: str) -> None:
    answer = await _query(text)
    assert (answer.status, answer.code) == (422, code)
    assert answer.json["errors"][0]["pointer"] == pointer


async def test_a_route_without_parameters_takes_none() -> None:
    async with frame() as served:
        assert (await served.ask("GET", "/free?a=1")).code == "unknown_field"
        assert (await served.ask("GET", "/open?a=1")).code == "unknown_field"
        assert (await served.ask("GET", "/open?")).status == 204


def test_the_limits_are_those_that_are_documented() -> None:
    assert (ROUND_A_PAYLOAD, BATCH_BYTES) == (64 * 1024, 16 * 1024 * 1024)
    assert json.loads(_thing(50))["name"]
