"""A job may come back to the worker that still runs it: the lease decides whose word counts, not the job's id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ropeway import JobContext, Ropeway
from ropeway.core.errors import Indeterminate, Unavailable
from ropeway.core.job import NewJob
from ropeway.core.lease import Lease
from ropeway.core.outcome import Done
from ropeway.core.states import EventName, State
from ropeway.engines.memory import MemoryEngine
from ropeway.engines.protocol import Settlement, WorkerRef
from tests.worker.inside import NEVER, stored, working
from tests.worker.kit import Store, until


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest) -> str:
    return "memory://" if request.param == "memory" else request.getfixturevalue("sqlite_url")


class Waiting:
    """An app whose only task waits; each run is opened by the test, and tells how it went."""

    def __init__(self) -> None:
        self.app = Ropeway("memory://")
        self.open: dict[tuple[str, int], asyncio.Event] = {}
        self.told: list[tuple[str, str, int]] = []

        @self.app.task(name="waits")
        async def waits(ctx: JobContext, who: str) -> str:
            self.told.append(("started", who, ctx.attempt))
            try:
                await self.open.setdefault((who, ctx.attempt), asyncio.Event()).wait()
            except asyncio.CancelledError:
                self.told.append(("stopped", who, ctx.attempt))
                raise
            return f"run {ctx.attempt}"

    def let_go(self, who: str, attempt: int) -> None:
        self.open[who, attempt].set()

    async def tells(self, word: str, who: str, attempt: int) -> None:
        await until(lambda: (word, who, attempt) in self.told, f"{word} {who} {attempt}; told: {self.told}")


@pytest.mark.parametrize("order", [(1, 2), (2, 1)], ids=["old_first", "new_first"])
async def test_a_job_leased_again_while_its_old_run_goes_on_ends(url: str, order: tuple[int, int]) -> None:
    waiting = Waiting()
    async with (
        stored(url) as store,
        working(waiting.app, store.engine, lease_seconds=60.0, poll_seconds=0.05) as inside,
    ):
        (id,) = await store.add("waits", who="a")
        await waiting.tells("started", "a", 1)
        # As a rescuer does when this process had stood still for longer than its lease.
        await store.engine.end_grants(inside._owner)
        await waiting.tells("started", "a", 2)
        runner = inside.worker.runner
        for number, attempt in enumerate(order, 1):
            waiting.let_go("a", attempt)
            await until(lambda number=number: runner.finished == number, f"{number} runs have ended")
        await asyncio.wait_for(inside.worker.settled(), 10)
        job = await store.job(id)
        assert (job.state, job.attempt, job.result) == (State.SUCCEEDED, 2, b'"run 2"')
        assert len(await store.events(id, EventName.COMPLETED)) == 1
        assert (runner.running, runner.room(0.0)) == (0, 5), "every slot is free again"


async def test_a_revocation_told_again_does_not_stop_the_next_run(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old grant lives on for another job, so every heartbeat names the cancelled one once more."""
    waiting = Waiting()
    async with stored(url) as store:
        named: list[Any] = []
        beat = store.engine.heartbeat_owner

        async def heard(*args: Any, **kwargs: Any) -> Any:
            answer = await beat(*args, **kwargs)
            named.extend(() if answer is None else answer.revoked)
            return answer

        monkeypatch.setattr(store.engine, "heartbeat_owner", heard)
        (_, back) = [*await store.add("waits", who="stays"), *await store.add("waits", who="back")]
        async with working(waiting.app, store.engine, lease_seconds=1.0, poll_seconds=0.05):
            await waiting.tells("started", "stays", 1)
            await waiting.tells("started", "back", 1)
            await store.engine.cancel([back])
            await waiting.tells("stopped", "back", 1)
            await store.engine.redrive([back])
            await waiting.tells("started", "back", 2)
            before = named.count(back)
            await until(lambda: named.count(back) >= before + 2, "two more heartbeats name it")
            waiting.let_go("back", 2)
            (job,) = await store.reach([back], State.SUCCEEDED)
            assert (job.attempt, job.result) == (2, b'"run 2"')
            assert ("stopped", "back", 2) not in waiting.told
            waiting.let_go("stays", 1)


class DoubtfulEngine(MemoryEngine):
    """The answer to a handler's first commit is lost, after it was made or before."""

    def __init__(self, *, made: bool) -> None:
        super().__init__()
        self.made = made
        self.commits = 0

    @asynccontextmanager
    async def transaction(
        self, lease: Lease, result: Callable[[], bytes | None], *, tenant: str = "default"
    ) -> AsyncIterator[Any]:
        yield None
        self.commits += 1
        if self.commits > 1 or self.made:
            await self.settle([Settlement(lease, Done(result()))], tenant=tenant)
        if self.commits == 1:
            raise Indeterminate("the answer was lost")


@pytest.mark.parametrize("made", [False, True], ids=["not_committed", "committed"])
async def test_an_unknown_commit_is_never_taken_for_done(made: bool) -> None:
    app = Ropeway("memory://")

    @app.task(retry={"base": 0.01, "cap": 0.01})
    async def swallows(ctx: JobContext) -> str:
        try:
            async with ctx.transaction():
                ctx.finish(f"committed in run {ctx.attempt}")
        except Indeterminate:
            return "what the handler made of it"
        return "not seen"

    async with DoubtfulEngine(made=made) as engine:
        store = Store(engine)
        async with working(app, engine, poll_seconds=0.05):
            handle = await swallows.aenqueue()
            (job,) = await store.reach([handle.id], State.SUCCEEDED)
        run = 1 if made else 2
        assert (job.attempt, job.result) == (run, f'"committed in run {run}"'.encode())
        failed = await store.events(handle.id, EventName.FAILED)
        assert len(failed) == (0 if made else 1)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_what_would_not_stop_is_given_back_at_the_end(url: str, kind: str) -> None:
    """Not left to its lease, and no loss is counted: the worker knows whose it was."""
    app = Ropeway("memory://")
    started, over = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    @app.task
    async def clings() -> None:
        started.set()
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    @app.task
    def clings_in_thread() -> None:
        loop.call_soon_threadsafe(started.set)
        while not over.is_set():
            try:
                asyncio.run_coroutine_threadsafe(over.wait(), loop).result()
            except BaseException:  # noqa: BLE001 - that is the point
                continue

    async with stored(url) as store:
        inside = working(app, store.engine, lease_seconds=NEVER)
        await inside.__aenter__()
        name = "clings" if kind == "async" else "clings_in_thread"
        (id,) = [answer.id for answer in await store.engine.enqueue([NewJob(name, b"{}")])]
        await asyncio.wait_for(started.wait(), 10)
        await inside.stop(0.0)
        job = await store.job(id)
        over.set()
        assert (job.state, job.attempts, job.lease_lost_count) == (State.QUEUED, 0, 0)


class AwayForHeartbeats(MemoryEngine):
    """Cannot be reached for the first heartbeats of leases."""

    refusals = 3

    async def heartbeat(self, leases: Any, **options: Any) -> Any:
        if self.refusals:
            self.refusals -= 1
            raise Unavailable("the store is away")
        return await super().heartbeat(leases, **options)


async def test_what_was_lost_in_a_pause_is_stopped_when_the_engine_answers_again() -> None:
    """The parent tells once that there was a pause; an engine that is away just then is asked again."""
    waiting = Waiting()
    engine = AwayForHeartbeats()
    async with working(waiting.app, engine, lease_seconds=NEVER, poll_seconds=NEVER) as inside:
        store = Store(engine)
        await store.add("waits", who="a")
        await waiting.tells("started", "a", 1)
        await engine.pause("default")
        await engine.end_grants(inside._owner)
        inside.worker.recheck_soon()
        await waiting.tells("stopped", "a", 1)
        assert engine.refusals == 0


async def test_a_job_that_the_store_believes_here_and_is_not_is_given_back(url: str) -> None:
    """As after a failover that lost an acknowledgement: this process's own heartbeats would hold it for ever."""
    waiting = Waiting()
    async with (
        stored(url) as store,
        working(waiting.app, store.engine, lease_seconds=1.0, poll_seconds=0.05) as inside,
    ):
        (mine,) = await store.add("waits", who="mine")
        await waiting.tells("started", "mine", 1)
        await store.engine.pause("default")
        (gone,) = await store.add("waits", who="gone")
        inside.worker.quiet(True)
        await store.engine.resume("default")
        worker = WorkerRef("the same", inside._owner)
        (leased,) = (await store.engine.lease(["default"], 1, worker, lease_seconds=600.0)).leases
        assert leased.job.id == gone
        inside.worker.quiet(False)
        waiting.open["gone", 1] = waiting.open["gone", 2] = asyncio.Event()
        waiting.open["gone", 1].set()
        await store.reach([gone], State.SUCCEEDED)
        assert await store.outcomes(gone) == ["released", "succeeded"]
        job = await store.job(mine)
        assert (job.state, job.attempts) == (State.RUNNING, 1)
