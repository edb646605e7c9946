"""Runs one job and says how it ended. Writes nothing to the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from ropeway.core.errors import EngineError, Indeterminate
from ropeway.core.job import Progress
from ropeway.core.lease import Lease
from ropeway.core.outcome import Done, Outcome, Released, Snoozed
from ropeway.observability import names, tracing
from ropeway.observability.logs import logger
from ropeway.task.context import JobContext, JobSignal
from ropeway.task.middleware import WrappedRun, wrap_run
from ropeway.task.spec import TaskSpec, unknown_task
from ropeway.worker.context import RunBackend
from ropeway.worker.run import Run, StopReason
from ropeway.worker.threads import JobInterrupted, Threads

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine
    from ropeway.worker.program import Program


#: When the engine's clock could not be asked whether a task's hours have come.
ASK_AGAIN_SECONDS = 5.0

_DONE = Done()


class Reports(Protocol):
    """Where progress and log lines go: the engine, or the process that has one."""

    def progress(self, lease: Lease, progress: Progress) -> None: ...

    def log(self, lease: Lease, level: str, message: str) -> None: ...

    async def flush(self) -> None: ...


class Executor:
    """`perform` never raises: whatever a handler does, the answer is an outcome.

    None means that there is nothing to write: the job was taken away, or its own transaction has completed it.
    `engine` is a factory, so that a process which only runs handlers opens a store only for those that need it.
    """

    def __init__(
        self,
        program: Program,
        engine: Callable[[], Awaitable[Engine]],
        reporter: Reports,
        threads: Threads,
        *,
        worker_id: str,
        tenant: str,
    ) -> None:
        self._program = program
        self._engine = engine
        self._reporter = reporter
        self._threads = threads
        self._worker_id = worker_id
        self._tenant = tenant
        self._wrapped = wrap_run(program.middleware)
        self._traced = tracing.active()
        self._log = logger("ropeway.worker")

    def perform(self, run: Run) -> Coroutine[Any, Any, Outcome | None]:
        """Run the job's handler to its end."""
        # Not a coroutine round another one: that would be one more frame to pass for each step of each handler.
        return self._perform_in_span(run) if self._traced else self._perform(run)

    async def _perform_in_span(self, run: Run) -> Outcome | None:
        with tracing.run_span(run.leased.job, self._worker_id) as span:
            outcome = await self._perform(run)
            span.ended(outcome)
        if run.reported:
            await self._reporter.flush()
        return outcome

    async def _perform(self, run: Run) -> Outcome | None:
        spec = run.spec
        if spec is None:
            return unknown_task(self._program.registry.unknown(run.leased.job.type))
        if run.stop is not None:
            return _stopped(run, spec)
        run.interruptible = True
        try:
            if spec.window is not None and (outcome := await self._outside_window(spec)) is not None:
                return outcome
            if self._log.tells_debug:
                self._tell_start(run)
            if self._wrapped is not None:
                value = await self._call_wrapped(run, spec, self._wrapped)
            else:
                args, kwargs = spec.arguments.bind(_payload(run), lambda: self._context(run), run.leased.job)
                if spec.kind == "async":
                    value = await spec.function(*args, **kwargs)
                else:
                    value = await self._threads.call(run, spec.function, args, kwargs)
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything, and the worker goes on
            return self._raised(run, spec, error)
        finally:
            run.interruptible = False
            if run.reported and not self._traced:  # else when its span has ended
                await self._reporter.flush()
        if run.stop is StopReason.REVOKED or run.committed:
            return None
        if run.unknown_commit:
            # Whatever the handler made of the error: only the fence knows, and it is asked by a failure.
            return spec.failure(Indeterminate("whether the handler's transaction was committed is not known"))
        return _DONE if value is None else Done(spec.encode_result(value))

    async def _call_wrapped(self, run: Run, spec: TaskSpec, wrapped: WrappedRun) -> Any:
        """The handler inside the program's middleware."""
        context = self._context(run)
        args, kwargs = spec.arguments.bind(_payload(run), lambda: context, run.leased.job)

        async def handler() -> Any:
            if spec.kind == "async":
                return await spec.function(*args, **kwargs)
            return await self._threads.call(run, spec.function, args, kwargs)

        return await wrapped(context, handler)

    def _tell_start(self, run: Run) -> None:
        job = run.leased.job
        self._log.debug(names.HANDLER_START, job_id=job.id, type=job.type, queue=job.queue, attempt=job.attempt)

    def _context(self, run: Run) -> JobContext:
        backend = RunBackend(run, self._reporter, self._engine, self._tenant)
        return JobContext(run.leased.job, backend, self._program.state)

    async def _outside_window(self, spec: TaskSpec) -> Outcome | None:
        """A retry or a late start may fall outside the task's hours: it waits for them, no attempt is used."""
        try:
            now = await (await self._engine()).now()
        except EngineError:
            return Snoozed(delay=ASK_AGAIN_SECONDS)  # no reason to use up an attempt
        if spec.window is None or spec.window.contains(now):
            return None
        return Snoozed(run_at=spec.window.next_start(now))

    def _raised(self, run: Run, spec: TaskSpec, error: BaseException) -> Outcome | None:
        if run.committed:
            self._log.warning(
                names.JOB_FAILED,
                job_id=run.leased.job.id,
                type=spec.name,
                error=f"{type(error).__name__}: {error}",
                note="raised after its transaction had completed the job; not run again",
            )
            return None
        if run.stop is not None and isinstance(error, asyncio.CancelledError | JobInterrupted):
            return _stopped(run, spec)
        if run.stop is StopReason.REVOKED:
            return None
        return error.outcome() if isinstance(error, JobSignal) else spec.failure(error)


def _payload(run: Run) -> bytes:
    return run.leased.job.payload or b"null"


def _stopped(run: Run, spec: TaskSpec) -> Outcome | None:
    if run.stop is StopReason.REVOKED:
        return None
    if run.stop is StopReason.SHUTDOWN:
        return Released()
    return spec.failure(TimeoutError(f"it ran longer than its timeout of {run.leased.job.timeout:g} s"))
