"""Draining: what runs, in which order, where, and what is told of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from ropeway import BadArguments, JobContext, LeaseLost, Middleware, NewJob, Ropeway, UnknownTask, UsageError
from ropeway.core.joblog import LogLine
from ropeway.testing import Kit
from ropeway.testing.store import at_once


def test_it_goes_on_until_nothing_is_due(ropeway: Kit, app: Ropeway) -> None:
    ran: list[int] = []

    @app.task
    def countdown(n: int) -> None:
        ran.append(n)
        if n:
            countdown.enqueue(n - 1)

    countdown.enqueue(3)
    drained = ropeway.drain()
    assert ran == [3, 2, 1, 0]
    assert (len(drained), drained.succeeded, drained.failed, drained.dead) == (4, 4, 0, 0)
    assert repr(drained) == "<Drained 4 succeeded>"
    assert repr(ropeway.drain()) == "<Drained nothing>"


async def test_in_an_async_test(ropeway: Kit, app: Ropeway) -> None:
    ran: list[tuple[str, bool]] = []

    @app.task
    def plain() -> None:
        ran.append(("plain", threading.current_thread() is threading.main_thread()))

    @app.task
    async def first() -> None:
        ran.append(("async", asyncio.get_running_loop() is loop))
        await plain.aenqueue()

    loop = asyncio.get_running_loop()
    await first.aenqueue()
    assert (await ropeway.adrain()).succeeded == 2
    assert ran == [("async", True), ("plain", False)]  # a plain handler must not block the test's loop


def test_in_a_sync_test_both_kinds_run_in_the_tests_thread(ropeway: Kit, app: Ropeway) -> None:
    here = threading.local()
    here.transaction = "open"
    seen: dict[str, Any] = {}

    @app.task
    def plain() -> None:
        seen["plain"] = here.transaction
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        asyncio.run(asyncio.sleep(0))

    @app.task
    async def coroutine() -> None:
        await asyncio.sleep(0)
        seen["async"] = here.transaction

    plain.enqueue()
    coroutine.enqueue()
    ropeway.drain()
    assert seen == {"plain": "open", "async": "open"}


def test_handlers_see_the_tests_context_and_cannot_change_it(ropeway: Kit, app: Ropeway) -> None:
    user: ContextVar[str] = ContextVar("user")
    seen: list[str] = []

    @app.task
    def who() -> None:
        seen.append(user.get())
        user.set("someone else")

    user.set("ada")
    who.enqueue()
    ropeway.drain()
    assert seen == ["ada"]
    assert user.get() == "ada"


def test_the_most_urgent_goes_first_then_first_come(ropeway: Kit, app: Ropeway) -> None:
    ran: list[str] = []

    @app.task
    def note(name: str) -> None:
        ran.append(name)

    note.enqueue("a")
    note.options(queue="another").enqueue("b")
    note.options(priority=9).enqueue("last")
    note.options(priority=1).enqueue("first")
    note.enqueue("c")
    ropeway.drain()
    assert ran == ["first", "a", "b", "c", "last"]


def test_only_some_queues(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def note() -> None: ...

    for queue in ("mail", "reports", "mail", "images"):
        note.options(queue=queue).enqueue()
    assert ropeway.drain(queue="mail").succeeded == 2
    assert ropeway.drain(queue=["images"]).succeeded == 1
    assert [job.queue for job in ropeway.enqueued(state="queued")] == ["reports"]


def test_every_tenants_jobs_run(ropeway: Kit, app: Ropeway) -> None:
    tenants: list[str] = []

    @app.task
    def note(ctx: JobContext) -> None:
        ctx.log("here")
        tenants.append(ctx.job.tenant)

    note.options(tenant="acme").enqueue()
    note.enqueue()
    assert ropeway.drain().succeeded == 2
    assert tenants == ["acme", "default"]


def test_a_paused_queue_waits(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def note() -> None: ...

    note.enqueue()
    at_once(ropeway.engine.pause("default"))
    assert len(ropeway.drain()) == 0
    at_once(ropeway.engine.resume("default"))
    assert len(ropeway.drain()) == 1


def test_what_a_handler_cancels_does_not_run(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def victim() -> None:
        raise AssertionError

    @app.task
    def killer() -> None:
        job.cancel()

    killer.enqueue()
    job = victim.enqueue()
    assert repr(ropeway.drain()) == "<Drained 1 succeeded>"
    assert job.refresh().state == "cancelled"


def test_a_run_whose_own_job_is_cancelled(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def note() -> None:
        job.cancel()

    job = note.enqueue()
    assert ropeway.drain().cancelled == 1
    assert job.refresh().state == "cancelled"


# ── Errors ──


class Broken(Exception):
    pass


def test_what_a_handler_raises_is_raised_to_the_test(ropeway: Kit, app: Ropeway) -> None:
    @app.task(max_attempts=2)
    def broken(n: int) -> None:
        raise Broken("no")

    broken.enqueue(1)
    broken.enqueue(2)
    with pytest.raises(Broken, match="no") as caught:
        ropeway.drain()
    # The traceback begins in the test and goes straight to the handler.
    frames = [entry.name for entry in caught.traceback if "ropeway/testing" not in str(entry.path)]
    assert frames == ["test_what_a_handler_raises_is_raised_to_the_test", "broken"]
    assert all("__tracebackhide__" in e.locals for e in caught.traceback if "ropeway/testing" in str(e.path))
    assert "raised by broken(n=1), attempt 1; the job is retrying now" in caught.value.__notes__[0]
    # Its outcome was noted, the next job has not run yet.
    assert [job.state for job in ropeway.enqueued()] == ["retrying", "queued"]
    with pytest.raises(Broken):
        ropeway.drain()
    assert [job.state for job in ropeway.enqueued()] == ["retrying", "retrying"]


async def test_the_same_in_an_async_test(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def plain() -> None:
        raise Broken

    @app.task
    async def coroutine() -> None:
        raise Broken

    for task in (plain, coroutine):
        await task.aenqueue()
        with pytest.raises(Broken) as caught:
            await ropeway.adrain()
        shown = [entry.name for entry in caught.traceback if not entry.ishidden(caught)]
        assert shown == ["test_the_same_in_an_async_test", task.name]


def test_errors_can_be_kept(ropeway: Kit, app: Ropeway) -> None:
    @app.task(max_attempts=1)
    def dies() -> None:
        raise Broken("for good")

    @app.task
    def fails() -> None:
        raise Broken("for now")

    @app.task
    def works() -> None: ...

    for task in (dies, fails, works):
        task.enqueue()
    drained = ropeway.drain(raise_errors=False)
    assert (drained.dead, drained.failed, drained.succeeded) == (1, 1, 1)
    assert [str(error) for error in drained.errors] == ["for good", "for now"]
    first = drained.runs[0]
    assert first.ended == "dead"
    assert first.job.last_error is not None
    assert first.job.last_error.message == "for good"
    assert repr(drained) == "<Drained 1 succeeded, 1 failed, 1 dead>"


def test_exit_is_a_failure_of_the_job_as_in_a_worker(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def leave() -> None:
        raise SystemExit(3)

    leave.enqueue()
    drained = ropeway.drain(raise_errors=False)
    assert isinstance(drained.errors[0], SystemExit)
    assert drained.failed == 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_ends_the_test_always_gets_through(ropeway: Kit, app: Ropeway, asynchronous: bool) -> None:
    @app.task
    def plain() -> None:
        pytest.fail("the handler says no")

    @app.task
    async def coroutine() -> None:
        raise KeyboardInterrupt

    (coroutine if asynchronous else plain).enqueue()
    with pytest.raises(KeyboardInterrupt if asynchronous else pytest.fail.Exception):
        ropeway.drain(raise_errors=False)
    assert ropeway.drain().runs == []  # the kit is fit for use


def test_a_handler_may_raise_what_no_future_can_hold(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def stops() -> None:
        raise StopIteration(5)

    stops.enqueue()
    with pytest.raises(RuntimeError, match=r"raised StopIteration\(5\)"):
        ropeway.drain()


def test_signals_are_no_errors(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def snoozes(ctx: JobContext) -> None:
        ctx.snooze(60)

    @app.task
    def retries(ctx: JobContext) -> None:
        ctx.retry(after=60)

    @app.task
    def discards(ctx: JobContext) -> None:
        ctx.discard("not wanted any more")

    for task in (snoozes, retries, discards):
        task.enqueue()
    drained = ropeway.drain()
    assert (drained.snoozed, drained.failed, drained.dead, drained.errors) == (1, 1, 1, [])


def test_an_unknown_task_and_wrong_arguments(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def greet(name: str) -> None: ...

    at_once(ropeway.engine.enqueue([NewJob("gret"), NewJob("greet", b'{"nam": "ada"}')]))
    with pytest.raises(UnknownTask, match="did you mean greet"):
        ropeway.drain()
    with pytest.raises(BadArguments, match="argument 'nam' is not one it takes"):
        ropeway.drain()
    assert [job.state for job in ropeway.enqueued()] == ["retrying", "dead"]


def test_jobs_that_enqueue_one_another_for_ever_do_not_hang_the_test(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def again() -> None:
        again.enqueue()

    again.enqueue()
    with pytest.raises(UsageError, match=r"20 jobs have run and more are due, again next.*limit"):
        ropeway.drain(limit=20)


async def test_a_drain_that_is_cancelled_is_no_failure_of_the_job(ropeway: Kit, app: Ropeway) -> None:
    started = asyncio.Event()

    @app.task
    async def waits() -> None:
        started.set()
        await asyncio.Event().wait()

    job = await waits.aenqueue()
    draining = asyncio.create_task(ropeway.adrain())
    await started.wait()
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining
    assert (await job.refresh()).state == "queued"
    assert job.job is not None
    assert (job.job.attempts, job.job.failures) == (0, 0)


async def test_a_plain_handler_is_told_that_the_drain_is_cancelled(ropeway: Kit, app: Ropeway) -> None:
    started, stopped = threading.Event(), threading.Event()

    @app.task
    def waits(ctx: JobContext) -> None:
        started.set()
        while not ctx.cancelled:
            stopped.wait(0.001)
        stopped.set()

    await waits.aenqueue()
    draining = asyncio.create_task(ropeway.adrain())
    await asyncio.to_thread(started.wait)
    draining.cancel()
    await asyncio.wait((draining,))
    assert await asyncio.to_thread(stopped.wait, 10)


# ── What handlers have round them ──


def test_middleware_is_round_handlers_and_enqueues(ropeway: Kit, app: Ropeway) -> None:
    told: list[str] = []

    class Telling(Middleware):
        async def enqueue(self, job: NewJob, call_next: Callable[[NewJob], Awaitable[Any]]) -> Any:
            await asyncio.sleep(0)
            told.append(f"enqueue {job.type}")
            return await call_next(job)

        async def run(self, ctx: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
            told.append(f"run {ctx.job.type}")
            return await call_next()

    app.add_middleware(Telling())

    @app.task
    def greet() -> None:
        told.append("hello")

    greet.enqueue()
    ropeway.drain()
    assert told == ["enqueue greet", "run greet", "hello"]


def test_progress_and_log_lines_are_there_to_look_at(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def works(ctx: JobContext) -> None:
        ctx.progress(1, 2, "half")
        ctx.progress(2, 2)
        ctx.log("done", level="warning")

    job = works.enqueue()
    (ran,) = ropeway.drain().runs
    assert [(one.done, one.message) for one in ran.progress] == [(1, "half"), (2, None)]
    assert ran.log == [LogLine("done", "warning", 1)]
    stored = at_once(ropeway.engine.log_of(job.id))
    assert [(line.message, line.level) for line in stored] == [("done", "warning")]


def test_state_is_what_the_test_makes_of_it(ropeway: Kit, app: Ropeway) -> None:
    @app.lifespan
    async def connect(app: Ropeway) -> AsyncIterator[None]:
        raise AssertionError("hooks do not run unless they are asked for")
        yield

    @app.task
    def ask(ctx: JobContext) -> str:
        return ctx.state.database  # type: ignore[no-any-return]

    with pytest.raises(AttributeError) as caught:
        ropeway.perform(ask)
    assert "lifespan=True" in caught.value.__notes__[0]
    app.state.database = "a fake"
    assert ropeway.perform(ask) == "a fake"


def test_lifespan_hooks_run_round_each_drain_if_asked_for(app: Ropeway) -> None:
    told: list[str] = []

    @app.lifespan
    async def connect(app: Ropeway) -> AsyncIterator[None]:
        told.append("open")
        app.state.database = "real"
        yield
        told.append("close")

    @app.task
    def inner(ctx: JobContext) -> None:
        told.append(ctx.state.database)

    @app.task
    def outer() -> None:
        with ropeway.inline():
            inner.enqueue()

    with Kit(app, lifespan=True) as ropeway:
        outer.enqueue()
        ropeway.drain()
        ropeway.perform(inner)
    assert told == ["open", "real", "close", "open", "real", "close"]
    assert not vars(app.state)


class FakeDatabase:
    """Remembers what became of its transactions."""

    def __init__(self) -> None:
        self.told: list[str] = []

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[FakeDatabase]:
        try:
            yield self
        except BaseException:
            self.told.append("rollback")
            raise
        self.told.append("commit")


def test_a_handlers_transaction_completes_its_job(app: Ropeway) -> None:
    database = FakeDatabase()

    @app.task
    async def pay(ctx: JobContext, fail: bool = False) -> Any:
        async with ctx.transaction() as connection:
            assert connection is database
            if fail:
                raise Broken
            ctx.finish({"paid": True})

    with Kit(app, transaction=database.transaction) as ropeway:
        job = pay.enqueue()
        assert ropeway.drain().succeeded == 1
        assert job.result() == {"paid": True}
        assert ropeway.perform(pay) == {"paid": True}
        pay.enqueue(fail=True)
        assert ropeway.drain(raise_errors=False).failed == 1
    assert database.told == ["commit", "commit", "rollback"]


async def test_a_transaction_whose_job_was_cancelled_rolls_back(app: Ropeway) -> None:
    database = FakeDatabase()

    @app.task
    async def pay(ctx: JobContext) -> None:
        async with ctx.transaction():
            await (await app.job(ctx.job.id)).cancel()

    with Kit(app, transaction=database.transaction) as ropeway:
        await pay.aenqueue()
        drained = await ropeway.adrain(raise_errors=False)
    assert drained.cancelled == 1
    assert isinstance(drained.errors[0], LeaseLost)
    assert database.told == ["rollback"]
