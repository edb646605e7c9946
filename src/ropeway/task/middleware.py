"""Middleware: your code round every enqueue and round every run.

    class Tagging(Middleware):
        async def enqueue(self, job, call_next):
            return await call_next(msgspec.structs.replace(job, tags=(*job.tags, "web")))

        async def run(self, ctx, call_next):
            with timer(ctx.job.type):
                return await call_next()

The first one added is the outermost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ropeway.core.job import NewJob
from ropeway.task.context import JobContext

#: What `Middleware.enqueue` goes on with: a job, maybe another than it got, to the answer of the store.
EnqueueNext = Callable[[NewJob], Awaitable[Any]]
#: What `Middleware.run` goes on with: the handler's result, or its exception.
RunNext = Callable[[], Awaitable[Any]]
#: A run with all its middleware round it.
WrappedRun = Callable[[JobContext, RunNext], Awaitable[Any]]


class Middleware:
    """Override what you need; each passes on by default."""

    async def enqueue(self, job: NewJob, call_next: EnqueueNext) -> Any:
        """Round one enqueue. Return what `call_next(job)` answered; raise, and nothing is stored."""
        return await call_next(job)

    async def run(self, ctx: JobContext, call_next: RunNext) -> Any:
        """Round one run. What it returns is the job's result; what it raises fails the attempt."""
        return await call_next()


def wrap_enqueue(middlewares: Sequence[Middleware], store: EnqueueNext) -> EnqueueNext:
    """`store` with every middleware round it that has something to say about enqueues."""
    call = store
    for middleware in reversed(enqueue_middlewares(middlewares)):
        call = _enqueue_step(middleware, call)
    return call


def enqueue_middlewares(middlewares: Sequence[Middleware]) -> list[Middleware]:
    return [middleware for middleware in middlewares if type(middleware).enqueue is not Middleware.enqueue]


def wrap_run(middlewares: Sequence[Middleware]) -> WrappedRun | None:
    """All middleware round a run as one call; None when there is none, so that a run pays nothing for it."""
    steps = [middleware for middleware in middlewares if type(middleware).run is not Middleware.run]
    if not steps:
        return None

    def run(ctx: JobContext, handler: RunNext) -> Awaitable[Any]:
        call = handler
        for middleware in reversed(steps):
            call = _run_step(middleware, ctx, call)
        return call()

    return run


def _enqueue_step(middleware: Middleware, call_next: EnqueueNext) -> EnqueueNext:
    return lambda job: middleware.enqueue(job, call_next)


def _run_step(middleware: Middleware, ctx: JobContext, call_next: RunNext) -> RunNext:
    return lambda: middleware.run(ctx, call_next)
