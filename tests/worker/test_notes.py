"""Progress and log lines are hints for people: whatever is wrong with them, no other job's outcome changes."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from ropeway import JobContext, Ropeway
from ropeway.core.job import NewJob
from ropeway.core.states import State
from ropeway.worker import reporter
from tests.worker.inside import stored, working
from tests.worker.kit import until

ODD: list[Any] = ["half", object(), [1], 1j]
CONVERTED: list[tuple[Any, float | None]] = [
    (Decimal("1.5"), 1.5),
    (Fraction(1, 2), 0.5),
    (True, 1),
    (2**53, 2**53),
    (10**30, 1e30),
    (float("nan"), None),
    (float("-inf"), None),
]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    return "memory://" if request.param == "memory" else request.getfixturevalue(f"{request.param}_url")


def an_app() -> tuple[Ropeway, asyncio.Event]:
    """Its tasks tell something and wait for the event."""
    app = Ropeway("memory://")
    go = asyncio.Event()

    @app.task
    async def tells(ctx: JobContext, n: int, what: str) -> None:
        value = {"odd": ODD, "converted": [given for given, _ in CONVERTED], "huge": [10**400]}[what][n]
        ctx.progress(value, 2, message=ValueError("no text"))  # type: ignore[arg-type]
        await go.wait()

    @app.task
    async def tells_well(ctx: JobContext) -> None:
        ctx.progress(1, 2, "half")
        ctx.log("one line")
        await go.wait()

    return app, go


async def test_an_odd_number_fails_its_own_handler_or_is_converted(url: str) -> None:
    app, go = an_app()
    async with stored(url) as store, working(app, store.engine, concurrency=30, poll_seconds=0.05):
        once = {"max_attempts": 1}
        odd = [id for n in range(len(ODD)) for id in await store.add("tells", n=n, what="odd", options=once)]
        odd += await store.add("tells", n=0, what="huge", options=once)
        good = [id for n in range(len(CONVERTED)) for id in await store.add("tells", n=n, what="converted")]
        beside = await store.add("tells_well", 2)
        for job in await store.reach(odd, State.DEAD):
            assert job.last_error is not None
            assert job.last_error.type == "FieldError"
            assert "not a number" in job.last_error.message

        async def all_told() -> bool:
            return all(job.progress is not None for job in await store.jobs(good + beside))

        await until(all_told, "the others' progress is seen while they run")
        for job, (_, expected) in zip(await store.jobs(good), CONVERTED, strict=True):
            assert job.progress is not None
            assert (job.progress.done, job.progress.total, job.progress.message) == (expected, 2, "no text")
        for job in await store.jobs(beside):
            assert job.progress is not None
            assert (job.progress.done, job.progress.message) == (1, "half")
        go.set()
        for job in await store.reach(good + beside, State.SUCCEEDED):
            assert job.attempt == 1
            assert len(await store.engine.log_of(job.id)) == (1 if job.id in beside else 0)


@pytest.mark.parametrize("method", ["progress", "log"])
async def test_notes_that_the_engine_breaks_on_change_no_outcome(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    app, go = an_app()
    go.set()
    broken: list[int] = []

    async def breaks(notes: Any, **kwargs: Any) -> Any:
        broken.append(len(notes))
        raise TypeError("a defect")

    async with stored() as store:
        monkeypatch.setattr(store.engine, method, breaks)
        async with working(app, store.engine, poll_seconds=0.05):
            ids = [one.id for one in await store.engine.enqueue([NewJob("tells_well", b"{}", max_attempts=1)] * 3)]
            await until(lambda: sum(broken) == 3, "the notes of all three were sent")

            async def ended() -> bool:
                return all(job.state in (State.SUCCEEDED, State.DEAD) for job in await store.jobs(ids))

            await until(ended, "all three have ended")
            assert await store.states(ids) == {State.SUCCEEDED: 3}


async def test_an_outcome_does_not_wait_for_notes_that_do_not_go_out(monkeypatch: pytest.MonkeyPatch) -> None:
    app, go = an_app()
    go.set()
    monkeypatch.setattr(reporter, "FLUSH_SECONDS", 0.05, raising=False)
    never = asyncio.Event()

    async def hangs(*args: Any, **kwargs: Any) -> Any:
        await never.wait()

    async with stored() as store:
        monkeypatch.setattr(store.engine, "progress", hangs)
        async with working(app, store.engine, poll_seconds=0.05):
            await store.reach(await store.add("tells_well", 3), State.SUCCEEDED, within=10)
