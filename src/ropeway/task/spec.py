"""TaskSpec: one declared task. How its calls become jobs, and how its runs become results and failures."""

from __future__ import annotations

import concurrent.futures
import inspect
import os
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec

from ropeway.core import fields
from ropeway.core.errors import (
    BadArguments,
    ConfigurationError,
    FieldError,
    PayloadError,
    RopewayError,
    UnknownTask,
)
from ropeway.core.job import (
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    DEFAULT_TIMEOUT,
    LARGEST_PAYLOAD,
    Alike,
    Job,
    NewJob,
)
from ropeway.core.outcome import Failed
from ropeway.core.payload import clean_error
from ropeway.core.retry import RetryPolicy
from ropeway.core.unique import Unique
from ropeway.core.window import Window
from ropeway.task.arguments import Arguments, CallArguments, ContextFactory
from ropeway.task.context import JobSignal
from ropeway.task.conversion import decoder_of, to_json

Kind = Literal["async", "thread", "process"]
Exceptions = type[BaseException] | tuple[type[BaseException], ...]
#: An idempotency key, or a function of the call's own arguments that makes one.
Key = str | Callable[..., str]


class TaskDefaults(msgspec.Struct, frozen=True):
    """What the settings say where a task says nothing."""

    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    timeout: float = DEFAULT_TIMEOUT


_DEFAULTS = TaskDefaults()


@dataclass(frozen=True, eq=False)
class TaskSpec:
    """A task: a name, a function, and what its jobs are like. None leaves a matter to the settings."""

    name: str
    function: Callable[..., Any]
    kind: Kind
    arguments: Arguments
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    max_attempts: int | None = None
    retry: RetryPolicy | None = None
    timeout: float | None = None
    unique: Unique | None = None
    window: Window | None = None
    key: Key | None = None
    key_window: float | None = None
    expires_in: float | None = None
    tags: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    retry_on: tuple[type[BaseException], ...] | None = None
    give_up_on: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        fields.check_name(self.name, "name")
        # A job made now finds every wrong option at the declaration, not at the first enqueue.
        NewJob(self.name, **self._fields)

    @property
    def place(self) -> str:
        """Where the function is written, for people: file and line."""
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        if code is None:
            return getattr(self.function, "__module__", None) or repr(self.function)
        return f"{code.co_filename}:{code.co_firstlineno}"

    # ── From a call to a job ──

    def new_job(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any] | None = None,
        defaults: TaskDefaults = _DEFAULTS,
    ) -> NewJob:
        """The job of one call. `options` are fields of a NewJob that this call says otherwise.

        Raises FieldError or PayloadError, naming the argument or option.
        """
        return self.maker(options, defaults).one(args, kwargs)

    def maker(self, options: Mapping[str, Any] | None = None, defaults: TaskDefaults = _DEFAULTS) -> JobMaker:
        """What makes the jobs of many calls with the same options, which are checked once, here."""
        given = {"max_attempts": defaults.max_attempts, "timeout": defaults.timeout, **self._fields}
        if options:
            given.update(options)
        make_key = None if "idempotency_key" in given else self.key
        if isinstance(make_key, str):
            given["idempotency_key"] = make_key
        model = NewJob(self.name, **given)
        return JobMaker(self.name, self.arguments, model, make_key if callable(make_key) else None)

    @cached_property
    def _fields(self) -> dict[str, Any]:
        """The fields of every job of this task, as far as the task itself decides them."""
        given: dict[str, Any] = {"queue": self.queue, "priority": self.priority}
        for name in ("max_attempts", "retry", "timeout", "unique", "key_window", "expires_in", "tags", "headers"):
            value = getattr(self, name)
            if value is not None and value not in ((), {}):
                given[name] = value
        return given

    # ── From a job to a call and back ──

    def bind(self, payload: bytes, ctx: ContextFactory, job: Job) -> CallArguments:
        """The arguments of a run. Raises BadArguments."""
        return self.arguments.bind(payload, ctx, job)

    def encode_result(self, value: object) -> bytes | None:
        """A result as JSON; what has no form in JSON becomes a string of its repr. Never raises (G14)."""
        if value is None:
            return None
        try:
            return to_json(value)
        except Exception:  # noqa: BLE001 - hooks run the user's code; whatever it raises, the job has succeeded
            return msgspec.json.encode(_repr(value))

    def decode_result(self, data: bytes | None) -> Any:
        """A stored result as the type that the function announces. Raises a msgspec error if it is another."""
        if data is None:
            return None
        return self._result_decoder.decode(data)

    @cached_property
    def _result_decoder(self) -> msgspec.json.Decoder[Any]:
        if self.arguments.returns in (None, type(None)):
            # A handler that returns nothing may still have a result: `ctx.finish(value)`.
            return msgspec.json.Decoder()
        try:
            return decoder_of(self.arguments.returns, "result")
        except ConfigurationError:
            # A handler may return what no JSON stands for; then its result is what JSON made of it.
            return msgspec.json.Decoder()

    def failure(self, error: BaseException) -> Failed:
        """What a run that raised comes to: tried again unless `retry_on` or `give_up_on` says otherwise."""
        if isinstance(error, BadArguments):
            return bad_arguments(error)
        again = not isinstance(error, self.give_up_on) and (
            self.retry_on is None or isinstance(error, self.retry_on)
        )
        return failure(error, again=again)


class JobMaker:
    """Makes jobs of calls: `model` with the payload of each, and with its key if a function makes keys."""

    __slots__ = ("_arguments", "_make_key", "_model", "_task")

    def __init__(
        self, task: str, arguments: Arguments, model: NewJob, make_key: Callable[..., str] | None
    ) -> None:
        self._task = task
        self._arguments = arguments
        self._model = model
        self._make_key = make_key

    def one(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> NewJob:
        """Raises FieldError or PayloadError, naming the argument."""
        arguments = self._arguments
        payload = arguments.encode(args, kwargs)
        try:
            job = self._model.with_payload(payload, flat=arguments.flat)
        except PayloadError as error:
            raise self._in_argument(error) from None
        if self._make_key is not None:
            return msgspec.structs.replace(job, idempotency_key=self._make_key(*args, **kwargs))
        return job

    def many(self, calls: Iterable[Mapping[str, Any] | tuple[Any, ...]]) -> Sequence[NewJob]:
        """The jobs of calls that give their arguments by name or by position. An error has its call's index."""
        calls = list(calls)
        payloads = self._arguments.encode_all(calls) if self._make_key is None else None
        if payloads is not None and max(map(len, payloads)) <= LARGEST_PAYLOAD:
            return Alike(self._model, payloads)
        jobs: list[NewJob] = []
        try:
            for call in calls:
                jobs.append(self._of(call))  # noqa: PERF401 - the error needs to know how far it came
        except RopewayError as error:
            error.index = len(jobs)
            raise
        return jobs

    def _of(self, call: object) -> NewJob:
        if isinstance(call, tuple):
            return self.one(call, {})
        if isinstance(call, Mapping):
            return self.one((), call)
        raise FieldError(
            f"{self._task}: {type(call).__name__} is not a call",
            pointer="/payload",
            hint="give a dict of arguments by name, or a tuple of them by position",
        )

    def _in_argument(self, error: PayloadError) -> PayloadError:
        """A flaw of the payload, told as a flaw of the argument that has it."""
        if error.pointer is None:
            return error
        argument = error.pointer.split("/")[1]
        return PayloadError(
            f"{self._arguments.name}(): argument {argument!r}: {error.message}",
            code=error.code,
            pointer=f"/payload{error.pointer}",
            hint=error.hint,
        )


def failure(error: BaseException, *, again: bool = True) -> Failed:
    """A failed attempt, with the error's text and traceback made fit to be stored. Never raises."""
    return Failed(clean_error(_type_name(error), _message(error), _traceback(error)), retry=again)


def bad_arguments(error: BadArguments) -> Failed:
    """A payload that the task cannot take now will not fit the next time either: dead, reason `rejected`."""
    return Failed(clean_error(BadArguments.code, str(error)), retry=False)


def unknown_task(error: UnknownTask) -> Failed:
    """No such task here: a failed attempt like any other, because a newer worker may have it."""
    return Failed(clean_error(UnknownTask.code, str(error)))


def _type_name(error: BaseException) -> str:
    kind = type(error)
    if isinstance(error, RopewayError | JobSignal) or kind.__module__ in ("builtins", "__main__"):
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an exception's own __str__ may be broken
        return f"({type(error).__name__} could not be shown)"


def _traceback(error: BaseException) -> str:
    """The traceback from the handler on: what Ropeway did to call it explains nothing."""
    try:
        whole = traceback.TracebackException.from_exception(error)
        _without_our_frames(whole)
        return "".join(whole.format())
    except Exception:  # noqa: BLE001 - see _message
        return ""


_OURS = Path(__file__).resolve().parents[1]
#: The code from which a worker calls middleware and handlers.
_CALLERS = frozenset(str(_OURS / "worker" / name) for name in ("executor.py", "threads.py"))
#: What may lie between such a call and the code that is called.
_BETWEEN = (f"{_OURS}{os.sep}", str(Path(concurrent.futures.__file__).parent))


def _without_our_frames(error: traceback.TracebackException) -> None:
    """Leave out what led to the handler, all but the user's middleware: here, and in what the error came from.
    What the handler itself has called stays, whoever wrote it."""
    frames = list(error.stack)
    calls = [place for place, frame in enumerate(frames) if frame.filename in _CALLERS]
    if calls:
        handler = calls[-1] + 1
        kept = [frame for frame in frames[:handler] if not frame.filename.startswith(_BETWEEN)] + frames[handler:]
        error.stack[:] = kept or frames
    for other in (error.__cause__, error.__context__, *(error.exceptions or ())):
        if other is not None:
            _without_our_frames(other)


def _repr(value: object) -> str:
    try:
        return repr(value).encode("utf-8", "replace").decode()
    except Exception:  # noqa: BLE001 - see encode_result
        return f"<{type(value).__name__}>"
