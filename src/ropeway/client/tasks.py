"""Task: a declared function. Call it as before, or enqueue a call of it, checked by its own signature."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, Generic, ParamSpec, TypeVar

from ropeway.client.handles import JobHandle, SyncJobHandle
from ropeway.client.producer import Producer
from ropeway.core.errors import FieldError
from ropeway.core.job import DEFAULT_TENANT, NewJob
from ropeway.core.unique import Unique
from ropeway.core.window import Window
from ropeway.engines.protocol import Enqueued
from ropeway.task.options import Priority, Retry, Seconds, job_fields
from ropeway.task.spec import JobMaker, TaskDefaults, TaskSpec

#: The parameters of an enqueue, and the job's result.
P = ParamSpec("P")
R = TypeVar("R")
#: The parameters of a plain call, and what that returns (of an `async def`: a coroutine).
Q = ParamSpec("Q")
X = TypeVar("X")

#: The arguments of one call in an `enqueue_many`: by name, or by position.
Arguments = Mapping[str, Any] | tuple[Any, ...]


class Call(Generic[R]):
    """A call that is checked but not enqueued yet: `app.enqueue_many` takes calls of different tasks."""

    __slots__ = ("connection", "job", "spec", "tenant")

    def __init__(self, spec: TaskSpec, job: NewJob, tenant: str, connection: Any) -> None:
        self.spec = spec
        self.job = job
        self.tenant = tenant
        self.connection = connection


class BoundTask(Generic[P, R]):
    """A task with the options of one call, or of several."""

    def __init__(
        self,
        spec: TaskSpec,
        producer: Producer,
        defaults: Callable[[], TaskDefaults],
        options: Mapping[str, Any],
        tenant: str = DEFAULT_TENANT,
        connection: Any = None,
    ) -> None:
        self.spec = spec
        self._producer = producer
        self._defaults = defaults
        self._options = options
        self._tenant = tenant
        self._connection = connection

    @property
    def name(self) -> str:
        """The name that jobs of this task carry as their type."""
        return self.spec.name

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> SyncJobHandle[R]:
        """Store a job that calls the function with these arguments; it is durable when this returns.

        For code without an event loop. Raises FieldError, naming the argument, for what does not fit.
        """
        return self._many_sync([self._make.one(args, kwargs)])[0]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """As `enqueue`, for async code."""
        (answer,) = await self._submit((self._make.one(args, kwargs),))
        return JobHandle.of(self._producer.engines, self.spec, answer, self._tenant)

    def enqueue_many(self, calls: Iterable[Arguments]) -> list[SyncJobHandle[R]]:
        """Store a job for each of `calls`, all of them or none.

        Each is a mapping of arguments by name or a tuple of them by position. Raises FieldError with its index.
        """
        return self._many_sync(self._make.many(calls))

    async def aenqueue_many(self, calls: Iterable[Arguments]) -> list[JobHandle[R]]:
        """As `enqueue_many`, for async code."""
        jobs = self._make.many(calls)
        if not jobs:
            return []
        return JobHandle.all_of(self._producer.engines, self.spec, await self._submit(jobs), self._tenant)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """The call alone, checked: for `app.enqueue_many`."""
        return Call(self.spec, self._make.one(args, kwargs), self._tenant, self._connection)

    def options(
        self,
        *,
        queue: str | None = None,
        priority: Priority | None = None,
        delay: Seconds | None = None,
        run_at: datetime | None = None,
        key: str | None = None,
        key_window: Seconds | None = None,
        unique: Unique | bool | None = None,
        connection: Any = None,
        tenant: str | None = None,
        max_attempts: int | None = None,
        retry: Retry | None = None,
        timeout: Seconds | None = None,
        headers: Mapping[str, str] | None = None,
        tags: Sequence[str] | None = None,
        expires_in: Seconds | None = None,
        expires_at: datetime | None = None,
    ) -> BoundTask[P, R]:
        """The same task with other options; what is not given stays as it is.

        queue, priority (1 to 9, or critical high default low bulk), max_attempts, retry, timeout (seconds), tags
        and headers say otherwise than the task. `delay` (seconds) or `run_at` (a time with a zone) say when. `key`
        is an idempotency key: a second job with it within `key_window` seconds is the first one. `unique` allows
        one such job at a time. `connection` enqueues inside the transaction open on your own connection
        (PostgreSQL). `expires_in` or `expires_at` cancel the job if it has not started by then. Raises FieldError.
        """
        given = job_fields(
            {
                "queue": queue,
                "priority": priority,
                "delay": delay,
                "run_at": run_at,
                "key": key,
                "key_window": key_window,
                "unique": unique,
                "max_attempts": max_attempts,
                "retry": retry,
                "timeout": timeout,
                "headers": headers,
                "tags": tags,
                "expires_in": expires_in,
                "expires_at": expires_at,
            }
        )
        for name, other in (("delay", "run_at"), ("expires_in", "expires_at")):
            if name in given and other in given:
                raise FieldError(
                    f"give {name} or {other}, not both", code="conflicting_fields", pointer=f"/{name}"
                )
        kept = {name: value for name, value in self._options.items() if _other(name) not in given}
        if "expires_at" in given and self.spec.expires_in is not None:
            given["expires_in"] = None
        return BoundTask(
            self.spec,
            self._producer,
            self._defaults,
            {**kept, **given},
            self._tenant if tenant is None else tenant,
            self._connection if connection is None else connection,
        )

    @cached_property
    def _make(self) -> JobMaker:
        return self.spec.maker(self._options, self._defaults())

    def _submit(self, jobs: Sequence[NewJob]) -> Awaitable[Sequence[Enqueued]]:
        return self._producer.submit(jobs, self._windows(jobs), tenant=self._tenant, connection=self._connection)

    def _many_sync(self, jobs: Sequence[NewJob]) -> list[SyncJobHandle[R]]:
        if not jobs:
            return []
        answers = self._producer.submit_sync(
            jobs, self._windows(jobs), tenant=self._tenant, connection=self._connection
        )
        return SyncJobHandle.all_of(self._producer.engines, self.spec, answers, self._tenant)

    def _windows(self, jobs: Sequence[NewJob]) -> Sequence[Window] | None:
        return None if self.spec.window is None else [self.spec.window] * len(jobs)


def _other(name: str) -> str:
    """The option that a new one takes the place of."""
    return {"delay": "run_at", "run_at": "delay", "expires_in": "expires_at", "expires_at": "expires_in"}.get(
        name, ""
    )


class Task(BoundTask[P, R], Generic[Q, X, P, R]):
    """A declared task. Called, it is the function that it was made of."""

    def __init__(
        self,
        function: Callable[Q, X],
        spec: TaskSpec,
        producer: Producer,
        defaults: Callable[[], TaskDefaults],
    ) -> None:
        super().__init__(spec, producer, defaults, {})
        self._function = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> X:
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name} from {self.spec.place}>"
