"""Enqueue calls that are made at the same time go together, and nobody can tell by the answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from msgspec import UNSET

from ropeway.core.errors import IdempotencyMismatch, Indeterminate, MissingScope, RopewayError
from ropeway.core.query import JobFilter
from ropeway.sdk import AsyncClient, Patience
from ropeway.wire import gathering
from ropeway.wire.calls import Call
from tests.api.cutting import cutting
from tests.api.served import Served
from tests.sdk.conftest import QUICK

CALLS = 120


@pytest.fixture
def queue() -> str:
    return f"q-{uuid4().hex[:12]}"


class Counted:
    """Counts what a client sends, by the path of it."""

    def __init__(self, client: AsyncClient) -> None:
        self.paths: list[str] = []
        self._send = client.gathering._transport.send
        client.gathering._transport = self

    def send(self, call: Call[Any], *, after: RopewayError | None = None) -> Awaitable[Any]:
        self.paths.append(call.path)
        return self._send(call, after=after)


@asynccontextmanager
async def connected(served: Served, *, port: int | None = None, **options: Any) -> AsyncIterator[AsyncClient]:
    url = f"http://127.0.0.1:{served.port if port is None else port}"
    key = await asyncio.to_thread(served.key, "enqueue", "read", "read:payload")
    async with AsyncClient(url, key, **{"patience": QUICK, **options}) as client:
        yield client


async def enqueued(client: AsyncClient, queue: str, number: int) -> list[Any]:
    """So many calls at once; what each was told or raised."""
    calls = (client.enqueue("t", n, queue=queue) for n in range(number))
    return await asyncio.gather(*calls, return_exceptions=True)


async def number_in(served: Served, queue: str) -> int:
    async def count(engine: Any) -> int:
        return int((await engine.count(JobFilter(queue=queue))).number)

    # In a thread: the kit has an event loop of its own.
    return await asyncio.to_thread(served.on_engine, count)


async def test_many_calls_are_few_requests(served: Served, queue: str) -> None:
    async with connected(served) as client:
        counted = Counted(client)
        made = await enqueued(client, queue, CALLS)
        assert len(counted.paths) < CALLS / 4
        jobs = {job.id: job.payload async for job in client.list_jobs(queue=queue, include=["payload"])}
    assert [int(bytes(jobs[one.id])) for one in made] == list(range(CALLS)), "everybody got their own job"
    assert all((one.status, one.deduplicated) == ("queued", False) for one in made)


async def test_one_call_is_sent_as_it_is(served: Served, queue: str) -> None:
    async with connected(served) as client:
        counted = Counted(client)
        alone = await client.enqueue("t", queue=queue)
        assert counted.paths == ["/v1/jobs"]
        together = await enqueued(client, queue, 3)
    for one in (alone, *together):
        assert (one.created_at, one.run_at, one.durability) == (UNSET, UNSET, UNSET)


async def test_who_is_refused_is_refused_alone(served: Served, queue: str) -> None:
    async with connected(served) as client:
        await client.enqueue("t", "first", queue=queue, idempotency_key=f"{queue}-taken")
        keys = [f"{queue}-taken" if n == 5 else None for n in range(10)]
        calls = (client.enqueue("t", n, queue=queue, idempotency_key=key) for n, key in enumerate(keys))
        told = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(one, IdempotencyMismatch) for one in told] == [n == 5 for n in range(10)]
    assert [isinstance(one, RopewayError) for one in told].count(True) == 1
    assert await number_in(served, queue) == 10


async def test_the_same_key_at_the_same_time_makes_one_job(served: Served, queue: str) -> None:
    async with connected(served) as client:
        calls = (client.enqueue("t", 1, queue=queue, idempotency_key=f"{queue}-one") for _ in range(20))
        told = await asyncio.gather(*calls)
    assert len({one.id for one in told}) == 1
    assert [one.deduplicated for one in told].count(False) == 1
    assert await number_in(served, queue) == 1


async def test_what_nobody_may_is_told_to_each(served: Served, queue: str) -> None:
    key = await asyncio.to_thread(served.key, "read")
    async with AsyncClient(f"http://127.0.0.1:{served.port}", key, patience=QUICK) as client:
        told = await enqueued(client, queue, 10)
    assert all(isinstance(one, MissingScope) for one in told)
    assert len({id(one) for one in told}) == 10, "each has an error of its own"


async def test_lost_answers_make_no_second_jobs(served: Served, queue: str) -> None:
    with cutting(served.port, share=0.4) as proxy:
        async with connected(served, port=proxy.port) as client:
            for _ in range(10):
                told = await enqueued(client, queue, 12)
                assert not [one for one in told if isinstance(one, BaseException) or one.deduplicated]
        assert proxy.cuts > 3
    assert await number_in(served, queue) == 120


async def test_in_doubt_everybody_has_the_key_of_their_own_job(served: Served, queue: str) -> None:
    with cutting(served.port, share=1.0) as proxy:
        patience = Patience(tries=2, base=0.01, cap=0.05)
        async with connected(served, port=proxy.port, patience=patience) as client:
            told = await enqueued(client, queue, 6)
    keys = [one.keys for one in told if isinstance(one, Indeterminate)]
    assert [len(own) for own in keys] == [1] * 6
    async with connected(served) as client:
        calls = (client.enqueue("t", n, queue=queue, idempotency_key=own[0]) for n, own in enumerate(keys))
        again = await asyncio.gather(*calls)
    assert len({one.id for one in again}) == 6
    assert await number_in(served, queue) == 6


async def test_large_jobs_go_in_several_requests(
    served: Served, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "MOST_BYTES", 10_000)
    async with connected(served) as client:
        counted = Counted(client)
        calls = (client.enqueue("t", "x" * 4_000, queue=queue) for _ in range(9))
        await asyncio.gather(*calls)
    assert 5 <= len(counted.paths) <= 9, "two at a time"
    assert await number_in(served, queue) == 9


async def test_closing_waits_for_what_is_under_way(served: Served, queue: str) -> None:
    async with connected(served) as client:
        calls = [asyncio.ensure_future(client.enqueue("t", n, queue=queue)) for n in range(30)]
        await asyncio.sleep(0)
    told = await asyncio.gather(*calls, return_exceptions=True)
    assert not [one for one in told if isinstance(one, BaseException)]
    assert await number_in(served, queue) == 30
