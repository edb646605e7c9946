"""The test kit: what the `ropeway` fixture is.

    def test_signing_up_sends_a_welcome(ropeway):
        ropeway.use(app)
        sign_up("ada@example.com")
        ropeway.assert_enqueued(welcome, email="ada@example.com")
        ropeway.drain()

Without pytest: `with Kit(app) as ropeway: ...`.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import msgspec

from ropeway.app import Ropeway
from ropeway.client.handles import JobHandle
from ropeway.client.tasks import BoundTask
from ropeway.core.errors import UsageError
from ropeway.core.schedule import Fired
from ropeway.core.states import State
from ropeway.engines.open import engine_rules
from ropeway.engines.protocol import Engine, Enqueued
from ropeway.task.spec import TaskSpec
from ropeway.testing.assertions import EnqueuedJob, enqueued_job, expected, missing_text, present_text
from ropeway.testing.clock import MovableClock, duration
from ropeway.testing.running import Drained, Ran, from_the_handler, perform
from ropeway.testing.stage import Stages
from ropeway.testing.store import Connect, KitEngine, KitEngines, SharedStore

P = ParamSpec("P")
R = TypeVar("R")

#: A task: itself, with options, or its name.
AnyTask = BoundTask[..., Any] | str

#: Runs of one drain, unless it says otherwise: handlers that enqueue one another for ever must not hang a test.
MOST_RUNS = 5_000

#: What fails a job. Anything else (pytest.fail, Ctrl-C) means the test.
_FAILURES = (Exception, SystemExit, asyncio.CancelledError)

#: Whether the app's lifespan hooks are round the code that runs here.
_in_lifespan: contextvars.ContextVar[bool] = contextvars.ContextVar("ropeway_in_lifespan", default=False)


class Kit:
    """An app in a test: its jobs go to a store of the test's own, and run when the test says so.

    Methods that run handlers come in two forms, `drain` for sync tests and `adrain` for async ones; the others
    serve both.
    """

    def __init__(self, app: Ropeway | None = None, **options: Any) -> None:
        """`options` are those of `use`."""
        #: The only clock of the test's jobs.
        self.clock = MovableClock()
        self._stages = Stages()
        self._undo = ExitStack()
        self._app: Ropeway | None = None
        self._store: SharedStore
        self._lifespan = False
        self._undo.callback(self._stages.close)
        if app is not None:
            self.use(app, **options)

    # ── Taking hold of an app ──

    def use(self, app: Ropeway, *, lifespan: bool = False, transaction: Connect | None = None) -> Ropeway:
        """From now to the end of the test, the app's jobs go to an empty store in memory, never to the real one.

        `lifespan` runs the app's lifespan hooks round each drain. `transaction` gives `ctx.transaction()` its
        connection: a function that returns an async context manager, which commits when its block ends and rolls
        back when it raises.
        """
        if self._app is not None:
            if self._app is app:
                return app
            raise UsageError(
                "this kit has taken hold of another app already",
                hint="for a second app: with ropeway.testing.Kit(app) as other",
            )
        engine = KitEngine(engine_rules(app.settings), self.clock)
        self._store = SharedStore(engine)
        self._store.connect = transaction
        self._lifespan = lifespan
        engines = KitEngines(self._store, self._stages)
        self._undo.callback(engines.end)
        self._undo.enter_context(app.stand_in(engines))
        self._undo.callback(_restore, app.state, dict(vars(app.state)))
        self._app = app
        self.clock.turned_back = engine.plan_again
        self._declare_schedules()
        return app

    @property
    def app(self) -> Ropeway:
        if self._app is None:
            raise UsageError(
                "no app is named for this test",
                hint="call ropeway.use(app) first, or let a fixture `ropeway_app` return it",
            )
        return self._app

    @property
    def engine(self) -> Engine:
        """The test's store."""
        return self._held().as_engine()

    def _held(self) -> SharedStore:
        _ = self.app  # there is no store before there is an app
        return self._store

    def close(self) -> None:
        """Give the app back as it was."""
        self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ── Running ──

    def drain(
        self,
        *,
        queue: str | Collection[str] | None = None,
        raise_errors: bool = True,
        schedules: bool = True,
        limit: int = MOST_RUNS,
    ) -> Drained:
        """Run every job that is due, and those that they enqueue, one after the other, until nothing is due.

        Schedules that the clock has passed fire first. The first exception of a handler is raised here, after its
        outcome was noted as a worker would; with `raise_errors=False` they are kept in the answer. `queue` names
        the queue, or the queues, to drain.
        """
        __tracebackhide__ = True
        return self._stages.run(
            lambda: self.adrain(queue=queue, raise_errors=raise_errors, schedules=schedules, limit=limit),
            instead="ropeway.adrain()",
        )

    async def adrain(
        self,
        *,
        queue: str | Collection[str] | None = None,
        raise_errors: bool = True,
        schedules: bool = True,
        limit: int = MOST_RUNS,
    ) -> Drained:
        """As `drain`, for async tests. `def` handlers run in a thread then, as they do in a worker."""
        __tracebackhide__ = True
        drained = Drained()
        async with self._hooks():
            await self._drain(drained, _names(queue), raise_errors, schedules, limit)
        return drained

    def run_for(
        self,
        by: timedelta | float = 0.0,
        *,
        seconds: float = 0.0,
        minutes: float = 0.0,
        hours: float = 0.0,
        days: float = 0.0,
        queue: str | Collection[str] | None = None,
        raise_errors: bool = True,
        schedules: bool = True,
        limit: int = MOST_RUNS,
    ) -> Drained:
        """As if a worker had been at it for that long: the clock moves from one due moment to the next, and each
        job, retry and schedule has its turn at its own time. (`clock.advance` is a worker that was away.)"""
        __tracebackhide__ = True
        span = duration(by, seconds=seconds, minutes=minutes, hours=hours, days=days)
        return self._stages.run(
            lambda: self.arun_for(span, queue=queue, raise_errors=raise_errors, schedules=schedules, limit=limit),
            instead="ropeway.arun_for()",
        )

    async def arun_for(
        self,
        by: timedelta | float = 0.0,
        *,
        seconds: float = 0.0,
        minutes: float = 0.0,
        hours: float = 0.0,
        days: float = 0.0,
        queue: str | Collection[str] | None = None,
        raise_errors: bool = True,
        schedules: bool = True,
        limit: int = MOST_RUNS,
    ) -> Drained:
        """As `run_for`, for async tests."""
        __tracebackhide__ = True
        queues = _names(queue)
        end = self.clock.now() + duration(by, seconds=seconds, minutes=minutes, hours=hours, days=days)
        drained = Drained()
        async with self._hooks():
            while True:
                await self._drain(drained, queues, raise_errors, schedules, limit)
                if self.clock.now() >= end:
                    return drained
                moments = self._store.engine.next_moments(queues, schedules=schedules)
                self.clock.move_to(min([*moments, end]))

    async def _drain(
        self, drained: Drained, queues: Collection[str] | None, raise_errors: bool, schedules: bool, limit: int
    ) -> None:
        __tracebackhide__ = True
        program, engine = self.app.program, self._store.engine
        if schedules:
            self.fire_schedules()
        self._store.now_done(engine.expire())
        before = -1
        while len(drained) > before:
            before = len(drained)
            with self._store.lock:
                round = engine.due(queues)
            for row in round:
                if len(drained) >= limit:
                    raise UsageError(
                        f"{limit} jobs have run and more are due, {row.new.type} next",
                        hint="do handlers enqueue one another for ever? If not: drain(limit=...)",
                    )
                with self._store.lock:
                    leased = engine.start_if_due(row)
                if leased is None:
                    continue
                ran = await perform(program, self._store, leased)
                drained.runs.append(ran)
                self._raise(ran, raise_errors)

    def perform(self, task: BoundTask[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a task once, at once, with arguments and result made into JSON and back as for a real job.

        Returns what `job.result()` would, and raises what the handler raises; also `SnoozeJob`, `RetryJob` and
        `DiscardJob`, if it ends itself that way. Nothing is enqueued for it.
        """
        __tracebackhide__ = True
        return self._stages.run(lambda: self.aperform(task, *args, **kwargs), instead="ropeway.aperform()")

    async def aperform(self, task: BoundTask[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """As `perform`, for async tests."""
        __tracebackhide__ = True
        spec = self._own(task)
        call = task.call(*args, **kwargs)
        aside = SharedStore(KitEngine(self._store.engine.rules, self.clock))
        aside.connect = self._store.connect
        new = msgspec.structs.replace(call.job, run_at=None, delay=None)
        (answer,) = await aside.enqueue([new], tenant=call.tenant)
        async with self._hooks():
            leased = aside.engine.start(answer.id, call.tenant)
            ran = await perform(self.app.program, aside, leased, any_time=True)
        if ran.signal is not None:
            raise from_the_handler(ran.signal)
        if ran.error is not None:
            raise from_the_handler(ran.error)
        handle: JobHandle[R] = JobHandle.of(KitEngines(aside, self._stages), spec, answer, call.tenant)
        return await handle.result()

    @contextmanager
    def inline(self, *, raise_errors: bool = True) -> Iterator[None]:
        """Inside the block every enqueue runs its job at once, whenever it was to run, and returns when it has.

        What the handler raises is raised to whoever enqueued; with `raise_errors=False` it is left to the job.
        """

        async def run_all(answers: Sequence[Enqueued], tenant: str) -> list[Enqueued]:
            __tracebackhide__ = True
            return [await self._run_at_once(answer, tenant, raise_errors) for answer in answers]

        def run_all_blocking(answers: Sequence[Enqueued], tenant: str) -> list[Enqueued]:
            __tracebackhide__ = True
            return self._stages.run(lambda: run_all(answers, tenant), instead="aenqueue()")

        store = self._held()
        before = store.at_once, store.at_once_blocking
        store.at_once, store.at_once_blocking = run_all, run_all_blocking
        try:
            yield
        finally:
            store.at_once, store.at_once_blocking = before

    async def _run_at_once(self, answer: Enqueued, tenant: str, raise_errors: bool) -> Enqueued:
        __tracebackhide__ = True
        if answer.deduplicated:
            return answer
        engine = self._store.engine
        if answer.state is State.SCHEDULED:
            self._store.now_done(engine.reschedule(answer.id, delay=0, tenant=tenant))
        with self._store.lock:
            leased = engine.start(answer.id, tenant)
        async with self._hooks():
            ran = await perform(self.app.program, self._store, leased, any_time=True)
        self._raise(ran, raise_errors)
        return Enqueued(answer.id, ran.job.state, created_at=ran.job.created_at, run_at=ran.job.run_at)

    def _raise(self, ran: Ran, raise_errors: bool) -> None:
        """Raise what a handler raised, if the test wants it; what ends the test itself (pytest.fail), always."""
        __tracebackhide__ = True
        error = ran.error
        failure = isinstance(error, _FAILURES)
        if error is None or (failure and not raise_errors):
            return
        if failure:
            about = enqueued_job(ran.job, ran.job.run_at, self.app.registry.get(ran.job.type))
            error.add_note(
                f"raised by {about}, attempt {ran.job.attempt}; the job is {ran.job.state} now "
                f"(raise_errors=False keeps errors instead of raising them)"
            )
        raise from_the_handler(error)

    @asynccontextmanager
    async def _hooks(self) -> AsyncIterator[None]:
        if not self._lifespan or _in_lifespan.get():
            yield
            return
        inside = _in_lifespan.set(True)
        try:
            async with self.app.program.lifespan():
                yield
        finally:
            _in_lifespan.reset(inside)

    # ── Schedules ──

    def fire_schedules(self) -> list[Fired]:
        """Enqueue what `@app.cron` and stored schedules ask for up to now, without running it."""
        self._declare_schedules()
        fired: list[Fired] = []
        while some := self._store.now_done(self._store.engine.fire_due()):
            fired += some
        return fired

    def _declare_schedules(self) -> None:
        for schedule in self.app.program.schedules():
            self._store.now_done(self._store.engine.put_schedule(schedule))

    # ── Looking ──

    def enqueued(
        self, task: AnyTask | None = None, *, queue: str | None = None, state: State | str | None = None
    ) -> list[EnqueuedJob]:
        """The jobs that were enqueued in this test, in order, as they are now: also those that have run."""
        type = None if task is None else self._type(task)
        return [
            found
            for found in self._all()
            if (type is None or found.type == type)
            and (queue is None or found.queue == queue)
            and (state is None or found.state == state)
        ]

    def assert_enqueued(
        self,
        task: AnyTask,
        /,
        *args: Any,
        times: int | None = None,
        queue: str | None = None,
        priority: int | None = None,
        delay: float | timedelta | None = None,
        run_at: datetime | None = None,
        **kwargs: Any,
    ) -> EnqueuedJob:
        """Fail unless such a job was enqueued in this test; `times`: exactly so many. The first of them.

        Arguments that are not mentioned do not matter; those that are may be matchers such as `mock.ANY`. One that
        is named like an option (`queue`, `times` ...) is given by position.
        """
        __tracebackhide__ = True
        others = {"queue": queue, "priority": priority, "delay": delay, "run_at": run_at}
        type, spec = self._type_and_spec(task)
        wanted = expected(type, spec, args, kwargs, others)
        if times is not None and times < 1:
            raise UsageError("times is at least 1", hint="that there is none says ropeway.refute_enqueued()")
        found = self._all()
        matching = [job for job in found if wanted.matches(job)]
        if not matching if times is None else len(matching) != times:
            raise AssertionError(missing_text(wanted, times, found, self.clock.now()))
        return matching[0]

    def refute_enqueued(
        self,
        task: AnyTask,
        /,
        *args: Any,
        queue: str | None = None,
        priority: int | None = None,
        delay: float | timedelta | None = None,
        run_at: datetime | None = None,
        **kwargs: Any,
    ) -> None:
        """Fail if such a job was enqueued in this test."""
        __tracebackhide__ = True
        others = {"queue": queue, "priority": priority, "delay": delay, "run_at": run_at}
        type, spec = self._type_and_spec(task)
        wanted = expected(type, spec, args, kwargs, others)
        found = self._all()
        if any(wanted.matches(job) for job in found):
            raise AssertionError(present_text(wanted, found, self.clock.now()))

    def clear(self) -> None:
        """Forget all jobs: what comes now counts."""
        store = self._held()
        with store.lock:
            store.engine.clear()

    def _all(self) -> list[EnqueuedJob]:
        find = self.app.registry.get
        with self._store.lock:
            accepted = self._store.engine.accepted()
        return [enqueued_job(job, asked_run_at, find(job.type)) for job, asked_run_at in accepted]

    def _type(self, task: AnyTask) -> str:
        return self._type_and_spec(task)[0]

    def _type_and_spec(self, task: AnyTask) -> tuple[str, TaskSpec | None]:
        if isinstance(task, str):
            spec = self.app.registry.get(task)
            if spec is None and not any(row.new.type == task for row in self._store.engine.jobs.values()):
                raise self.app.registry.unknown(task)
            return task, spec
        spec = self._own(task)
        return spec.name, spec

    def _own(self, task: BoundTask[..., Any]) -> TaskSpec:
        """The task's spec. Raises UsageError for what is no task of the app: its jobs do not come here."""
        if not isinstance(task, BoundTask):
            raise UsageError(f"{task!r} is not a task", hint="give what @app.task made, or the task's name")
        if self.app.registry.get(task.name) is not task.spec:
            raise UsageError(f"{task.name} is a task of another app", hint="call ropeway.use() with that app")
        return task.spec


def _names(queue: str | Collection[str] | None) -> Collection[str] | None:
    return (queue,) if isinstance(queue, str) else queue


def _restore(state: Any, before: dict[str, Any]) -> None:
    vars(state).clear()
    vars(state).update(before)
