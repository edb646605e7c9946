"""Runs one leased job as a worker would, and tells what came of it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import ropeway
from ropeway.core.errors import BadArguments, RopewayError
from ropeway.core.job import Job, Progress
from ropeway.core.joblog import LogLine
from ropeway.core.lease import Lease
from ropeway.core.outcome import Done, Failed, Outcome, Released, Snoozed
from ropeway.core.states import State
from ropeway.engines.protocol import Engine, Leased, Settlement
from ropeway.task.context import JobContext, JobSignal
from ropeway.task.middleware import Middleware, RunNext
from ropeway.task.spec import TaskSpec
from ropeway.testing.stage import call_plain
from ropeway.testing.store import WORKER, SharedStore
from ropeway.worker.executor import Executor
from ropeway.worker.program import Program
from ropeway.worker.run import Run, StopReason
from ropeway.worker.threads import Threads

Ended = Literal["succeeded", "failed", "dead", "snoozed", "cancelled"]


@dataclass(frozen=True)
class Ran:
    """One run of one job: how it ended, and what it told on the way."""

    #: The job after the run.
    job: Job
    #: `failed` will be tried again, `dead` will not; `cancelled` lost its job while it ran.
    ended: Ended
    #: What the handler raised. `ctx.retry()`, `ctx.snooze()` and `ctx.discard()` are no errors.
    error: BaseException | None = None
    #: What it told by `ctx.progress`, all of it, in order.
    progress: Sequence[Progress] = ()
    #: What it told by `ctx.log`.
    log: Sequence[LogLine] = ()
    #: By which the handler ended its run itself.
    signal: JobSignal | None = field(default=None, repr=False)


@dataclass
class Drained:
    """What a drain did: its runs in order, and how many of them ended in which way."""

    runs: list[Ran] = field(default_factory=list)

    def _count(self, ended: Ended) -> int:
        return sum(run.ended == ended for run in self.runs)

    @property
    def succeeded(self) -> int:
        return self._count("succeeded")

    @property
    def failed(self) -> int:
        """Runs that failed and whose jobs will be tried again."""
        return self._count("failed")

    @property
    def dead(self) -> int:
        """Runs that failed for good."""
        return self._count("dead")

    @property
    def snoozed(self) -> int:
        return self._count("snoozed")

    @property
    def cancelled(self) -> int:
        """Runs whose job was cancelled under way."""
        return self._count("cancelled")

    @property
    def errors(self) -> list[BaseException]:
        """What handlers raised, in order."""
        return [run.error for run in self.runs if run.error is not None]

    def __len__(self) -> int:
        return len(self.runs)

    def __repr__(self) -> str:
        kinds: tuple[Ended, ...] = ("succeeded", "failed", "dead", "snoozed", "cancelled")
        counts = ", ".join(f"{self._count(kind)} {kind}" for kind in kinds if self._count(kind))
        return f"<Drained {counts or 'nothing'}>"


async def perform(program: Program, store: SharedStore, leased: Leased, *, any_time: bool = False) -> Ran:
    """Run a job and write its outcome; `any_time`: also outside its task's window.

    What the handler raises is told, not raised.
    """
    tenant = leased.job.tenant
    engine = store.as_engine()
    seen = _Seen()
    telling = _Telling(store, tenant)
    watched = dataclasses.replace(program, middleware=[seen, *program.middleware])
    executor = Executor(
        watched,
        partial(_given, engine),
        telling,
        _Calls(),
        worker_id=WORKER.id,
        tenant=tenant,
    )
    run = Run(leased, _spec(program, leased, any_time))
    try:
        outcome = await _in_a_task(executor, run)
    except asyncio.CancelledError:
        await engine.settle([Settlement(leased.lease, Released())], tenant=tenant)
        raise
    refused = False
    if outcome is not None:
        (answer,) = await engine.settle([Settlement(leased.lease, outcome)], tenant=tenant)
        refused = isinstance(answer, RopewayError)
    (job,) = await engine.get([leased.job.id], tenant=tenant)
    return Ran(
        job or leased.job,
        "cancelled" if refused else _ended(run, outcome, job),
        error=_error(program, seen.raised, outcome, leased.job),
        progress=telling.progresses,
        log=telling.lines,
        signal=seen.raised if isinstance(seen.raised, JobSignal) else None,
    )


def _spec(program: Program, leased: Leased, any_time: bool) -> TaskSpec | None:
    spec = program.registry.get(leased.job.type)
    if spec is None or spec.window is None or not any_time:
        return spec
    return dataclasses.replace(spec, window=None)


async def _given(engine: Engine) -> Engine:
    return engine


async def _in_a_task(executor: Executor, run: Run) -> Outcome | None:
    """A handler has a task of its own, as in a worker: cancelling the drain is not a failure of the handler."""
    task = asyncio.create_task(executor.perform(run))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        run.stop = StopReason.SHUTDOWN  # a handler in a thread can only be told, by ctx.cancelled
        task.cancel()
        await asyncio.wait((task,))
        raise


def _ended(run: Run, outcome: Outcome | None, job: Job | None) -> Ended:
    match outcome:
        case Done():
            return "succeeded"
        case Snoozed():
            return "snoozed"
        case None if run.committed:
            return "succeeded"
        case Failed() if job is not None and job.state is State.DEAD:
            return "dead"
        case Failed():
            return "failed"
    return "cancelled"


def _error(
    program: Program, raised: BaseException | None, outcome: Outcome | None, job: Job
) -> BaseException | None:
    if raised is not None:
        if isinstance(raised, JobSignal):
            return None
        if isinstance(raised, AttributeError) and raised.obj is program.state:
            raised.add_note(
                "app.state is what the test makes of it: set it there, or have the app's lifespan hooks run "
                "with ropeway.use(app, lifespan=True)"
            )
        return raised
    if not isinstance(outcome, Failed):
        return None
    # It never came to a call of the handler.
    if outcome.error.type == BadArguments.code:
        return BadArguments(outcome.error.message)
    return program.registry.unknown(job.type)


class _Seen(Middleware):
    """The outermost middleware: keeps what the run raised."""

    def __init__(self) -> None:
        self.raised: BaseException | None = None

    async def run(self, ctx: JobContext, call_next: RunNext) -> Any:
        try:
            return await call_next()
        except BaseException as error:
            self.raised = error
            raise


class _Telling:
    """Progress and log lines go to the store at once; the test may look at all of them."""

    def __init__(self, store: SharedStore, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self.progresses: list[Progress] = []
        self.lines: list[LogLine] = []

    def progress(self, lease: Lease, progress: Progress) -> None:
        self.progresses.append(progress)
        self._store.now_done(self._store.engine.progress([(lease, progress)], tenant=self._tenant))

    def log(self, lease: Lease, level: str, message: str) -> None:
        line = LogLine(message, level, lease.attempt)
        self.lines.append(line)
        self._store.now_done(self._store.engine.log([(lease, line)], tenant=self._tenant))

    async def flush(self) -> None:
        """There is nothing on its way."""


class _Calls(Threads):
    """`def` handlers: in the thread of the test, if it is a sync test."""

    def __init__(self) -> None:
        """No pool."""

    async def call(
        self, run: Run, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        return await call_plain(partial(function, *args, **kwargs))

    def close(self) -> None:
        """No pool."""


# ── What a failing handler shows ──

#: Whose frames explain nothing: Ropeway's own, and those of what calls a function in a thread.
_BETWEEN = tuple(
    f"{Path(module).resolve().parent}{os.sep}"
    for module in (ropeway.__file__, asyncio.__file__, concurrent.futures.__file__)
)


def from_the_handler(error: BaseException) -> BaseException:
    """The error with a traceback that starts where the user's own code does."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_BETWEEN):
        trace = trace.tb_next
    return error if trace is None else error.with_traceback(trace)
