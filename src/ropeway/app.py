"""Ropeway: what a Python program holds. It declares tasks, enqueues them and describes itself to workers."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, asynccontextmanager
from types import SimpleNamespace, TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID

import msgspec

from ropeway.client.declaring import TaskDecorator
from ropeway.client.engines import Engines
from ropeway.client.handles import JobHandle, SyncJobHandle
from ropeway.client.producer import Producer, Windows
from ropeway.client.schedules import Schedules, SyncSchedules
from ropeway.client.tasks import Call, Task
from ropeway.core import fields
from ropeway.core.errors import ConfigurationError, FieldError, NotFound
from ropeway.core.job import DEFAULT_MAX_ATTEMPTS, DEFAULT_TENANT, DEFAULT_TIMEOUT, Job
from ropeway.core.schedule import Missed, NewSchedule
from ropeway.core.window import Window
from ropeway.engines.open import engine_for
from ropeway.engines.protocol import Engine
from ropeway.settings import Settings
from ropeway.task.arguments import Arguments
from ropeway.task.middleware import Middleware
from ropeway.task.options import job_fields
from ropeway.task.registry import Registry
from ropeway.task.spec import TaskDefaults, TaskSpec
from ropeway.worker.program import Program

Hook = TypeVar("Hook", bound=Callable[..., Any])
AnyTask = Task[..., Any, ..., Any]


class Ropeway:
    """An app: its tasks, schedules, middleware and shared state, over the engine that `url` names.

    `url` and other settings given here go before the environment and pyproject.toml; those are read when the app
    is first used. Nothing is opened before that.
    """

    def __init__(self, url: str | None = None, **settings: Any) -> None:
        self._given = {"url": url, **settings}
        self._settings: Settings | None = None
        self._defaults: TaskDefaults | None = None
        self._middlewares: list[Middleware] = []
        self._lifespans: list[Callable[..., Any]] = []
        self._declared: dict[str, tuple[NewSchedule, TaskSpec]] = {}
        self._tasks: dict[str, AnyTask] = {}
        self._engines = Engines(lambda: engine_for(self.settings))
        self._producer = Producer(self._engines, self._middlewares)
        #: Every declared task, as workers see it.
        self.registry = Registry()
        #: Shared resources: put them here in a lifespan hook; handlers find them as `ctx.state`.
        self.state = SimpleNamespace()
        #: Declares a task: `@app.task`, or `@app.task(queue="mail", max_attempts=8)`.
        self.task = TaskDecorator(self._declare)
        #: The stored schedules, for async code.
        self.schedules = Schedules(self._engines)
        #: What of the app is async, for code without an event loop.
        self.sync = SyncApp(self._engines, self.registry)

    @property
    def settings(self) -> Settings:
        """The settings in force. Raises ConfigurationError, naming the setting that is wrong."""
        if self._settings is None:
            self._settings = Settings.load(self._given)
        return self._settings

    # ── Declaring ──

    def _declare(
        self, function: Callable[..., Any], options: Mapping[str, Any], names: Mapping[str, Any] | None
    ) -> AnyTask:
        if isinstance(function, Task):
            raise ConfigurationError(f"{function.name} is a task already", hint="put one @app.task on it")
        spec = task_spec(function, options, names)
        self.registry.add(spec)
        task: AnyTask = Task(function, spec, self._producer, self._task_defaults)
        self._tasks[spec.name] = task
        return task

    def _task_defaults(self) -> TaskDefaults:
        if self._defaults is None:
            settings = self.settings
            self._defaults = TaskDefaults(settings.retry_max_attempts, settings.job_timeout)
        return self._defaults

    def get_task(self, name: str) -> AnyTask:
        """The task of that name. Raises UnknownTask, with what may have been meant."""
        task = self._tasks.get(name)
        if task is None:
            raise self.registry.unknown(name)
        return task

    def cron(
        self,
        expression: str,
        *,
        tz: str = "UTC",
        name: str | None = None,
        args: Mapping[str, Any] | None = None,
        queue: str | None = None,
        priority: int | str | None = None,
        missed: Missed = "once",
    ) -> TaskDecorator:
        """Enqueue a task by the clock: `@app.cron("0 9 * * 1-5", tz="Europe/Paris")` on a function or on a task.

        `args` are its arguments, by name; without them it must be callable with none. `name` is the schedule's own
        (the task's by default), `missed` what to do about times that nobody was there for: `once`, `all`, `skip`.
        Its jobs are like those of a plain enqueue, but for the task's `key`: each time is a call of its own.
        """

        def declare(
            function: Callable[..., Any], options: Mapping[str, Any], names: Mapping[str, Any] | None
        ) -> AnyTask:
            task = function if isinstance(function, Task) else self._declare(function, options, names)
            schedule = self._schedule(
                task.spec,
                expression,
                tz=tz,
                name=name or task.name,
                args=args or {},
                queue=queue,
                priority=priority,
                missed=missed,
            )
            if schedule.name in self._declared:
                raise ConfigurationError(
                    f"two schedules are named {schedule.name!r}", hint='give one another name: name="..."'
                )
            self._declared[schedule.name] = (schedule, task.spec)
            return task

        return TaskDecorator(declare)

    def _schedule(
        self,
        spec: TaskSpec,
        expression: str,
        *,
        tz: str,
        name: str,
        args: Mapping[str, Any],
        queue: str | None,
        priority: int | str | None,
        missed: Missed,
    ) -> NewSchedule:
        missing = spec.arguments.required - args.keys()
        if missing:
            raise ConfigurationError(
                f"{spec.name} cannot be called by the clock: it needs {', '.join(sorted(missing))}",
                hint="give @app.cron the arguments, args={...}, or the parameters defaults",
            )
        return NewSchedule(
            name=name,
            cron=expression,
            type=spec.name,
            tz=tz,
            queue=queue or spec.queue,
            payload=spec.arguments.encode((), args),
            priority=spec.priority if priority is None else fields.parse_priority(priority),
            max_attempts=spec.max_attempts or DEFAULT_MAX_ATTEMPTS,
            missed=missed,
            source="code",
            timeout=DEFAULT_TIMEOUT if spec.timeout is None else spec.timeout,
            retry=spec.retry,
            unique=spec.unique,
            expires_in=spec.expires_in,
            tags=spec.tags,
            headers=spec.headers,
        )

    def _declared_schedules(self) -> list[NewSchedule]:
        """What `@app.cron` has declared; where a task says nothing, as the settings say."""
        return [self._completed(schedule, spec) for schedule, spec in self._declared.values()]

    def _completed(self, schedule: NewSchedule, spec: TaskSpec) -> NewSchedule:
        defaults = self._task_defaults()
        return msgspec.structs.replace(
            schedule,
            max_attempts=defaults.max_attempts if spec.max_attempts is None else schedule.max_attempts,
            timeout=defaults.timeout if spec.timeout is None else schedule.timeout,
        )

    def add_middleware(self, middleware: Middleware) -> None:
        """Put a middleware inside those that were added before."""
        if not isinstance(middleware, Middleware):
            raise ConfigurationError(
                f"{middleware!r} is not a middleware",
                hint="derive its class from ropeway.Middleware, pass an object",
            )
        self._middlewares.append(middleware)

    def lifespan(self, hook: Hook) -> Hook:
        """Run this round everything a worker process does: an async generator with one `yield`, or a function that
        returns an async context manager. It may take the app. Several are entered in the order of declaration."""
        self._lifespans.append(hook)
        return hook

    @asynccontextmanager
    async def _run_lifespans(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for hook in self._lifespans:
                await stack.enter_async_context(self._entered(hook))
            yield

    def _entered(self, hook: Callable[..., Any]) -> AbstractAsyncContextManager[Any]:
        enter = asynccontextmanager(hook) if inspect.isasyncgenfunction(hook) else hook
        manager = enter(self) if inspect.signature(hook).parameters else enter()
        if not isinstance(manager, AbstractAsyncContextManager):
            raise ConfigurationError(
                f"the lifespan hook {hook.__name__}() is not one",
                hint="write `async def` with one `yield`, or return an async context manager",
            )
        return manager

    @property
    def program(self) -> Program:
        """The app as its workers see it."""
        return Program(
            settings=self.settings,
            registry=self.registry,
            middleware=self._middlewares,
            state=self.state,
            lifespan=self._run_lifespans,
            schedules=self._declared_schedules,
            adopt=self._engines.adopt,
        )

    # ── Enqueueing and asking ──

    async def aenqueue_many(self, calls: Iterable[Call[Any]]) -> list[JobHandle[Any]]:
        """Store the jobs of calls of any tasks, made with `task.call(...)`: all of them, or none."""
        calls = list(calls)
        if not calls:
            return []
        tenant, connection = _one_way(calls)
        answers = await self._producer.submit(
            [call.job for call in calls], _windows(calls), tenant=tenant, connection=connection
        )
        return [
            JobHandle.of(self._engines, call.spec, answer, tenant)
            for call, answer in zip(calls, answers, strict=True)
        ]

    def enqueue_many(self, calls: Iterable[Call[Any]]) -> list[SyncJobHandle[Any]]:
        """As `aenqueue_many`, for code without an event loop."""
        calls = list(calls)
        if not calls:
            return []
        tenant, connection = _one_way(calls)
        answers = self._producer.submit_sync(
            [call.job for call in calls], _windows(calls), tenant=tenant, connection=connection
        )
        return [
            SyncJobHandle.of(self._engines, call.spec, answer, tenant)
            for call, answer in zip(calls, answers, strict=True)
        ]

    async def job(self, id: UUID | str, *, tenant: str = DEFAULT_TENANT) -> JobHandle[Any]:
        """A handle on a job that was enqueued before, anywhere. Raises NotFound."""
        job = await _look_up(self._engines, id, tenant)
        return JobHandle.found(self._engines, self.registry.get(job.type), job, tenant)

    async def engine(self) -> Engine:
        """The open engine of the running event loop."""
        return self._engines.ready() or await self._engines.here()

    # ── Opening and closing ──

    async def __aenter__(self) -> Self:
        await self._engines.here()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections of the running event loop and of the sync calls. They open again when needed."""
        await self._engines.aclose()

    def close(self) -> None:
        """Close the connections of the sync calls. They open again when needed."""
        self._engines.close()

    def stand_in(self, engines: Engines) -> AbstractContextManager[None]:
        """Inside the block the app uses these engines, not its own: how `ropeway.testing` takes hold of it."""
        return self._engines.replaced(engines)

    def after_fork(self) -> None:
        """Call this first in a forked process whose parent has used the app: it connects for itself then."""
        self._engines.after_fork()

    def __repr__(self) -> str:
        return f"<Ropeway with {len(self.registry)} tasks>"


class SyncApp:
    """`app.sync`: lookups and schedules for code without an event loop."""

    def __init__(self, engines: Engines, registry: Registry) -> None:
        self._engines = engines
        self._registry = registry
        self.schedules = SyncSchedules(engines)

    def job(self, id: UUID | str, *, tenant: str = DEFAULT_TENANT) -> SyncJobHandle[Any]:
        """As `app.job`, blocking."""
        job = self._engines.run(lambda: _look_up(self._engines, id, tenant), instead="app.job()")
        return SyncJobHandle.found(self._engines, self._registry.get(job.type), job, tenant)


async def _look_up(engines: Engines, id: UUID | str, tenant: str) -> Job:
    wanted = fields.parse_id(id) if isinstance(id, str) else id
    (job,) = await (await engines.here()).get([wanted], tenant=tenant)
    if job is None:
        raise NotFound(f"there is no job {wanted}", hint="its time is over, or it was deleted")
    return job


def _one_way(calls: Sequence[Call[Any]]) -> tuple[str, Any]:
    """The tenant and the connection that all calls of a batch share."""
    first = calls[0]
    for index, call in enumerate(calls):
        if call.tenant != first.tenant or call.connection is not first.connection:
            raise FieldError("all calls of a batch need the same tenant and connection", index=index)
    return first.tenant, first.connection


def _windows(calls: Sequence[Call[Any]]) -> Windows:
    windows = [call.spec.window for call in calls]
    return windows if any(windows) else None


def task_spec(
    function: Callable[..., Any], options: Mapping[str, Any], names: Mapping[str, Any] | None = None
) -> TaskSpec:
    """A function and its options as a TaskSpec. Raises ConfigurationError or FieldError."""
    options = dict(options)
    name = options.pop("name", None) or getattr(function, "__name__", "")
    process = options.pop("process", False)
    window, tz = options.pop("window", None), options.pop("tz", None)
    retry_on, give_up_on = options.pop("retry_on", None), options.pop("give_up_on", None)
    key = options.pop("key", None)
    given = job_fields(options)
    arguments = Arguments.of(function, names)
    asynchronous = inspect.iscoroutinefunction(function)
    if process and asynchronous:
        raise ConfigurationError(
            f"{name} is async and cannot run in a process of its own",
            hint="make it a plain `def`, or drop process",
        )
    if tz is not None and window is None:
        raise ConfigurationError(f"{name}: tz goes with window", hint='window="22:00-06:00", tz="Europe/Paris"')
    return TaskSpec(
        name=name,
        function=function,
        kind="async" if asynchronous else "process" if process else "thread",
        arguments=arguments,
        window=None if window is None else Window.parse(window, tz or "UTC"),
        key=key,
        retry_on=None if retry_on is None else _exceptions(retry_on, "retry_on"),
        give_up_on=() if give_up_on is None else _exceptions(give_up_on, "give_up_on"),
        **given,
    )


def _exceptions(given: Any, option: str) -> tuple[type[BaseException], ...]:
    kinds = given if isinstance(given, tuple | list | set | frozenset) else (given,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ConfigurationError(f"{option} takes exception classes, {kind!r} is none")
    return tuple(kinds)
