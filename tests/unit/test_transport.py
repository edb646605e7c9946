"""What is tried again, what an answer means, and what never leaves this side."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.abc
import sys
from typing import Any

import httpx
import pytest

from ropeway.core.errors import (
    BatchTooLarge,
    ConfigurationError,
    FieldError,
    Indeterminate,
    JobEnded,
    LeaseLost,
    PayloadError,
    RateLimited,
    RopewayError,
    Unauthenticated,
    Unavailable,
)
from ropeway.engines.remote import RemoteEngine
from ropeway.sdk import AsyncClient, Client
from ropeway.wire import problems
from ropeway.wire.calls import Answer, Call, Failed, Patience, Tries, result_of
from ropeway.wire.transport import AsyncTransport, failed_to_send, server_url

SECRET = "rw_live_abcdefghijkl_0123456789ABCDEFGHIJabcdefghij_1a2b3c"


def a_call(*, repeatable: bool = False) -> Call[bytes]:
    return Call("POST", "/v1/jobs", lambda answer: answer.body, repeatable=repeatable)


def refused(code: str, *, retry_after: str | None = None, **more: Any) -> Answer:
    problem = problems.problem(code, "what happened", "req-1", **more)
    headers = {"content-type": "application/problem+json"}
    if retry_after is not None:
        headers["retry-after"] = retry_after
    return Answer(problem.status, headers, problems.encode(problem))


def failure(answer: Answer, call: Call[Any] | None = None) -> Failed:
    with pytest.raises(Failed) as failed:
        result_of(call or a_call(), answer)
    return failed.value


class TestAnswers:
    @pytest.mark.parametrize(
        ("code", "kind"),
        [
            ("lease_lost", LeaseLost),
            ("payload_too_large", PayloadError),
            ("timezone_required", FieldError),
            ("batch_too_large", BatchTooLarge),
            ("unauthenticated", Unauthenticated),
            ("rate_limited", RateLimited),
            ("unavailable", Unavailable),
            ("indeterminate", Indeterminate),
        ],
    )
    def test_a_problem_is_the_error_of_its_code(self, code: str, kind: type[RopewayError]) -> None:
        error = failure(refused(code)).error
        assert type(error) is kind
        assert (error.code, error.message) == (code, "what happened")

    def test_what_else_it_says_is_kept(self) -> None:
        ended = failure(refused("terminal", job_status="dead", hint="so be it")).error
        assert isinstance(ended, JobEnded)
        assert (ended.status, ended.hint) == ("dead", "so be it")
        flaw = problems.Flaw("/priority", "invalid_field", "x")
        error = failure(refused("invalid_field", index=3, errors=(flaw,))).error
        assert isinstance(error, FieldError)
        assert (error.index, error.pointer) == (3, "/priority")
        limited = failure(refused("rate_limited", retry_after="2.5"))
        assert isinstance(limited.error, RateLimited)
        assert (limited.retry_after, limited.error.retry_in) == (2.5, 2.5)

    @pytest.mark.parametrize("status", [500, 502, 504])
    def test_after_a_gateways_error_nobody_knows(self, status: int) -> None:
        assert isinstance(failure(Answer(status, {"content-type": "text/html"}, b"<h1>oops")).error, Indeterminate)
        assert isinstance(failure(refused("internal")).error, Indeterminate)

    @pytest.mark.parametrize(
        "answer",
        [
            Answer(404, {"content-type": "text/html"}, b"nope"),
            Answer(301, {"location": "http://elsewhere"}, b""),
            Answer(403, {"content-type": "application/problem+json"}, b"{"),
        ],
        ids=["html", "redirect", "half a problem"],
    )
    def test_what_no_ropeway_server_says_is_a_matter_of_the_url(self, answer: Answer) -> None:
        assert isinstance(failure(answer).error, ConfigurationError)

    @pytest.mark.parametrize("text", ["Wed, 21 Oct 2026 07:28:00 GMT", "-1", "nan", "1e300", ""])
    def test_a_retry_after_that_is_no_time_to_wait_counts_as_none(self, text: str) -> None:
        assert failure(refused("rate_limited", retry_after=text)).retry_after is None


class TestTries:
    def tries(self, *, repeatable: bool, tries: int = 3, longest: float = 10.0) -> Tries:
        return Tries(a_call(repeatable=repeatable), Patience(tries, 1.0, 4.0, longest), chance=lambda: 1.0)

    @pytest.mark.parametrize("code", ["unavailable", "rate_limited", "queue_full", "key_in_flight"])
    def test_a_refusal_that_may_pass_is_tried_again_whatever_it_was(self, code: str) -> None:
        tries = self.tries(repeatable=False)
        assert tries.pause(failure(refused(code))) == 1.0
        assert tries.pause(failure(refused(code))) == 2.0
        with pytest.raises(RopewayError):
            tries.pause(failure(refused(code)))

    @pytest.mark.parametrize("code", ["invalid_field", "lease_lost", "unauthenticated", "not_found", "terminal"])
    def test_a_refusal_that_will_not_pass_is_told_at_once(self, code: str) -> None:
        with pytest.raises(RopewayError) as error:
            self.tries(repeatable=True).pause(failure(refused(code)))
        assert error.value.code == code

    def test_what_may_have_arrived_is_repeated_only_if_that_does_no_harm(self) -> None:
        lost = failed_to_send(httpx.ReadError("cut"), "http://x")
        assert self.tries(repeatable=True).pause(lost) == 1.0
        with pytest.raises(Indeterminate):
            self.tries(repeatable=False).pause(lost)

    @pytest.mark.parametrize(
        "error", [httpx.ConnectError("no"), httpx.ConnectTimeout("no"), httpx.PoolTimeout("no")]
    )
    def test_what_was_never_sent_may_always_be_sent_again(self, error: httpx.HTTPError) -> None:
        assert self.tries(repeatable=False).pause(failed_to_send(error, "http://x")) == 1.0

    @pytest.mark.parametrize(
        "error",
        [httpx.ReadError("x"), httpx.ReadTimeout("x"), httpx.WriteError("x"), httpx.RemoteProtocolError("x")],
    )
    def test_what_was_sent_and_not_answered_is_not_known(self, error: httpx.HTTPError) -> None:
        assert isinstance(failed_to_send(error, "http://x").error, Indeterminate)

    def test_the_server_says_how_long(self) -> None:
        assert self.tries(repeatable=False).pause(failure(refused("rate_limited", retry_after="7"))) == 8.0
        with pytest.raises(RateLimited):
            self.tries(repeatable=False).pause(failure(refused("rate_limited", retry_after="11")))

    @pytest.mark.parametrize("code", ["rate_limited", "quota_exceeded", "queue_full", "key_in_flight", "internal"])
    def test_what_may_be_of_a_part_is_not_waited_for_in_haste(self, code: str) -> None:
        call = Call("POST", "/v1/jobs", lambda answer: answer.body, repeatable=True, hasty=True)
        with pytest.raises(RopewayError):
            Tries(call, Patience(9)).pause(failure(refused(code)))
        for passing in ("unavailable", "indeterminate"):
            assert Tries(call, Patience(9)).pause(failure(refused(passing))) > 0

    def test_a_limit_is_waited_for_only_by_those_who_want_to(self) -> None:
        tries = Tries(a_call(), Patience(9, limits=False))
        with pytest.raises(RateLimited):
            tries.pause(failure(refused("rate_limited", retry_after="1")))

    @pytest.mark.parametrize(
        "code",
        ["unavailable", "rate_limited", "queue_full", "key_in_flight", "unauthenticated", "request_timeout"],
    )
    def test_who_was_once_in_doubt_is_not_told_that_nothing_was_done(self, code: str) -> None:
        call = Call("POST", "/v1/jobs", lambda answer: answer.body, repeatable=True, keys=("k1", "k2"))
        tries = Tries(call, Patience(2, 1.0, 4.0), chance=lambda: 1.0)
        tries.pause(failure(refused("indeterminate")))
        with pytest.raises(Indeterminate) as error:
            tries.pause(failure(refused(code)))
        assert error.value.keys == ("k1", "k2")
        assert "what happened" in error.value.message

    def test_a_server_that_asks_for_too_long_leaves_the_doubt_too(self) -> None:
        tries = self.tries(repeatable=True, tries=9)
        tries.pause(failure(refused("indeterminate")))
        with pytest.raises(Indeterminate):
            tries.pause(failure(refused("rate_limited", retry_after="11")))

    @pytest.mark.parametrize("code", ["invalid_field", "lease_lost", "not_found", "idempotency_mismatch"])
    def test_a_refusal_of_what_was_asked_ends_the_doubt(self, code: str) -> None:
        tries = self.tries(repeatable=True)
        tries.pause(failure(refused("indeterminate")))
        with pytest.raises(RopewayError) as error:
            tries.pause(failure(refused(code)))
        assert error.value.code == code

    def test_a_question_leaves_no_doubt(self) -> None:
        question = Call("GET", "/v1/time", lambda answer: answer.body, repeatable=True)
        tries = Tries(question, Patience(2, 1.0, 4.0))
        tries.pause(failure(refused("indeterminate")))
        with pytest.raises(Unavailable):
            tries.pause(failure(refused("unavailable")))

    def test_pauses_spread(self) -> None:
        draws = iter([0.0, 1.0])
        tries = Tries(a_call(), Patience(9, 1.0, 4.0), chance=lambda: next(draws))
        assert [tries.pause(failure(refused("unavailable"))) for _ in range(2)] == [0.5, 2.0]


class TestPlaces:
    @pytest.mark.parametrize(
        "url", ["http://127.0.0.1:8000", "https://jobs.example.com/ropeway/", "http://[::1]:80"]
    )
    def test_a_servers_url(self, url: str) -> None:
        assert server_url(url) == url.rstrip("/")

    @pytest.mark.parametrize(
        "url",
        [
            "sqlite:///x",
            "http://",
            "http://a:99999",
            "//x",
            "http://u:sesame@host",
            "http://host?token=sesame",
            "http://host/#sesame",
        ],
    )
    def test_what_is_none_is_refused_without_being_shown(self, url: str) -> None:
        with pytest.raises(ConfigurationError) as error:
            server_url(url)
        assert "sesame" not in str(error.value)

    def test_query_values_are_written_as_they_must_be(self) -> None:
        call = Call("GET", "/v1/jobs", bytes, query={"error": "a&b=é", "limit": 5, "cursor": None})
        assert call.target() == "/v1/jobs?error=a%26b%3D%C3%A9&limit=5"

    async def test_no_key_is_in_any_text_of_ours(self) -> None:
        async with AsyncClient("http://127.0.0.1:1", SECRET, patience=Patience(1)) as aio:
            with Client("http://127.0.0.1:1", SECRET, patience=Patience(1)) as client:
                shown = [repr(client), repr(aio), repr(RemoteEngine("http://127.0.0.1:1", SECRET))]
                shown += [
                    repr(vars(client)),
                    repr(vars(client._transport)),
                    repr(client._transport.client.headers),
                ]
                with pytest.raises(Unavailable) as error:
                    client.get_status("0198c0de-0000-7000-8000-000000000000")
                shown.append(repr(error.value) + str(error.value))
        with pytest.raises(ConfigurationError) as wrong:
            Client("http://127.0.0.1:1", SECRET + " x")
        shown.append(str(wrong.value))
        assert not [text for text in shown if SECRET[24:] in text or "0123456789" in text]


class TestCost:
    async def test_a_call_looks_for_no_module(self) -> None:
        """What the HTTP library can do without, and is not there, is looked for on the disk each time."""
        looked_for: list[str] = []

        class Watching(importlib.abc.MetaPathFinder):
            def find_spec(self, fullname: str, *_: object) -> None:
                looked_for.append(fullname)

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.IncompleteReadError):
                while await reader.readuntil(b"\r\n\r\n"):
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            writer.close()

        watching = Watching()
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            transport = AsyncTransport(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None)
            assert await transport.send(a_call()) == b"ok"
            sys.meta_path.insert(0, watching)
            try:
                assert await transport.send(a_call()) == b"ok"
            finally:
                sys.meta_path.remove(watching)
                await transport.close()
        assert looked_for == []
