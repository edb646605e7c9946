"""What was enqueued, and what a test says should have been: matching, and the text of a failure."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

import msgspec

from ropeway.core.errors import BadArguments, FieldError
from ropeway.core.job import Job
from ropeway.core.states import State
from ropeway.task.context import JobContext
from ropeway.task.conversion import difference
from ropeway.task.spec import TaskSpec

#: Jobs that a failure lists.
MOST_LISTED = 50
#: Characters of a call in the list.
MOST_OF_A_CALL = 100

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 60
_short.maxdict = _short.maxlist = _short.maxtuple = 6


@dataclass(frozen=True)
class EnqueuedJob:
    """A job that was enqueued in this test, as it is now."""

    job: Job
    #: The arguments of its handler by name, defaults included; of an unknown task the members of the payload.
    args: Mapping[str, Any]
    #: When it was to run, as it was enqueued; `run_at` moves with retries.
    asked_run_at: datetime

    @property
    def id(self) -> UUID:
        return self.job.id

    @property
    def type(self) -> str:
        """The name of its task."""
        return self.job.type

    @property
    def queue(self) -> str:
        return self.job.queue

    @property
    def state(self) -> State:
        return self.job.state

    @property
    def priority(self) -> int:
        return self.job.priority

    @property
    def run_at(self) -> datetime:
        return self.job.run_at

    @property
    def delay(self) -> float:
        """The seconds that it was to wait, as it was enqueued."""
        return (self.asked_run_at - self.job.created_at).total_seconds()

    def __str__(self) -> str:
        return call_text(self.type, self.args)


def enqueued_job(job: Job, asked_run_at: datetime, spec: TaskSpec | None) -> EnqueuedJob:
    """A stored job with its arguments as Python values."""
    if spec is not None:
        try:
            return EnqueuedJob(job, _arguments(spec, job), asked_run_at)
        except BadArguments:
            pass  # enqueued by name, by someone who does not know the task: it is shown as it is
    value = msgspec.json.decode(job.payload or b"null")
    return EnqueuedJob(job, value if isinstance(value, dict) else {"payload": value}, asked_run_at)


def _arguments(spec: TaskSpec, job: Job) -> dict[str, Any]:
    args, kwargs = spec.bind(job.payload or b"null", lambda: cast("JobContext", None), job)
    bound = inspect.signature(spec.function).bind(*args, **kwargs)
    return _values(spec, bound)


def _values(spec: TaskSpec, bound: inspect.BoundArguments) -> dict[str, Any]:
    """The arguments that a job carries: without what the worker fills in, with what `**rest` takes."""
    values: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            values.update(value)
        elif name in spec.arguments.names:
            values[name] = value
    return values


@dataclass(frozen=True)
class Expected:
    """A call that a test asks for. What it does not mention does not matter."""

    type: str
    args: Mapping[str, Any]
    #: Other things of the job, by name: queue, priority, run_at, delay.
    others: Mapping[str, Any]

    def differences(self, found: EnqueuedJob) -> list[str]:
        """Where a job of the same task is another one, a line each."""
        lines = []
        for name, wanted in self.args.items():
            if name not in found.args:
                lines.append(f"{name}: expected {_short.repr(wanted)}, it was not given")
            elif not _same(wanted, found.args[name]):
                lines.append(_difference(name, wanted, found.args[name]))
        for name, wanted in self.others.items():
            got = found.asked_run_at if name == "run_at" else getattr(found, name)
            if wanted != got:
                lines.append(f"{name}: expected {_plain(wanted)}, got {_plain(got)}")
        return lines

    def matches(self, found: EnqueuedJob) -> bool:
        return found.type == self.type and not self.differences(found)

    def __str__(self) -> str:
        others = ", ".join(f"{name} {_plain(value)}" for name, value in self.others.items())
        return call_text(self.type, self.args) + (f" with {others}" if others else "")


def expected(
    type: str, spec: TaskSpec | None, args: Sequence[Any], kwargs: Mapping[str, Any], others: Mapping[str, Any]
) -> Expected:
    """Raises FieldError for arguments that the task does not take: a test with a typo would prove nothing."""
    others = {name: value for name, value in others.items() if value is not None}
    if isinstance(delay := others.get("delay"), timedelta):
        others["delay"] = delay.total_seconds()
    if spec is None:
        if args:
            raise FieldError(f"{type} is not declared here, so its arguments have no order", hint="name them")
        return Expected(type, dict(kwargs), others)
    signature = inspect.signature(spec.function)
    taken = [
        parameter
        for name, parameter in signature.parameters.items()
        if name in spec.arguments.names or parameter.kind is inspect.Parameter.VAR_KEYWORD
    ]
    try:
        bound = signature.replace(parameters=taken).bind_partial(*args, **kwargs)
    except TypeError as error:
        names = ", ".join(spec.arguments.names)
        raise FieldError(f"{spec.name}: {error}", hint=f"it takes {names}" if names else "it takes none") from None
    return Expected(type, _values(spec, bound), others)


# ── Texts ──


def missing_text(wanted: Expected, times: int | None, found: Sequence[EnqueuedJob], now: datetime) -> str:
    """Why `assert_enqueued` failed."""
    matching = [job for job in found if wanted.matches(job)]
    if times is None or not matching:
        said = f"{wanted} was not enqueued"
        if times is not None and times > 1:
            said += f", expected {_times(times)}"
    else:
        said = f"{wanted} was enqueued {_times(len(matching))}, expected {_times(times)}"
    return "\n".join([said, "", *_listed(found, matching, now), *([] if matching else _nearest(wanted, found))])


def present_text(wanted: Expected, found: Sequence[EnqueuedJob], now: datetime) -> str:
    """Why `refute_enqueued` failed."""
    matching = [job for job in found if wanted.matches(job)]
    often = "" if len(matching) == 1 else f" {_times(len(matching))}"
    said = f"{wanted} was enqueued{often}, it should not have been"
    return "\n".join([said, "", *_listed(found, matching, now)])


def call_text(type: str, args: Mapping[str, Any]) -> str:
    inside = ", ".join(f"{name}={_short.repr(value)}" for name, value in args.items())
    if len(inside) > MOST_OF_A_CALL:
        inside = inside[: MOST_OF_A_CALL - 3] + "..."
    return f"{type}({inside})"


def _listed(found: Sequence[EnqueuedJob], matching: Sequence[EnqueuedJob], now: datetime) -> Iterator[str]:
    if not found:
        yield "nothing was enqueued"
        return
    yield f"enqueued {'was 1 job' if len(found) == 1 else f'were {len(found)} jobs'}:"
    shown = found[:MOST_LISTED]
    rows = [(str(job), job.queue, _state(job.job, now)) for job in shown]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for number, (job, (call, queue, state)) in enumerate(zip(shown, rows, strict=True), 1):
        mark = ">" if job in matching else " "
        yield f"{mark}{number:3}. {call:{widths[0]}}  queue {queue:{widths[1]}}  {state}"
    if len(found) > MOST_LISTED:
        yield f"     and {len(found) - MOST_LISTED} more"


def _nearest(wanted: Expected, found: Sequence[EnqueuedJob]) -> list[str]:
    candidates = [
        (len(lines), number, lines)
        for number, job in enumerate(found, 1)
        if job.type == wanted.type and (lines := wanted.differences(job))
    ]
    if not candidates:
        return []
    _, number, lines = min(candidates, key=lambda candidate: candidate[:2])
    return ["", f"the nearest is {number}:", *(f"     {line}" for line in lines)]


def _state(job: Job, now: datetime) -> str:
    if job.state in (State.SCHEDULED, State.RETRYING):
        return f"{job.state}, in {_span(job.run_at - now)}"
    if job.state is State.DEAD and job.last_error is not None:
        return f"dead, {job.last_error.type}: {job.last_error.message.partition(chr(10))[0][:60]}"
    return str(job.state)


def _span(span: timedelta) -> str:
    seconds = span.total_seconds()
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length or seconds == length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def _times(number: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(number, f"{number} times")


def _same(wanted: Any, got: Any) -> bool:
    return bool(wanted == got)


def _difference(name: str, wanted: Any, got: Any) -> str:
    found = difference(wanted, got) if type(wanted) is type(got) else None
    where = ""
    if found is not None and "{keys}" not in found.where:
        where, wanted, got = found
    return f"{name}{where}: expected {_short.repr(wanted)}, got {_short.repr(got)}"


def _plain(value: Any) -> str:
    return str(value) if isinstance(value, str | int | float | datetime) else _short.repr(value)
