"""`--max`: a cap holds one queue back and nothing else: no poll, no order, no readiness depends on it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ropeway import Job, Ropeway
from ropeway.core.errors import Unavailable
from ropeway.core.job import NewJob
from ropeway.core.states import State
from ropeway.engines.memory import MemoryEngine
from ropeway.engines.protocol import LeaseBatch, Weighted
from ropeway.worker import fetcher
from tests.worker.inside import NEVER, bare, stored, working
from tests.worker.kit import Store, until


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest) -> str:
    return "memory://" if request.param == "memory" else request.getfixturevalue("sqlite_url")


def an_app() -> tuple[Ropeway, list[str], asyncio.Event]:
    """Tasks that note their queue: one is over at once, one waits for the event."""
    app = Ropeway("memory://")
    ran: list[str] = []
    go = asyncio.Event()

    @app.task
    async def quick(job: Job) -> None:
        ran.append(job.queue)

    @app.task
    async def held(job: Job) -> None:
        ran.append(job.queue)
        await go.wait()

    return app, ran, go


async def add(store: Store, type: str, number: int, queue: str = "default") -> list[Any]:
    return [answer.id for answer in await store.engine.enqueue([NewJob(type, b"{}", queue=queue)] * number)]


async def test_room_under_a_cap_is_filled_at_once(url: str) -> None:
    """Not at the next poll."""
    app, _, _ = an_app()
    async with stored(url) as store:
        ids = await add(store, "quick", 30)
        async with working(app, store.engine, caps={"default": 2}, poll_seconds=NEVER):
            await store.reach(ids, State.SUCCEEDED, within=20)


class SlowEngine(MemoryEngine):
    """A claim takes a few turns of the loop, as it does over a network."""

    async def lease(self, *args: Any, **kwargs: Any) -> LeaseBatch:
        batch = await super().lease(*args, **kwargs)
        for _ in range(20):
            await asyncio.sleep(0)
        return batch


async def test_room_that_appears_during_a_claim_is_not_overlooked() -> None:
    """A job of the first queue ends while the second one, which is empty, is asked."""
    app, _, _ = an_app()
    async with SlowEngine() as engine:
        store = Store(engine)
        ids = await add(store, "quick", 10, "first")
        options = {"queues": ("first", "second"), "caps": {"first": 1, "second": 1}, "poll_seconds": NEVER}
        async with working(app, engine, **options):
            await store.reach(ids, State.SUCCEEDED, within=20)


async def test_a_signal_fills_all_the_room_under_a_cap(url: str) -> None:
    """Whoever is woken claims one job first, but does not leave it at that."""
    app, ran, go = an_app()
    async with stored(url) as store, working(app, store.engine, caps={"default": 3}, poll_seconds=NEVER) as inside:
        fetching = inside.worker._fetcher
        await until(lambda: fetching._listener is not None and not fetching._claiming, "it listens")
        ids = await add(store, "held", 4)
        await until(lambda: len(ran) == 3, "three run", within=20)
        go.set()
        await store.reach(ids, State.SUCCEEDED, within=20)


async def test_weights_hold_for_queues_with_a_cap(url: str) -> None:
    app, ran, _ = an_app()
    async with stored(url) as store:
        ids = await add(store, "quick", 40, "rare") + await add(store, "quick", 40, "often")
        queues = (Weighted("rare", 1), Weighted("often", 20))
        options = {"queues": queues, "caps": {"rare": 1, "often": 1}, "concurrency": 1, "poll_seconds": NEVER}
        async with working(app, store.engine, **options):
            await store.reach(ids, State.SUCCEEDED, within=20)
    # 30 draws, each with 20 chances of 21 for `often`: fewer than 15 happens once in 10^13 times.
    assert ran[:30].count("often") >= 15


async def test_a_worker_whose_queues_are_all_at_their_cap_is_ready(url: str) -> None:
    app, ran, go = an_app()
    async with stored(url) as store:
        await add(store, "held", 2)
        async with bare(app, store.engine, caps={"default": 1}, poll_seconds=0.05) as (_, ledger):
            await until(lambda: ran, "one runs")
            seen: set[float] = set()

            def said_again() -> bool:
                seen.add(ledger.last_claimed())
                # The first two may be the claim that found the job and the one before it listened.
                return len(seen) >= 4

            await until(said_again, "it goes on to say that it can claim", within=10)
            go.set()


async def test_a_worker_that_does_not_claim_because_nothing_is_written_is_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app, ran, _ = an_app()
    monkeypatch.setattr(fetcher, "MOST_UNSETTLED", 0)

    async def away(*args: Any, **kwargs: Any) -> Any:
        raise Unavailable("away")

    async with stored() as store:
        await add(store, "quick", 1)
        async with bare(app, store.engine, poll_seconds=0.05, lease_seconds=1.0) as (worker, ledger):
            monkeypatch.setattr(store.engine, "settle", away)
            waits: list[float] = []
            give_back = worker.runner.give_back_stale
            # Asked whenever the fetcher has waited for a second and there was still no room.
            monkeypatch.setattr(
                worker.runner, "give_back_stale", lambda: (waits.append(ledger.last_claimed()), give_back())[1]
            )
            await until(lambda: len(waits) >= 2, "it waits")
            assert ran == ["default"]
            assert waits[-1] == waits[0], "it has not claimed, and does not say so"
            monkeypatch.undo()
