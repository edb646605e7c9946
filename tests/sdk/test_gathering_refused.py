"""Calls that went together and were refused: each fares as if it had been sent alone, and keeps nobody waiting."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
import pytest

from ropeway.core.access import Limits
from ropeway.core.errors import (
    ConfigurationError,
    Indeterminate,
    MissingScope,
    RopewayError,
    Unavailable,
    UsageError,
)
from ropeway.sdk import AsyncClient, Patience
from ropeway.wire import paths, problems
from tests.api.served import Served
from tests.worker.kit import until

HASTE = Patience(tries=3, base=0.001, cap=0.002)
#: As long as a client waits for at most: whoever does, fails its test.
LONG = "30"


class Script:
    """A server of few words. What it says to a request with a job of some type is set by that type."""

    def __init__(self) -> None:
        self.says: dict[str, httpx.Response | Exception] = {}
        #: The same, for requests with more than one job.
        self.says_together: dict[str, httpx.Response | Exception] = {}
        #: What it says first, whatever comes.
        self.says_first: list[httpx.Response | Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.requests: list[list[str]] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        types = [job["type"] for job in body.get("jobs", [body])]
        self.requests.append(types)
        await self.gate.wait()
        for name in types:
            said = self.says_first.pop(0) if self.says_first else None
            if said is None and len(types) > 1:
                said = self.says_together.get(name)
            said = self.says.get(name) if said is None else said
            if isinstance(said, Exception):
                raise said
            if said is not None:
                return httpx.Response(said.status_code, headers=said.headers, content=said.content)
        made = [_made() for _ in types]
        return httpx.Response(201, json={"jobs": made} if request.url.path == paths.JOBS_BATCH else made[0])

    def alone(self, type: str) -> int:
        """How often a job of that type came by itself."""
        return self.requests.count([type])


def _made() -> dict[str, object]:
    return {"id": str(uuid4()), "run_id": str(uuid4()), "status": "queued", "deduplicated": False}


def refusal(code: str, *, retry_after: str | None = None) -> httpx.Response:
    problem = problems.problem(code, "as the script says", "req-1")
    headers = {"content-type": problems.CONTENT_TYPE}
    if retry_after is not None:
        headers["retry-after"] = retry_after
    return httpx.Response(problem.status, headers=headers, content=problems.encode(problem))


@asynccontextmanager
async def talking_to(script: Script, *, patience: Patience = HASTE) -> AsyncIterator[AsyncClient]:
    async with asyncio.timeout(10), AsyncClient("http://ropeway.test", "rw_x", patience=patience) as client:
        await client._transport.client.aclose()
        client._transport.client = httpx.AsyncClient(transport=httpx.MockTransport(script))
        yield client


def calls(client: AsyncClient, *types: str) -> dict[str, asyncio.Task[Any]]:
    return {type: asyncio.create_task(client.enqueue(type, idempotency_key=f"key-{type}")) for type in types}


async def told(tasks: dict[str, asyncio.Task[Any]]) -> dict[str, Any]:
    return dict(zip(tasks, await asyncio.gather(*tasks.values(), return_exceptions=True), strict=True))


class TestLimits:
    async def test_more_than_may_be_sent_at_once_goes_alone_at_once(self) -> None:
        script = Script()
        script.says_together["a"] = refusal("quota_exceeded", retry_after=LONG)
        async with talking_to(script) as client:
            answers = await told(calls(client, "a", "b", "c"))
        assert not [answer for answer in answers.values() if isinstance(answer, BaseException)]
        assert script.requests == [["a", "b", "c"], ["a"], ["b"], ["c"]]

    async def test_a_full_queue_keeps_no_other_job_waiting(self) -> None:
        script = Script()
        script.says["mail"] = refusal("queue_full", retry_after=LONG)
        async with talking_to(script) as client:
            tasks = calls(client, "orders", "mail", "more")
            await asyncio.gather(tasks["orders"], tasks["more"])
            await until(lambda: script.alone("mail"), "mail was refused alone")
            await client.enqueue("later")
            assert not tasks["mail"].done()
            tasks["mail"].cancel()
        assert script.alone("mail") == 1, "it heeds Retry-After"

    async def test_one_that_was_alone_from_the_start_does_not_either(self) -> None:
        script = Script()
        script.says["mail"] = refusal("rate_limited", retry_after=LONG)
        async with talking_to(script) as client:
            tasks = calls(client, "mail")
            await until(lambda: script.alone("mail"), "mail was refused")
            await client.enqueue("orders")
            assert not tasks["mail"].done()
            tasks["mail"].cancel()
        assert script.alone("mail") == 1, "its first refusal is the end of its first try"

    async def test_its_tries_are_counted_as_ever(self) -> None:
        script = Script()
        script.says["mail"] = refusal("rate_limited")
        async with talking_to(script) as client:
            (answer,) = (await told(calls(client, "mail"))).values()
        assert isinstance(answer, RopewayError)
        assert (answer.code, script.alone("mail")) == ("rate_limited", HASTE.tries)

    async def test_a_refusal_of_one_that_will_not_pass_is_told_after_one_request(self) -> None:
        script = Script()
        script.says["bad"] = refusal("invalid_field")
        async with talking_to(script) as client:
            (answer,) = (await told(calls(client, "bad"))).values()
        assert isinstance(answer, RopewayError)
        assert (answer.code, script.requests) == ("invalid_field", [["bad"]])

    async def test_with_a_server_and_its_rate(self, served: Served) -> None:
        limits = Limits(rate_per_second=200, burst=40)
        key = await asyncio.to_thread(served.key, "enqueue", tenant=f"small-{uuid4().hex[:8]}", limits=limits)
        async with asyncio.timeout(20), AsyncClient(f"http://127.0.0.1:{served.port}", key) as client:
            sent: list[str] = []

            async def note(request: httpx.Request) -> None:
                sent.append(request.url.path)

            client._transport.client.event_hooks = {"request": [note]}
            answers = await asyncio.gather(*(client.enqueue("t", n) for n in range(50)))
        assert len({answer.id for answer in answers}) == 50
        assert sent.count(paths.JOBS_BATCH) == 1, "fifty at once will never pass"


class TestFailures:
    @pytest.mark.parametrize("together", [True, False])
    @pytest.mark.parametrize(
        ("status", "kind"), [(500, Indeterminate), (502, Indeterminate), (403, ConfigurationError)]
    )
    async def test_a_job_that_makes_the_server_fail_fails_alone(
        self, status: int, kind: type[RopewayError], together: bool
    ) -> None:
        script = Script()
        script.says["poison"] = httpx.Response(status, html="<h1>no</h1>")
        async with talking_to(script) as client:
            tasks = calls(client, *(["a", "poison", "b"] if together else ["poison"]))
            answers = await told(tasks)
        poison = answers.pop("poison")
        assert isinstance(poison, kind)
        assert not [answer for answer in answers.values() if isinstance(answer, BaseException)]
        if isinstance(poison, Indeterminate):
            assert poison.keys == ("key-poison",)
            assert len([types for types in script.requests if "poison" in types]) == HASTE.tries

    async def test_who_may_have_been_stored_is_not_told_that_nothing_was(self) -> None:
        script = Script()
        for name in ("a", "b"):
            script.says[name] = refusal("rate_limited")
            script.says_together[name] = httpx.Response(502, html="<h1>gone</h1>")
        async with talking_to(script) as client:
            answers = await told(calls(client, "a", "b"))
        assert [type(answer).code for answer in answers.values()] == ["indeterminate"] * 2
        assert [answer.keys for answer in answers.values()] == [("key-a",), ("key-b",)]

    async def test_a_lost_answer_and_a_limit_then_are_cleared_up_alone(self) -> None:
        script = Script()
        script.says_first = [httpx.ReadError("cut"), refusal("rate_limited", retry_after=LONG)]
        async with talking_to(script) as client:
            answers = await told(calls(client, "a", "b"))
        assert not [answer for answer in answers.values() if isinstance(answer, BaseException)]
        assert sorted(script.requests) == [["a"], ["a", "b"], ["a", "b"], ["b"]]

    @pytest.mark.parametrize(("code", "kind"), [("unavailable", Unavailable), ("missing_scope", MissingScope)])
    async def test_what_would_be_said_to_each_is_asked_once(self, code: str, kind: type[RopewayError]) -> None:
        script = Script()
        script.says["a"] = refusal(code)
        async with talking_to(script) as client:
            answers = await told(calls(client, "a", "b"))
        assert [type(answer) for answer in answers.values()] == [kind, kind]
        assert [len(types) for types in script.requests] == [2] * len(script.requests)


class TestLeaving:
    async def test_who_gave_up_before_it_was_sent_is_not_sent(self) -> None:
        script = Script()
        script.gate.clear()
        async with talking_to(script) as client:
            first = calls(client, "first")
            await until(lambda: script.requests, "one is under way")
            others = calls(client, "gone", "stays")
            await asyncio.sleep(0)
            others["gone"].cancel()
            script.gate.set()
            await asyncio.gather(first["first"], others["stays"])
        assert script.requests == [["first"], ["stays"]]

    async def test_by_an_exception_nobody_is_waited_for(self) -> None:
        script = Script()
        script.says["mail"] = refusal("queue_full", retry_after=LONG)
        tasks: dict[str, asyncio.Task[Any]] = {}

        async def leave() -> None:
            async with talking_to(script) as client:
                tasks.update(calls(client, "mail"))
                await until(lambda: script.alone("mail"), "one waits alone")
                script.gate.clear()
                tasks.update(calls(client, "held"))
                await until(lambda: script.alone("held"), "one is under way")
                tasks.update(calls(client, "behind"))
                await asyncio.sleep(0)
                raise KeyError("left")

        with pytest.raises(KeyError):
            await leave()
        assert [type(answer) for answer in (await told(tasks)).values()] == [asyncio.CancelledError] * 3
        assert script.requests == [["mail"], ["held"]]

    async def test_otherwise_those_that_are_sent_alone_are(self) -> None:
        script = Script()
        script.says_together["a"] = refusal("queue_full", retry_after=LONG)
        script.gate.clear()
        async with talking_to(script) as client:
            tasks = calls(client, "a", "b")
            await until(lambda: script.requests, "they are under way")
            script.gate.set()
        answers = await told(tasks)
        assert not [answer for answer in answers.values() if isinstance(answer, BaseException)]

    async def test_who_will_not_wait_for_the_end_closes_all_the_same(self) -> None:
        script = Script()
        script.gate.clear()
        async with asyncio.timeout(10):
            client = AsyncClient("http://ropeway.test", "rw_x", patience=HASTE)
            await client._transport.client.aclose()
            client._transport.client = httpx.AsyncClient(transport=httpx.MockTransport(script))
            tasks = calls(client, "held")
            await until(lambda: script.requests, "one is under way")
            closing = asyncio.create_task(client.aclose())
            await asyncio.sleep(0)
            closing.cancel()
            answers = await told(tasks | {"closing": closing})
        assert [type(answer) for answer in answers.values()] == [asyncio.CancelledError] * 2
        assert client._transport.client.is_closed

    async def test_nothing_is_taken_any_more(self) -> None:
        async with talking_to(Script()) as client:
            await client.enqueue("t")
        with pytest.raises(UsageError):
            await client.enqueue("t")
