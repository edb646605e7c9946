"""JobContext: what a handler is given when one of its parameters is annotated with it.

Its methods may be called from the event loop and from threads; none of them blocks. The worker that runs the job
stands behind it as a `ContextBackend`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, Literal, NoReturn, Protocol, get_args

from ropeway.core import fields
from ropeway.core.errors import FieldError, UsageError
from ropeway.core.job import Job, Progress
from ropeway.core.outcome import Failed, Outcome, Snoozed
from ropeway.core.payload import clean_error

Level = Literal["debug", "info", "warning", "error"]
_LEVELS = frozenset(get_args(Level))
_MOST_EXACT = 2**53


class JobSignal(BaseException):
    """Ends a run on the handler's own word. Not an Exception, so that `except Exception` lets it through."""

    def outcome(self) -> Outcome:
        """What the worker has to write."""
        raise NotImplementedError


class SnoozeJob(JobSignal):
    """Call me again later; this attempt does not count."""

    def __init__(self, *, delay: float | None = None, run_at: datetime | None = None) -> None:
        super().__init__(delay, run_at)
        self.delay = delay
        self.run_at = run_at

    def outcome(self) -> Outcome:
        return Snoozed(delay=self.delay, run_at=self.run_at)


class RetryJob(JobSignal):
    """This attempt failed; try again, after `after` seconds if given, else when the retry policy says."""

    def __init__(self, *, after: float | None = None, message: str | None = None) -> None:
        super().__init__(after, message)
        self.after = after
        self.message = None if message is None else str(message)

    def outcome(self) -> Outcome:
        error = clean_error("retry", self.message or "the handler asked for another attempt")
        return Failed(error, retry_after=self.after)


class DiscardJob(JobSignal):
    """Give up now, whatever attempts are left: the job is dead, ready to be redriven."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = str(message)

    def outcome(self) -> Outcome:
        return Failed(clean_error("discarded", self.message), retry=False)


class ContextBackend(Protocol):
    """What a context needs of the worker that runs its job. `progress` and `log` only note, and send later."""

    def progress(self, progress: Progress) -> None: ...

    def log(self, level: str, text: str) -> None: ...

    def cancelled(self) -> bool: ...

    def transaction(self, finish: Callable[[], object]) -> AbstractAsyncContextManager[Any]:
        """A connection with an open transaction. Leaving the block asks `finish` for the job's result, completes
        the job as the last statement and commits; an exception rolls all of it back."""
        ...


class JobContext:
    """One run of one job, as its handler sees it."""

    __slots__ = ("_backend", "_result", "_transaction", "job", "state")

    def __init__(self, job: Job, backend: ContextBackend, state: SimpleNamespace) -> None:
        self.job = job
        #: The app's shared resources: what its lifespan hooks put on `app.state`.
        self.state = state
        self._backend = backend
        self._transaction: Literal["none", "open", "over"] = "none"
        self._result: object = None

    @property
    def attempt(self) -> int:
        """The number of this run: 1, 2, 3 ..., never the same twice. Fit to fence writes elsewhere with."""
        return self.job.attempt

    @property
    def key(self) -> str:
        """The same text in every attempt of this job: hand it on to APIs that take an idempotency key."""
        return self.job.idempotency_key or str(self.job.id)

    @property
    def cancelled(self) -> bool:
        """Whether someone has cancelled the job, or its time is over: stop soon, its outcome is decided.

        An `async` handler is interrupted anyway; one that runs in a thread has to look.
        """
        return self._backend.cancelled()

    def progress(self, done: float | None = None, total: float | None = None, message: str | None = None) -> None:
        """Tell how far the job is. Only the newest word is kept."""
        self._backend.progress(
            Progress(
                done=_number(done, "done"),
                total=_number(total, "total"),
                message=None if message is None else str(message),
            )
        )

    def log(self, message: str, level: Level = "info") -> None:
        """Add a line to the job's own log."""
        if level not in _LEVELS:
            raise FieldError(f"unknown level {level!r}", hint=f"one of {', '.join(get_args(Level))}")
        self._backend.log(level, str(message))

    def snooze(self, delay: float | timedelta | None = None, *, run_at: datetime | None = None) -> NoReturn:
        """End this run without an outcome; run again after `delay` seconds, or at `run_at`. Costs no attempt."""
        if (delay is None) == (run_at is None):
            raise FieldError("give delay or run_at, and only one of them", code="conflicting_fields")
        if run_at is not None:
            raise SnoozeJob(run_at=fields.check_time(run_at, "run_at"))
        raise SnoozeJob(delay=fields.check_seconds(seconds(delay), "delay", 0, fields.HORIZON_SECONDS))

    def retry(self, after: float | timedelta | None = None, message: str | None = None) -> NoReturn:
        """Fail this attempt on purpose; the next comes after `after` seconds, or when the retry policy says."""
        if after is not None:
            after = fields.check_seconds(seconds(after), "after", 0, fields.HORIZON_SECONDS)
        raise RetryJob(after=after, message=message)

    def discard(self, message: str) -> NoReturn:
        """Give up for good: the job is dead with this message, whatever attempts are left."""
        raise DiscardJob(message)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A connection whose transaction also completes the job: both happen, or neither (PostgreSQL only).

        `finish(value)` inside the block sets the result. An exception that leaves the block rolls everything back.
        One block per run; after it the job is done, so what fails later is logged and not retried.
        """
        if self._transaction != "none":
            raise UsageError(
                "this run has already had its transaction",
                hint="put all writes into one `ctx.transaction()` block",
            )
        self._transaction = "open"
        try:
            async with self._backend.transaction(lambda: self._result) as connection:
                yield connection
        finally:
            self._transaction = "over"

    def finish(self, value: object) -> None:
        """Set the job's result, inside a `transaction()` block. Elsewhere a handler returns its result."""
        if self._transaction != "open":
            raise UsageError(
                "finish() belongs inside `async with ctx.transaction()`", hint="otherwise return the result"
            )
        self._result = value


def _number(value: float | None, name: str) -> float | None:
    """As a plain number: those of other libraries only look like one to a store, and it keeps whole ones exactly
    only as far as a float does."""
    if value is None or type(value) is float or (type(value) is int and abs(value) <= _MOST_EXACT):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        raise FieldError(f"progress: {name} is {value!r}, not a number") from None
    except OverflowError:
        raise FieldError(f"progress: {name} is too large, not a number that can be kept") from None


def seconds(value: float | timedelta | None) -> float | None:
    """A duration as a number of seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else value
