"""A reply that is lost never makes two jobs: the same key goes with every try (E03)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import pytest

from ropeway.core.errors import EngineError, Indeterminate
from ropeway.core.job import NewJob
from ropeway.core.outcome import Done
from ropeway.core.query import JobFilter
from ropeway.core.states import EventName, State
from ropeway.engines.protocol import Settled, Settlement, WorkerRef
from ropeway.engines.remote import RemoteEngine, claiming
from ropeway.runtime import ids
from ropeway.sdk import Patience
from ropeway.testing.harness import MemoryHarness
from tests.api.cutting import Cutting, cutting
from tests.api.served import Served
from tests.engines.remote_kit import RemoteHarness
from tests.sdk.conftest import Both
from tests.worker.kit import until


def jobs_in(served: Served, queue: str) -> list[UUID]:
    async def count(engine: object) -> list[UUID]:
        page = await engine.find(JobFilter(queue=queue), limit=500)  # type: ignore[attr-defined]
        return [job.id for job in page.jobs]

    return served.on_engine(count)


@pytest.mark.parametrize("own_key", [False, True], ids=["made up", "the caller's"])
def test_the_sdk_sends_the_same_key_again(connect: Callable[..., Both], served: Served, own_key: bool) -> None:
    queue = f"q-{uuid4().hex[:12]}"
    with cutting(served.port, share=0.3) as proxy:
        client = connect(to=f"http://127.0.0.1:{proxy.port}")
        made = []
        for number in range(40):
            key = f"{queue}-{number}" if own_key else None
            answer = client.enqueue("t", number, queue=queue, idempotency_key=key)
            assert own_key or not answer.deduplicated, "nobody else has a key that was made here"
            made.append(answer.id)
        batch = client.enqueue_batch([{"type": "t", "queue": queue}] * 20)
        assert proxy.cuts > 5
    assert len(set(made)) == 40
    assert sorted(jobs_in(served, queue)) == sorted(made + [one.id for one in batch])


def test_who_is_left_in_doubt_can_repeat_with_the_keys(connect: Callable[..., Both], served: Served) -> None:
    queue = f"q-{uuid4().hex[:12]}"
    jobs = [{"type": "t", "queue": queue, "payload": number} for number in range(3)]
    with cutting(served.port, share=1.0) as proxy:
        client = connect(to=f"http://127.0.0.1:{proxy.port}", patience=Patience(tries=2, base=0.01, cap=0.05))
        with pytest.raises(Indeterminate) as one:
            client.enqueue("t", "one", queue=queue)
        with pytest.raises(Indeterminate) as many:
            client.enqueue_batch(jobs)
    made = set(jobs_in(served, queue))
    assert len(made) == 4, "they were stored, and nobody was told"
    steady = connect()
    again = steady.enqueue("t", "one", queue=queue, idempotency_key=one.value.keys[0])
    keyed = [{**job, "idempotency_key": key} for job, key in zip(jobs, many.value.keys, strict=True)]
    assert {again.id, *(answer.id for answer in steady.enqueue_batch(keyed))} == made
    assert set(jobs_in(served, queue)) == made


def test_a_lost_lease_is_told_and_an_ack_is_sent_again(connect: Callable[..., Both], served: Served) -> None:
    queue = f"q-{uuid4().hex[:12]}"
    steady = connect()
    steady.enqueue_batch([{"type": "t", "queue": queue}] * 10)
    leased = steady.lease(queue, "w1", count=10)
    with cutting(served.port, share=0.25) as proxy:
        client = connect(to=f"http://127.0.0.1:{proxy.port}")
        for one in leased:
            assert client.ack(one).status == "succeeded"
        assert proxy.cuts
        lost = 0
        for _ in range(20):
            try:
                client.lease(queue, "w1")
            except Indeterminate:
                lost += 1
        assert lost, "a claim is not repeated by itself: the first one may have taken jobs"


@asynccontextmanager
async def through(share: float) -> AsyncIterator[tuple[RemoteEngine, RemoteEngine, Cutting]]:
    """A remote engine whose replies are cut now and then, one whose are not, and the proxy between."""
    async with RemoteHarness(MemoryHarness()).subject() as subject:
        steady = await subject.engine.of("default")
        port = int(steady.url.rpartition(":")[2])
        with cutting(port, share=0.0) as proxy:
            engine = RemoteEngine(f"http://127.0.0.1:{proxy.port}", steady._token)
            await engine.open()
            proxy._share = share
            try:
                yield engine, steady, proxy
            finally:
                await engine.close()


async def insisted(call: Callable[[], object]) -> object:
    """As whoever uses an engine does: what may be repeated is repeated until it is answered."""
    while True:
        try:
            return await call()  # type: ignore[misc]
        except EngineError:
            await asyncio.sleep(0)


class TestRemoteEngine:
    async def test_a_keyed_job_is_stored_once_however_often_it_is_sent(self) -> None:
        async with through(0.4) as (engine, steady, proxy):
            for number in range(40):
                await insisted(lambda n=number: engine.enqueue([NewJob("t", idempotency_key=f"k{n}")]))
            assert proxy.cuts > 5
            assert (await steady.count()).number == 40

    async def test_a_job_without_a_key_is_sent_once(self) -> None:
        async with through(1.0) as (engine, steady, _):
            with pytest.raises(Indeterminate):
                await engine.enqueue([NewJob("t")])
            assert (await steady.count()).number == 1, "it may have been stored, and it was"

    async def test_outcomes_are_taken_once(self) -> None:
        async with through(0.4) as (engine, steady, _):
            await steady.enqueue([NewJob("t")] * 30)
            batch = await steady.lease(["default"], 30, WorkerRef("w", ids.token()))
            for one in batch.leases:
                done = [Settlement(one.lease, Done())]
                (answer,) = await insisted(lambda done=done: engine.settle(done))  # type: ignore[misc]
                assert isinstance(answer, Settled)
                assert answer.state is State.SUCCEEDED
            for one in batch.leases:
                events = [event.event for event in await steady.events_of(one.job.id)]
                assert events == [EventName.ENQUEUED, EventName.STARTED, EventName.COMPLETED]

    async def test_what_a_lost_claim_took_is_given_back_while_its_owner_lives_on(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its heartbeats would keep the jobs for ever, though nobody knows of them."""
        monkeypatch.setattr(claiming, "LOOK_FOR_LOST", (0.0, 0.05))
        async with through(0.0) as (engine, steady, proxy):
            by = WorkerRef("w", ids.token())
            await steady.enqueue([NewJob("t")] * 4)
            held = await engine.lease(["default"], 1, by)
            proxy._share = 1.0
            with pytest.raises(Indeterminate):
                await engine.lease(["default"], 2, by)
            taken = await steady.find(JobFilter(states=frozenset({State.RUNNING})))
            assert len(taken.jobs) == 3
            proxy._share = 0.0
            await steady.heartbeat_owner(by.owner)

            async def free() -> bool:
                running = await steady.find(JobFilter(states=frozenset({State.RUNNING})))
                return [job.id for job in running.jobs] == [held.leases[0].job.id]

            await until(free, "only what the worker knows of is held", within=20)
            (answer,) = await engine.settle([Settlement(held.leases[0].lease, Done())])
            assert isinstance(answer, Settled)
            jobs = await steady.get([job.id for job in taken.jobs])
            assert [job.attempts for job in jobs if job and job.id != held.leases[0].job.id] == [0, 0]
