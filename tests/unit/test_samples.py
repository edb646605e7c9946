"""The sample tasks, called directly and run by a worker in this process."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any, ClassVar
from uuid import UUID

import httpx
import pytest

from ropeway import FieldError, Job, JobContext, NewJob, Progress, State, samples
from ropeway.engines.memory import MemoryEngine
from ropeway.task.context import DiscardJob
from ropeway.worker.inprocess import InProcessWorker

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = Job(
    id=UUID(int=7), tenant="default", type="email.send", queue="default", state=State.RUNNING, priority=5,
    payload=b"{}", attempt=1, attempts=1, max_attempts=5, run_at=NOW, created_at=NOW, updated_at=NOW,
)  # fmt: skip


class Notes:
    """A backend that only remembers what was said."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def progress(self, progress: Progress) -> None: ...

    def log(self, level: str, text: str) -> None:
        self.lines.append((level, text))

    def cancelled(self) -> bool:
        return False

    def transaction(self, finish: Callable[[], object]) -> AbstractAsyncContextManager[Any]:
        raise NotImplementedError


def test_the_app_has_these_tasks() -> None:
    assert samples.app.registry.names() == ["email.send", "http.call", "mock", "noop", "sleep"]


async def test_noop_takes_anything() -> None:
    assert await samples.noop() is None
    assert await samples.noop([1, 2]) is None


async def test_sleep_sleeps() -> None:
    assert await samples.sleep(0) is None


async def test_an_email_is_noted_and_not_sent() -> None:
    notes = Notes()
    ctx = JobContext(JOB, notes, SimpleNamespace())
    sent = await samples.send_email(ctx, "ada@example.com", "Hello", "four")
    assert sent == {"to": "ada@example.com", "subject": "Hello", "message_id": f"<{JOB.id}@ropeway>"}
    assert notes.lines == [("info", "an email to ada@example.com would go out now: Hello, 4 characters")]
    with pytest.raises(DiscardJob):
        await samples.send_email(ctx, "nowhere")


async def test_the_mock_fails_as_often_as_it_is_told() -> None:
    assert await samples.mock(0, 0) == {"slept_ms": 0}
    with pytest.raises(samples.MockFailure, match="failed on purpose: failure_percent is 100"):
        await samples.mock(0, 100)
    failed = 0
    for _ in range(2000):
        try:
            await samples.mock(0, 25)
        except samples.MockFailure:
            failed += 1
    # Seven standard deviations round 500: a fair coin fails here once in 10^11 runs.
    assert 365 < failed < 635


# ── http.call ──


class Answers(BaseHTTPRequestHandler):
    """The path says what to answer: /200, /302, /503; /slow never does."""

    seen: ClassVar[list[tuple[str, str, bytes]]] = []
    over = threading.Event()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.seen.append((self.command, self.path, body))
        if self.path == "/slow":
            self.over.wait(30)
            return
        self.send_response(int(self.path.strip("/")))
        self.send_header("Location", "/200")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST = _answer  # noqa: N815 - the names that http.server calls

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def server() -> Iterator[str]:
    Answers.seen.clear()
    Answers.over.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as http:
        http.daemon_threads = True
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        Answers.over.set()
        http.shutdown()
        thread.join()


async def test_a_call_returns_the_status_and_follows_nothing(server: str) -> None:
    for status in (200, 302, 404):
        answer = await samples.call_http(f"{server}/{status}")
        assert answer["status"] == status
        assert answer["elapsed_ms"] >= 0
    assert [path for _, path, _ in Answers.seen] == ["/200", "/302", "/404"]
    await samples.call_http(f"{server}/200", "POST", {"X-A": "b"}, {"n": 1})
    assert Answers.seen[-1] == ("POST", "/200", b'{"n":1}')


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_server_that_cannot_is_a_failed_attempt(server: str, status: int) -> None:
    with pytest.raises(samples.UnfitStatus, match=f"GET {server}/{status} answered {status}"):
        await samples.call_http(f"{server}/{status}")


async def test_a_call_has_a_time_limit(server: str) -> None:
    with pytest.raises(httpx.TimeoutException):
        await samples.call_http(f"{server}/slow", timeout=0.05)


async def test_only_http_is_called() -> None:
    with pytest.raises(FieldError, match="url must start with http"):
        await samples.call_http("file:///etc/passwd")


# ── all of them, by a worker ──


@asynccontextmanager
async def working() -> AsyncIterator[tuple[MemoryEngine, InProcessWorker]]:
    async with MemoryEngine() as engine, InProcessWorker(samples.app.program, engine) as worker:
        yield engine, worker


async def test_a_worker_runs_them(server: str) -> None:
    async with working() as (engine, worker):
        wanted = [
            NewJob("noop", b'"anything"'),
            NewJob("sleep", b'{"seconds": 0.001}'),
            NewJob("email.send", b'{"to": "ada@example.com"}'),
            NewJob("http.call", b'{"url": "%s/200"}' % server.encode()),
            NewJob("mock", b'{"sleep_ms": 1, "failure_percent": 0}'),
            NewJob("mock", b'{"sleep_ms": 1, "failure_percent": 100}', max_attempts=1),
            NewJob("http.call", b'{"url": "file:///etc/passwd"}'),
        ]
        ids = [answer.id for answer in await engine.enqueue(wanted)]
        await worker.drain()
        jobs = [job for job in await engine.get(ids) if job is not None]
        assert [job.state for job in jobs] == [State.SUCCEEDED] * 5 + [State.DEAD] * 2
        assert (
            jobs[2].result == f'{{"to":"ada@example.com","subject":"","message_id":"<{ids[2]}@ropeway>"}}'.encode()
        )
        assert (await engine.log_of(ids[2]))[0].message.startswith("an email to ada@example.com")
