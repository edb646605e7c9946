"""Clients that stall, flood or go away: each is answered or dropped in time, and nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.waiting import wait_until
from tests.api.corpus import ALL_SCOPES
from tests.api.served import Answer, Served, read_answer, request_bytes, server, sqlite_url

#: What the contract grants a body, and what a busy machine may add.
BODY_SECONDS = 10.0
LATE = 15.0
MIB = 1 << 20


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with server(sqlite_url(folder), folder, "--no-upkeep") as running:
        yield running


@pytest.fixture(scope="module")
def token(served: Served) -> str:
    return served.key(*ALL_SCOPES)


def sockets(served: Served) -> int:
    """Sockets that the server holds."""
    held = 0
    for file in Path(f"/proc/{served.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            held += str(file.readlink()).startswith("socket:")
    return held


@contextlib.contextmanager
def connected(served: Served) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", served.port), timeout=BODY_SECONDS + LATE) as connection:
        yield connection


def chunked(token: str) -> bytes:
    return request_bytes(
        "POST",
        "/v1/jobs",
        token=token,
        headers={"Content-Type": "application/json", "Transfer-Encoding": "chunked"},
    )


# ── Too slow ──


async def _stall(port: int, head: bytes, drip: bytes) -> tuple[Answer, float]:
    """Send the head, then a drip twice a second until the server answers; the answer, and when it came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began = time.monotonic()
    try:
        writer.write(head)
        answer = asyncio.ensure_future(reader.readuntil(b"\r\n\r\n"))
        while not answer.done():
            await asyncio.wait({answer}, timeout=0.5)
            if drip and not answer.done():
                writer.write(drip)
        raw = await answer
        lines = raw.decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
        body = await reader.readexactly(int(headers["content-length"]))
        return Answer(int(lines[0].split()[1]), headers, body), time.monotonic() - began
    finally:
        writer.close()


@pytest.mark.slow
async def test_a_body_that_does_not_come_is_408_and_its_place_is_free_again(served: Served, token: str) -> None:
    """Row 40, and the same with a drip: a byte now and then keeps nobody waiting for ever."""
    before = served.holds("default")
    sockets_before = sockets(served)
    stalled = request_bytes("POST", "/v1/jobs", b"{", token=token, headers={"Content-Length": "10"})
    silent = request_bytes("POST", "/v1/jobs", b"", token=token, headers={"Content-Length": "10"})
    answers = await asyncio.wait_for(
        asyncio.gather(
            _stall(served.port, stalled, b""),
            _stall(served.port, silent, b""),
            _stall(served.port, chunked(token) + b"1\r\n{\r\n", b""),
            _stall(served.port, chunked(token), b"1\r\n \r\n"),
            _stall(served.port, request_bytes(
                "POST", "/v1/jobs", b"", token=token, headers={"Content-Length": "1000000"}), b" "),
        ),
        BODY_SECONDS + LATE,
    )  # fmt: skip
    for answer, seconds in answers:
        assert (answer.status, answer.code) == (408, "request_timeout")
        assert seconds >= BODY_SECONDS - 0.5
    assert served.holds("default") == before
    wait_until(lambda: sockets(served) <= sockets_before, within=10, what="the connections are closed")


@pytest.mark.slow
async def test_headers_that_do_not_end_are_dropped_in_time(served: Served) -> None:
    """A connection that says nothing, or never ends its headers, does not keep its place for ever."""
    before = sockets(served)
    opened = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(3)]
    try:
        opened[1][1].write(b"GET /health HT")
        opened[2][1].write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: a")
        rest = await asyncio.wait_for(asyncio.gather(*(reader.read() for reader, _ in opened)), 40)
    finally:
        for _, writer in opened:
            writer.close()
    assert all(not said or said.startswith(b"HTTP/1.1 408") for said in rest), rest
    wait_until(lambda: sockets(served) <= before, within=10, what="the connections are closed")


# ── Too much ──


def test_a_chunked_body_without_an_end_is_413_at_the_limit(served: Served, token: str) -> None:
    """Row 39."""
    piece = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    before = served.rss_mib()
    with connected(served) as connection:
        connection.sendall(chunked(token))
        sent = 0
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, TimeoutError):
            connection.settimeout(5)
            while sent < 64 * MIB:
                connection.sendall(piece)
                sent += 65_536
        connection.settimeout(20)
        answer = read_answer(connection)
    assert (answer.status, answer.code) == (413, "payload_too_large")
    # It stops listening soon after it has refused, however much is still to come.
    assert sent < 32 * MIB
    assert served.rss_mib() - before < 64


def test_a_header_without_an_end_is_refused_and_costs_no_memory(served: Served) -> None:
    """Row 44 by way of one line that goes on and on."""
    before = served.rss_mib()
    with connected(served) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: ")
        deadline = time.monotonic() + LATE
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, TimeoutError):
            connection.settimeout(5)
            while time.monotonic() < deadline:
                connection.sendall(b"x" * MIB)
            pytest.fail("the server still took more")
        said = b""
        connection.settimeout(20)
        with contextlib.suppress(ConnectionResetError):
            said = connection.recv(65_536)
    assert not said or said.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400")), said
    assert served.rss_mib("VmHWM") - before < 64


def test_headers_without_number_are_refused(served: Served) -> None:
    with connected(served) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            for number in range(200_000):
                connection.sendall(b"X-%d: y\r\n" % number)
            connection.sendall(b"\r\n")
        said = b""
        with contextlib.suppress(ConnectionResetError):
            said = connection.recv(65_536)
    assert not said or said.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400")), said
    assert served.ask("GET", "/health").status == 200


def test_a_long_address_is_refused(served: Served, token: str) -> None:
    answer = served.ask("GET", "/v1/jobs?queue=" + "q" * 200_000, token=token)
    assert 400 <= answer.status < 500


# ── Gone ──


def test_a_poll_whose_client_has_gone_takes_no_job(served: Served) -> None:
    token = served.key(*ALL_SCOPES, tenant="gone")
    before = sockets(served)
    body = json.dumps({"worker_id": "gone", "wait": 30, "lease_seconds": 3_600}).encode()
    for _ in range(10):
        polls = []
        for _ in range(20):
            poll = socket.create_connection(("127.0.0.1", served.port))
            poll.sendall(request_bytes("POST", "/v1/queues/default/lease", body, token=token))
            polls.append(poll)
        for poll in polls:
            poll.close()
        wait_until(lambda: sockets(served) <= before, within=20, what="the server has seen that they are gone")
        job = served.ask("POST", "/v1/jobs", {"type": "a"}, token=token).json["id"]
        answer = served.ask("POST", "/v1/queues/default/lease", {"worker_id": "here", "wait": 10}, token=token)
        (lease,) = answer.json["leases"]
        assert (lease["job"]["id"], lease["attempt"]) == (job, 1)
        assert lease["job"]["locked_by"] == "here"


def test_a_client_that_leaves_as_its_job_comes_strands_no_job(served: Served) -> None:
    """It may have been handed out by then; whoever noticed too late gives it back, and another gets it."""
    token = served.key(*ALL_SCOPES, tenant="leaves")
    body = json.dumps({"worker_id": "leaves", "wait": 30, "lease_seconds": 3_600}).encode()
    for _ in range(30):
        with socket.create_connection(("127.0.0.1", served.port)) as poll:
            poll.sendall(request_bytes("POST", "/v1/queues/default/lease", body, token=token))
            wait_until(lambda: _is_waiting(served, poll), within=10, what="the poll has arrived")
            enqueue = request_bytes("POST", "/v1/jobs", b'{"type": "a"}', token=token)
            with connected(served) as producer:
                producer.sendall(enqueue)
                poll.close()
                job = read_answer(producer).json["id"]
        got = served.ask("POST", "/v1/queues/default/lease", {"worker_id": "here", "wait": 2}, token=token)
        if got.status == 200:
            (lease,) = got.json["leases"]
            assert lease["job"]["id"] == job
            continue
        # The answer was on its way before the end was seen: the lease runs out, as a dead worker's does.
        held = served.ask("GET", f"/v1/jobs/{job}", token=token).json
        assert (held["status"], held["locked_by"]) == ("running", "leaves")


def _is_waiting(served: Served, poll: socket.socket) -> bool:
    """Whether the server has read what was sent: nothing of it is left in its queue."""
    port = poll.getsockname()[1]
    here, there = f":{served.port:04X}", f":{port:04X}"
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(here) and fields[2].endswith(there):
            return fields[4].endswith(":00000000")
    return False


def test_a_stream_whose_client_has_gone_is_closed(served: Served, token: str) -> None:
    before = sockets(served)
    job = served.ask("POST", "/v1/jobs", {"type": "a", "delay": 3_600}, token=token).json["id"]
    for path in (f"/v1/jobs/{job}/stream", "/v1/events"):
        with connected(served) as connection:
            connection.sendall(request_bytes("GET", path, token=token, headers={"Accept": "text/event-stream"}))
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        wait_until(lambda: sockets(served) <= before, within=20, what="the stream is closed")


def test_a_reader_that_does_not_read_costs_no_memory_and_nobody_waits_for_it(served: Served) -> None:
    """Twenty thousand events for a stream whose client sleeps; the same for one that reads beside it."""
    token = served.key(*ALL_SCOPES, tenant="sleeps")
    batch = json.dumps({"jobs": [{"type": "a" * 128, "queue": "q" * 128}] * 1_000}).encode()
    asleep = socket.create_connection(("127.0.0.1", served.port))
    asleep.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    try:
        asleep.sendall(request_bytes("GET", "/v1/events", token=token, headers={"Accept": "text/event-stream"}))
        assert asleep.recv(16).startswith(b"HTTP/1.1 200")
        before = served.rss_mib()
        for _ in range(20):
            assert served.ask("POST", "/v1/jobs/batch", batch, token=token).status == 201
        with connected(served) as awake:
            query = request_bytes(
                "GET", "/v1/events?after=start", token=token, headers={"Accept": "text/event-stream"}
            )
            awake.sendall(query)
            seen = 0
            while seen < 1_000:
                seen += awake.recv(1 << 20).count(b"\nevent: ") or 1
        assert served.rss_mib() - before < 64
    finally:
        asleep.close()
