"""What comes back: problems and their headers, answers that go on, and what is told to logs and metrics of it."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

from ropeway.core import errors
from ropeway.core.errors import RopewayError
from ropeway.observability import logs
from ropeway.wire import problems
from tests.api.frame_kit import RAISES, Frame, frame

SECRET = "abracadabra"


@pytest.fixture
def log() -> Iterator[_Lines]:
    """The lines that were logged, debug ones too."""
    lines = _Lines()
    logs.configure("DEBUG", "json", lines.stream)
    yield lines
    logs.unconfigure()


class _Lines:
    def __init__(self) -> None:
        self.stream = io.StringIO()

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    def of(self, event: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.text.splitlines()]
        return [line for line in found if line["event"] == event]


# ── Problems ──


@pytest.mark.parametrize(
    ("name", "status", "code", "header"),
    [
        ("bug", 500, "internal", None),
        ("usage", 500, "internal", None),
        ("unavailable", 503, "unavailable", ("retry-after", "1")),
        ("indeterminate", 503, "indeterminate", ("retry-after", "1")),
        ("configuration", 503, "unavailable", ("retry-after", "1")),
        ("not_found", 404, "not_found", None),
        ("terminal", 409, "terminal", None),
        ("key_in_flight", 409, "key_in_flight", ("retry-after", "1")),
        ("rate_limited", 429, "rate_limited", ("retry-after", "3")),
        ("queue_full", 429, "queue_full", ("retry-after", "5")),
    ],
)
async def test_an_error_is_a_problem_with_what_its_kind_asks_for(
    name: str, status: int, code: str, header: tuple[str, str] | None
) -> None:
    async with frame() as served:
        answer = await served.ask("GET", f"/fail/{name}")
    assert (answer.status, answer.code) == (status, code)
    problem = answer.json
    assert (problem["type"], problem["status"]) == (f"/errors/{code}", status)
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert problem["title"]
    assert problem["detail"]
    assert None not in problem.values()
    if header is not None:
        assert answer.headers[header[0]] == header[1]
    if name == "terminal":
        assert problem["job_status"] == "succeeded"


async def test_a_bug_tells_nothing_of_itself_but_to_the_log(log: _Lines) -> None:
    async with frame() as served:
        answer = await served.ask("GET", "/fail/bug", headers={"X-Request-Id": "find-me"})
    assert SECRET.encode() not in answer.body
    (line,) = log.of("http_failed")
    assert (line["request_id"], line["code"], line["level"]) == ("find-me", "internal", "error")
    assert "RuntimeError" in json.dumps(line)


async def test_a_store_that_is_away_is_a_warning_without_a_traceback(log: _Lines) -> None:
    async with frame() as served:
        await served.ask("GET", "/fail/unavailable", headers={"X-Request-Id": "find-me"})
    (line,) = log.of("http_failed")
    assert (line["level"], line["request_id"], line["code"]) == ("warning", "find-me", "unavailable")
    assert "Traceback" not in log.text


async def test_a_problem_is_small_whatever_the_error_says() -> None:
    async with frame() as served:
        answer = await served.ask("GET", "/fail/long")
    assert answer.code == "invalid_field"
    assert len(answer.body) <= problems.MAX_BYTES


def _errors() -> list[RopewayError]:
    found: list[RopewayError] = [error for error in RAISES.values() if isinstance(error, RopewayError)]
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RopewayError)]
    told = [kind for kind in kinds if kind.code in problems.CODES]
    return found + [kind("it", status="dead") if kind is errors.JobEnded else kind("it") for kind in told]


@pytest.mark.parametrize("error", _errors(), ids=lambda error: type(error).__name__)
def test_an_error_comes_out_at_the_other_end_as_it_went_in(error: RopewayError) -> None:
    problem = problems.problem_of(error, "r")
    if problem.code == "internal":
        return
    back = problems.error_of(problem, retry_after=2.0)
    assert back.code == problem.code == problems.code_of(error)
    if error.code == problem.code and type(error) not in (
        errors.InputError,
        errors.AccessError,
        errors.LimitError,
    ):
        assert type(back) is type(error) or isinstance(error, errors.EngineError | errors.BadArguments)
    if isinstance(back, errors.LimitError):
        assert back.retry_in == 2.0
    if isinstance(error, errors.JobEnded):
        assert isinstance(back, errors.JobEnded)
        assert back.status == error.status


@pytest.mark.parametrize("code", problems.CODES)
def test_every_code_makes_an_error_that_keeps_it(code: str) -> None:
    problem = problems.problem(code, "why", "r", hint="what to do", index=3)
    error = problems.error_of(problem)
    assert (error.code, error.message, error.hint, error.index) == (code, "why", "what to do", 3)
    assert problems.code_of(error) == code


# ── Answers that go on ──


async def _opened(served: Frame, path: str = "/ticking") -> Any:
    context = served.connected()
    line = await context.__aenter__()
    await line.send(await served.head("GET", path))
    status, headers = await line.head()
    assert (status, headers["content-type"]) == (200, "text/event-stream")
    assert await line.reader.readuntil(b"data: 1\n\n\r\n")
    return context, line


async def _until(served: Frame, wanted: list[Any]) -> None:
    async with asyncio.timeout(10):
        while served.tried != wanted:  # noqa: ASYNC110 - handlers tell it in passing
            await asyncio.sleep(0.01)


async def test_a_stream_is_closed_when_its_client_goes() -> None:
    async with frame() as served:
        context, _ = await _opened(served)
        assert served.tried == ["opened"]
        await context.__aexit__(None, None, None)
        await _until(served, ["opened", "closed"])


async def test_streams_end_when_the_server_stops_and_so_does_the_server() -> None:
    async with frame() as served:
        opened = [await _opened(served) for _ in range(3)]
    # The block is over, so it has stopped.
    assert served.tried == ["opened"] * 3 + ["closed"] * 3
    for context, line in opened:
        assert await line.reader.read() == b"0\r\n\r\n", "an end, not a broken connection"
        await context.__aexit__(None, None, None)


async def test_a_stream_that_fails_breaks_off_and_the_log_says_why(log: _Lines) -> None:
    async with frame() as served:
        context, line = await _opened(served, "/breaking")
        assert not (await line.reader.read()).endswith(b"0\r\n\r\n")
        await context.__aexit__(None, None, None)
    (failure,) = log.of("http_failed")
    assert failure["code"] == "broken_off"
    assert failure["path"] == "/breaking"


async def test_head_of_a_stream_is_its_head() -> None:
    async with frame() as served:
        answer = await served.ask("HEAD", "/ticking")
        assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
        assert "opened" not in served.tried


async def test_a_handler_can_tell_that_its_client_has_gone() -> None:
    async with frame() as served:
        async with served.connected() as line:
            await line.send(await served.head("GET", "/waits"))
            await _until(served, [True])
        await _until(served, [True, False])


# ── Logs and metrics ──


async def test_each_request_is_one_line_and_one_count_under_its_route(log: _Lines) -> None:
    async with frame() as served:
        await served.ask("DELETE", f"/things/{SECRET}")
        await served.ask("GET", f"/things?queue={SECRET}")
        await served.ask("GET", f"/{SECRET}")
        await served.ask("POST", "/things", b'{"name":"' + SECRET.encode() + b'","x":1}')
        await served.ask("GET", "/things", token=SECRET)
        page = served.server.api.deps.metrics.render().decode()
        token = await served.token()
    assert [(line["method"], line["path"], line["status"]) for line in log.of("http_request")] == [
        ("DELETE", "/things/{name}", 200),
        ("GET", "/things", 200),
        ("GET", "unknown", 404),
        ("POST", "/things", 422),
        ("GET", "/things", 401),
    ]
    assert (
        'ropeway_http_requests_total{method="DELETE",path_template="/things/{name}",status_code="200"} 1.0' in page
    )
    assert (
        'ropeway_http_request_duration_seconds_count{method="GET",path_template="/things",status_code="200"} 1.0'
        in page
    )
    for hidden in (SECRET, token):
        assert hidden not in log.text
        assert hidden not in page


async def test_methods_that_anybody_may_invent_make_no_labels() -> None:
    async with frame() as served:
        for method in ("PROPFIND", "MKCOL", "PURGE"):
            await served.ask(method, "/nowhere")
        async with served.connected() as line:
            await line.send(b"NONSENSE\r\n\r\n")
            await line.answer()
        page = served.server.api.deps.metrics.render().decode()
    assert 'method="other",path_template="unknown",status_code="404"} 3.0' in page
    assert 'method="other",path_template="unknown",status_code="400"} 1.0' in page
    assert "PROPFIND" not in page
