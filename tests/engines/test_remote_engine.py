"""What only a remote engine has: a key and its limits, requests of a largest size, one long poll for all."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import httpx
import msgspec
import pytest

from ropeway.asgi import Server
from ropeway.core.access import Limits, NewTenant, Scope
from ropeway.core.errors import (
    BatchTooLarge,
    ConfigurationError,
    EngineError,
    FieldError,
    IdempotencyMismatch,
    Indeterminate,
    NotSupported,
    QueueFull,
    RateLimited,
    Unavailable,
)
from ropeway.core.job import NewJob
from ropeway.core.outcome import Done, Failed, Outcome, Released
from ropeway.core.payload import JobError
from ropeway.core.query import QueueSettings
from ropeway.core.states import State
from ropeway.engines.capabilities import Capability
from ropeway.engines.memory import MemoryEngine
from ropeway.engines.protocol import Settled, Settlement, WorkerRef
from ropeway.engines.remote import RemoteEngine, claiming
from ropeway.engines.remote.items import MAX_RESULT
from ropeway.runtime import ids
from ropeway.service.keys import Keys
from ropeway.settings import Settings
from ropeway.testing.harness import SqliteHarness
from ropeway.wire import paths
from tests.engines.remote_kit import SCOPES, RemoteHarness
from tests.worker.kit import until


class Place:
    """A server over a store in memory, and keys to it."""

    def __init__(self, server: Server, store: MemoryEngine) -> None:
        self.server = server
        self.store = store
        self._engines: list[RemoteEngine] = []

    async def token(self, scopes: frozenset[Scope] = SCOPES, *, tenant: str = "default") -> str:
        return (await Keys(self.store, tenant=tenant).create("test", scopes))[1]

    async def engine(self, **key: Any) -> RemoteEngine:
        engine = RemoteEngine(self.server.url, await self.token(**key))
        await engine.open()
        self._engines.append(engine)
        return engine

    async def close(self) -> None:
        for engine in self._engines:
            await engine.close()


@asynccontextmanager
async def a_place() -> AsyncIterator[Place]:
    store = MemoryEngine()
    async with Server(store, Settings(port=0)) as server:
        place = Place(server, store)
        try:
            yield place
        finally:
            await place.close()


def a_worker() -> WorkerRef:
    return WorkerRef("w", ids.token())


class TestWho:
    async def test_it_says_what_the_servers_store_is(self) -> None:
        async with a_place() as place:
            engine = await place.engine()
            assert (engine.name, engine.durability) == ("remote", "none")
            assert engine.capabilities == {Capability.SHARED}
        async with RemoteHarness(SqliteHarness()).subject() as subject:
            engine = await subject.engine.of("default")
            assert (engine.durability, engine.capabilities) == ("full", {Capability.SHARED, Capability.DURABLE})

    @pytest.mark.parametrize("token", [None, "rw_live_firstkey2222_nonsense_000000"], ids=["none", "bad"])
    async def test_a_key_that_is_not_good_is_a_matter_of_settings(self, token: str | None) -> None:
        async with a_place() as place:
            engine = RemoteEngine(place.server.url, token)
            with pytest.raises(ConfigurationError, match="key"):
                await engine.open()
            with pytest.raises(Unavailable):
                await engine.now()

    async def test_a_key_that_may_not_is_told_what_it_lacks(self) -> None:
        async with a_place() as place:
            engine = await place.engine(scopes=frozenset({Scope.WORK}))
            with pytest.raises(ConfigurationError, match="enqueue"):
                await engine.enqueue([NewJob("t")])
            assert (await engine.lease(["default"], 1, a_worker())).leases == []

    async def test_a_key_that_is_revoked_while_it_is_used(self) -> None:
        async with a_place() as place:
            engine = await place.engine()
            (key,) = await place.store.keys()
            await place.store.revoke_key(key.id)

            async def refused() -> bool:
                try:
                    await engine.now()
                except ConfigurationError:
                    return True
                return False

            await until(refused, "the key is refused", within=10)

    async def test_nobody_there_and_somebody_else_there(self) -> None:
        with pytest.raises(Unavailable):
            await RemoteEngine("http://127.0.0.1:1", "rw_x").open()

        async def not_ropeway(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\nhey!")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(not_ropeway, "127.0.0.1", 0) as other:
            port = other.sockets[0].getsockname()[1]
            with pytest.raises(ConfigurationError, match="no Ropeway server"):
                await RemoteEngine(f"http://127.0.0.1:{port}", "rw_x").open()

    async def test_the_key_says_whose_jobs(self) -> None:
        async with a_place() as place:
            await place.store.create_tenant(NewTenant("acme", "Acme"))
            engine = await place.engine(tenant="acme")
            (made,) = await engine.enqueue([NewJob("t")])
            for tenant in ("default", "acme"):
                (job,) = await engine.get([made.id], tenant=tenant)
                assert job is not None
                assert job.tenant == tenant
            (stored,) = await place.store.get([made.id], tenant="acme")
            assert stored is not None
            for call in (
                engine.get([made.id], tenant="other"),
                engine.enqueue([NewJob("t")], tenant="other"),
                engine.subscribe(["q"], tenant="other"),
            ):
                with pytest.raises(NotSupported, match="acme"):
                    await call

    async def test_once_closed_it_is_away(self) -> None:
        async with a_place() as place:
            engine = await place.engine()
            await engine.subscribe(["default"])
            await engine.close()
            await engine.close()
            with pytest.raises(Unavailable):
                await engine.count()


class TestSizes:
    async def test_a_batch_that_one_request_cannot_hold_is_refused_whole(self) -> None:
        async with a_place() as place:
            engine = await place.engine()
            megabyte = b'"' + b"x" * 1_000_000 + b'"'
            for jobs in ([NewJob("t")] * 1_001, [NewJob("t", megabyte)] * 17):
                with pytest.raises(BatchTooLarge):
                    await engine.enqueue(jobs)
            assert (await place.store.count()).number == 0
            await engine.enqueue([NewJob("t", megabyte)] * 16)
            assert (await place.store.count()).number == 16

    async def test_many_outcomes_are_as_many_requests_as_they_need(self) -> None:
        async with a_place() as place:
            engine = await place.engine()
            for _ in range(3):
                await engine.enqueue([NewJob("t")] * 900)
            by = a_worker()
            leases = [one.lease for _ in range(3) for one in (await engine.lease(["default"], 900, by)).leases]
            outcomes: list[Outcome] = [Done(), Released(), Failed(JobError("E", "m"), retry=False)]
            mixed = [Settlement(lease, outcomes[n % 3]) for n, lease in enumerate(leases)]
            answers = await engine.settle(mixed)
            states = [answer.state for answer in answers if isinstance(answer, Settled)]
            assert states == [(State.SUCCEEDED, State.QUEUED, State.DEAD)[n % 3] for n in range(2_700)]
            assert [answer.id for answer in answers if isinstance(answer, Settled)] == [x.job_id for x in leases]
            assert len(await engine.get([lease.job_id for lease in leases])) == 2_700

    async def test_results_that_fill_requests(self) -> None:
        async with a_place() as place:
            engine = await place.engine()
            await engine.enqueue([NewJob("t")] * 3)
            leased = (await engine.lease(["default"], 3, a_worker())).leases
            large = b'"' + b"x" * 9_000_000 + b'"'
            answers = await engine.settle([Settlement(one.lease, Done(large)) for one in leased])
            assert [(a.state, a.result_too_large) for a in answers if isinstance(a, Settled)] == (
                [(State.SUCCEEDED, True)] * 3
            )

    async def test_a_result_beyond_any_request_still_ends_its_job(self) -> None:
        async with a_place() as place:
            engine = await place.engine()
            await engine.enqueue([NewJob("t")])
            (leased,) = (await engine.lease(["default"], 1, a_worker())).leases
            (answer,) = await engine.settle([Settlement(leased.lease, Done(b'"' + b"x" * 2 * MAX_RESULT + b'"'))])
            assert isinstance(answer, Settled)
            assert (answer.state, answer.result_too_large) == (State.SUCCEEDED, True)
            (job,) = await engine.get([leased.job.id])
            assert job is not None
            assert (job.result, job.result_too_large) == (None, True)


async def again_and_again(call: Callable[[], Awaitable[object]]) -> None:
    for _ in range(50):
        await call()


class TestLimits:
    async def limited(self, place: Place, **limits: Any) -> RemoteEngine:
        await place.store.create_tenant(NewTenant("small", "Small", limits=Limits(**limits)))
        return await place.engine(tenant="small")

    async def test_a_producer_is_told_others_find_the_server_busy(self) -> None:
        async with a_place() as place:
            engine = await self.limited(place, rate_per_second=0.001, burst=3)
            with pytest.raises(RateLimited):
                await again_and_again(lambda: engine.enqueue([NewJob("t")]))
            with pytest.raises(EngineError):
                await again_and_again(engine.workers)
            assert await engine.heartbeat_owner(ids.token()) is None, "who holds jobs can always say so"

    async def test_as_many_leases_as_a_tenant_may_hold(self) -> None:
        """No error: the worker looks again in a moment."""
        async with a_place() as place:
            engine = await self.limited(place, max_leases=2)
            await engine.enqueue([NewJob("t")] * 5)
            by = a_worker()
            first = await engine.lease(["default"], 5, by)
            assert len(first.leases) == 2
            second = await engine.lease(["default"], 5, by)
            assert second.leases == []
            assert second.next_due_in is not None

    async def test_a_full_queue_refuses(self) -> None:
        async with a_place() as place:
            engine = await place.engine()
            await engine.set_queue("q", QueueSettings(depth_limit=2))
            with pytest.raises(QueueFull):
                await again_and_again(lambda: engine.enqueue([NewJob("t", queue="q")]))


class TestGathered:
    """Single calls that are made at the same time share a request."""

    async def test_a_full_queue_is_told_to_those_of_that_queue(self) -> None:
        async with a_place() as place:
            engine = await place.engine()
            await engine.set_queue("q", QueueSettings(depth_limit=1))
            queues = ("r", "q", "r", "q", "r")
            calls = (engine.enqueue([NewJob("t", queue=queue)]) for queue in queues)
            answers = await asyncio.gather(*calls, return_exceptions=True)
            full = [isinstance(answer, QueueFull) for answer in answers]
            assert [full[n] for n in (0, 2, 4)] == [False] * 3
            assert full.count(True) == 1
            assert (await place.store.count()).number == 4

    @pytest.mark.parametrize("keyed", [True, False])
    async def test_a_job_that_makes_the_server_fail_takes_none_along_that_may_be_sent_again(
        self, keyed: bool
    ) -> None:
        async def fail(response: httpx.Response) -> None:
            if b"poison" in response.request.content:
                await response.aread()
                response.status_code = 500
                response.headers["content-type"] = "text/html"

        async with a_place() as place:
            engine = await place.engine()
            assert engine._transport is not None
            engine._transport.client.event_hooks = {"response": [fail]}
            jobs = [NewJob(type, idempotency_key=type if keyed else None) for type in ("a", "poison", "b")]
            calls = (engine.enqueue([job]) for job in jobs)
            answers = await asyncio.gather(*calls, return_exceptions=True)
            doubts = [isinstance(answer, Indeterminate) for answer in answers]
            assert doubts == ([False, True, False] if keyed else [True] * 3)
            assert (await place.store.count()).number == 3, "each is stored once"


class TestKeys:
    async def test_a_job_may_be_asked_for_again_by_either_way(self) -> None:
        async with a_place() as place:
            engine = await place.engine()
            later = datetime.now(timezone(timedelta(hours=2))) + timedelta(days=1)
            job = NewJob("t", payload=b"[1.10]", run_at=later, timeout=7, idempotency_key="k", tags=("a",))
            (first,) = await engine.enqueue([job])
            for way in (engine, place.store):
                assert [one.id for one in await way.enqueue([job])] == [first.id]
                with pytest.raises(IdempotencyMismatch):
                    await way.enqueue([NewJob("t", payload=b"[1.1]", idempotency_key="k")])

    async def test_a_job_that_was_moved_into_its_window_is_the_same_job(self) -> None:
        async with a_place() as place:
            engine = await place.engine()
            asked = NewJob("t", idempotency_key="k")
            fingerprint = asked.body_fingerprint()
            now = await engine.now()
            moved = [
                NewJob("t", idempotency_key="k", fingerprint=fingerprint, run_at=now + timedelta(days=days))
                for days in (1, 2)
            ]
            answers = [(await engine.enqueue([job]))[0] for job in (*moved, asked)]
            assert len({answer.id for answer in answers}) == 1
            with pytest.raises(IdempotencyMismatch):
                await engine.enqueue([msgspec.structs.replace(moved[0], payload=b"2")])

    async def test_a_server_keeps_keys_for_a_day_at_least(self) -> None:
        async with a_place() as place:
            engine = await place.engine()
            with pytest.raises(FieldError, match="key_window"):
                await engine.enqueue([NewJob("t", idempotency_key="k", key_window=60)])


class TestUnreadableClaims:
    @pytest.mark.parametrize("how", ["no JSON", "another shape", "another token", "another state"])
    async def test_what_cannot_be_read_is_given_back(self, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(claiming, "LOOK_FOR_LOST", (0.0,))
        spoilt = {
            "no JSON": lambda body: body[:-1],
            "another shape": lambda body: body.replace(b'"leases"', b'"jobs"'),
            "another token": lambda body: re.sub(rb'"lease_token":"..', b'"lease_token":"', body),
            "another state": lambda body: body.replace(b'"running"', b'"walking"'),
        }[how]

        async def spoil(response: httpx.Response) -> None:
            if response.request.url.path == paths.LEASE:
                whole = await response.aread()
                response._content = spoilt(whole)
                assert response._content != whole

        async with a_place() as place:
            engine = await place.engine()
            await engine.enqueue([NewJob("t")])
            assert engine._transport is not None
            engine._transport.client.event_hooks = {"response": [spoil]}
            with pytest.raises(ConfigurationError, match="cannot be read"):
                await engine.lease(["default"], 1, WorkerRef("w", ids.uuid7()))

            async def free() -> bool:
                (job,) = (await place.store.find()).jobs
                return job.state is State.QUEUED

            await until(free, "the job is free again, though its owner lives")


class TestListening:
    async def test_all_listeners_of_a_process_share_one_poll(self) -> None:
        async with a_place() as place:
            engine = await place.engine()
            polls = place.server.api.deps.polls
            listeners = [await engine.subscribe(["a", "b"]) for _ in range(5)]
            await until(lambda: polls.waiting == 1, "one call waits at the server")
            listeners.append(await engine.subscribe(["c"]))
            await until(lambda: polls.waiting == 1, "still one, for all three queues")
            await engine.enqueue([NewJob("t", queue="c")])
            assert await listeners[-1].wait(10)
            for listener in listeners:
                await listener.close()
            await until(lambda: polls.waiting == 0, "nobody waits any more")

    async def test_a_server_that_restarts_is_listened_to_again(self) -> None:
        store = MemoryEngine()
        async with Server(store, Settings(port=0)) as first:
            place = Place(first, store)
            engine = await place.engine()
            port = first.port
            listener = await engine.subscribe(["default"])
        async with Server(store, Settings(port=port)) as second:
            await until(lambda: second.api.deps.polls.waiting == 1, "it listens again", within=20)
            while await listener.wait(0.02):
                pass
            await engine.enqueue([NewJob("t")])
            assert await listener.wait(10)
            await place.close()
