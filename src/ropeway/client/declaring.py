"""`@app.task` and `@app.cron`: how a function becomes a Task, with types that keep its own signature."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import FrameType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from ropeway.client.tasks import Task
from ropeway.core.job import Job
from ropeway.core.unique import Unique
from ropeway.task.context import JobContext
from ropeway.task.options import Priority, Retry, Seconds
from ropeway.task.spec import Exceptions, Key

P = ParamSpec("P")
R = TypeVar("R")


class Declare(Protocol):
    """Makes a Task of a function; `names` are the local names that its annotations may use."""

    def __call__(
        self, function: Callable[..., Any], options: Mapping[str, Any], names: Mapping[str, Any] | None
    ) -> Task[..., Any, ..., Any]: ...


class TaskDecorator:
    """`@app.task` bare, or `@app.task(queue="mail", ...)`.

    A leading `ctx: JobContext` or `job: Job` is filled in by the worker, so it is no part of what `enqueue` takes;
    a plain call of the task takes it as the function does.
    """

    def __init__(self, declare: Declare, options: Mapping[str, Any] | None = None) -> None:
        self._declare = declare
        self._options = options or {}

    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /
    ) -> Task[Concatenate[JobContext, P], Coroutine[Any, Any, R], P, R]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[Job, P], Coroutine[Any, Any, R]], /
    ) -> Task[Concatenate[Job, P], Coroutine[Any, Any, R], P, R]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, P], R], /
    ) -> Task[Concatenate[JobContext, P], R, P, R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[Job, P], R], /) -> Task[Concatenate[Job, P], R, P, R]: ...

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Task[P, Coroutine[Any, Any, R], P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, P, R]: ...

    @overload
    def __call__(
        self,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        priority: Priority | None = None,
        max_attempts: int | None = None,
        retry: Retry | None = None,
        timeout: Seconds | None = None,
        unique: Unique | bool | None = None,
        process: bool = False,
        window: str | None = None,
        tz: str | None = None,
        retry_on: Exceptions | None = None,
        give_up_on: Exceptions | None = None,
        tags: Sequence[str] | None = None,
        headers: Mapping[str, str] | None = None,
        key: Key | None = None,
        key_window: Seconds | None = None,
        expires_in: Seconds | None = None,
    ) -> TaskDecorator: ...

    def __call__(self, function: Any = None, /, **options: Any) -> Any:
        if function is None:
            return TaskDecorator(self._declare, {**self._options, **options})
        return self._declare(function, {**self._options, **options}, _local_names(function, sys._getframe(1)))  # noqa: SLF001


def _local_names(function: Any, caller: FrameType) -> Mapping[str, Any] | None:
    """The names round a function that is declared inside another one: its annotations may use them."""
    of_its_module = caller.f_globals is getattr(function, "__globals__", None)
    return caller.f_locals if of_its_module and caller.f_locals is not caller.f_globals else None
