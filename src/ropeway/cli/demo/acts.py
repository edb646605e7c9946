"""What the demo shows: each act makes a job, and says where it must end and what must be true then."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from ropeway import Attempt, Job, JobHandle, NewSchedule, State
from ropeway.cli.demo import tasks
from ropeway.cli.demo.calling import Caller, Made
from ropeway.core.states import CancelReason, DeadReason
from ropeway.engines.protocol import Engine

PRIMES_BELOW = 120_000
#: How many primes there are below that.
PRIMES = 11_301

#: Cron's smallest step is a second, written in six fields: here every two.
RECURRING = "*/2 * * * * *"
FIRES = 2


class Place(NamedTuple):
    """Where a run of the demo takes place: queues of its own, so that it can share a store with others."""

    engine: Engine
    name: str
    #: The API, if it is served.
    http: Caller | None = None

    @property
    def queue(self) -> str:
        return self.name

    @property
    def lane(self) -> str:
        """Served one job at a time."""
        return f"{self.name}-lane"

    @property
    def nowhere(self) -> str:
        """Served by nobody."""
        return f"{self.name}-nowhere"

    @property
    def abroad(self) -> str:
        """Served over HTTP only."""
        return f"{self.name}-abroad"

    @property
    def queues(self) -> frozenset[str]:
        return frozenset({self.queue, self.lane, self.nowhere, self.abroad})

    @property
    def api(self) -> Caller:
        assert self.http is not None, "acts over HTTP are put on only when the API is served"  # noqa: S101
        return self.http


class Seen(NamedTuple):
    """A job at its end, its runs, the other jobs of its act, and whether its progress could be watched."""

    job: Job
    history: Sequence[Attempt]
    others: Sequence[Job]
    moved: bool


def nothing_more(_: Seen) -> str | None:
    return None


async def let_it_run(_place: Place, _job: Job) -> None:
    pass


@dataclass(frozen=True)
class Act:
    """`start` enqueues; the first job it returns is the one shown. `during` is asked while that one has not ended.
    `flaw` says what is not as promised about the end."""

    title: str
    start: Callable[[Place], Awaitable[Sequence[JobHandle[Any] | Made]]]
    ends: State = State.SUCCEEDED
    flaw: Callable[[Seen], str | None] = nothing_more
    during: Callable[[Place, Job], Awaitable[None]] = let_it_run
    #: The type of the jobs that a schedule makes for it; it starts without any.
    fired: str | None = None
    #: It needs the API.
    over_http: bool = False


@dataclass
class Shown:
    """One performance of an act, as far as it has been seen."""

    act: Act
    ids: list[UUID] = field(default_factory=list)
    job: Job | None = None
    over: bool = False
    wrong: str | None = None
    #: Jobs that its schedule has made.
    fires: int = 0
    #: How far it was, at each look that found it further.
    steps: list[float] = field(default_factory=list)


# ── How they start ──


async def _hello(place: Place) -> Sequence[JobHandle[Any]]:
    return [await tasks.hello.options(queue=place.queue).aenqueue("Ada")]


async def _flaky(place: Place) -> Sequence[JobHandle[Any]]:
    return [await tasks.flaky.options(queue=place.queue).aenqueue()]


async def _later(place: Place) -> Sequence[JobHandle[Any]]:
    return [await tasks.later.options(queue=place.queue, delay=4).aenqueue()]


async def _snooze(place: Place) -> Sequence[JobHandle[Any]]:
    return [await tasks.snooze.options(queue=place.queue).aenqueue()]


async def _import(place: Place) -> Sequence[JobHandle[Any]]:
    return [await tasks.import_rows.options(queue=place.queue).aenqueue(rows=50)]


async def _primes(place: Place) -> Sequence[JobHandle[Any]]:
    return [await tasks.primes.options(queue=place.queue).aenqueue(below=PRIMES_BELOW)]


async def _crash(place: Place) -> Sequence[JobHandle[Any]]:
    return [await tasks.crash.options(queue=place.queue).aenqueue()]


async def _overtakes(place: Place) -> Sequence[JobHandle[Any]]:
    """Two jobs wait already when an urgent one comes; the lane opens when all three are there."""
    await place.engine.pause(place.lane)
    slow = await tasks.errand.options(queue=place.lane, priority="bulk").aenqueue_many([{}, {}])
    urgent = await tasks.errand.options(queue=place.lane, priority="critical").aenqueue()
    await place.engine.resume(place.lane)
    return [urgent, *slow]


async def _twice(place: Place) -> Sequence[JobHandle[Any]]:
    once = tasks.hello.options(queue=place.queue, key=f"{place.name} {await place.engine.now()}")
    return [await once.aenqueue("Bob"), await once.aenqueue("Bob")]


async def _broken(place: Place) -> Sequence[JobHandle[Any]]:
    return [await tasks.broken.options(queue=place.queue).aenqueue()]


async def _discard(place: Place) -> Sequence[JobHandle[Any]]:
    return [await tasks.discard.options(queue=place.queue).aenqueue(customer=7)]


async def _slow(place: Place) -> Sequence[JobHandle[Any]]:
    return [await tasks.slow.options(queue=place.queue).aenqueue()]


async def _forever(place: Place) -> Sequence[JobHandle[Any]]:
    return [await tasks.forever.options(queue=place.queue).aenqueue()]


async def _cancel_when_it_runs(place: Place, job: Job) -> None:
    if job.started_at is not None and await place.engine.now() - job.started_at > timedelta(seconds=2):
        await place.engine.cancel([job.id])


async def _expires(place: Place) -> Sequence[JobHandle[Any]]:
    return [await tasks.errand.options(queue=place.nowhere, expires_in=2.5).aenqueue()]


async def _recurring(place: Place) -> Sequence[JobHandle[Any]]:
    await tasks.app.schedules.put(
        NewSchedule(name=place.name, cron=RECURRING, type=tasks.tick.name, queue=place.queue)
    )
    return []


async def _over_http(place: Place) -> Sequence[Made]:
    key = f"{place.name} {await place.engine.now()}"
    return [await place.api.enqueue(tasks.hello.name, place.queue, {"name": "Eve"}, key) for _ in range(2)]


async def _abroad(place: Place) -> Sequence[Made]:
    key = f"{place.name} {await place.engine.now()} abroad"
    return [await place.api.enqueue("demo.any-language", place.abroad, "bonjour", key)]


async def _work_over_http(place: Place, _job: Job) -> None:
    await place.api.work_once(place.abroad)


async def stop_recurring(place: Place) -> None:
    """Leave no schedule behind in a store that is not ours alone."""
    if any(schedule.name == place.name for schedule in await tasks.app.schedules.list()):
        await tasks.app.schedules.delete(place.name)


# ── What must be true at the end ──


def _result(job: Job) -> Any:
    return None if job.result is None else msgspec.json.decode(job.result)


def _runs(seen: Seen, *outcomes: str) -> str | None:
    told = tuple(run.outcome for run in seen.history)
    return None if told == outcomes else f"its runs were {', '.join(map(str, told)) or 'none'}"


def _ran_on_time(seen: Seen) -> str | None:
    started = seen.job.started_at
    return None if started is not None and started >= seen.job.run_at else "it started before its time"


def _costs_nothing(seen: Seen) -> str | None:
    used = seen.job.attempts
    return _runs(seen, "snoozed", "succeeded") or (None if used == 1 else f"it used {used} attempts")


def _moved(seen: Seen) -> str | None:
    return None if seen.moved else "its progress could not be watched"


def _counted_elsewhere(seen: Seen) -> str | None:
    result = _result(seen.job)
    if result["primes"] != PRIMES:
        return f"it found {result['primes']} primes"
    return "it ran in this process" if result["process"] == os.getpid() else None


def _went_first(seen: Seen) -> str | None:
    started = seen.job.started_at
    late = [job for job in seen.others if job.started_at is not None and started and job.started_at < started]
    return "a less urgent job went first" if late else None


def _is_one_job(seen: Seen) -> str | None:
    (again,) = seen.others
    return None if again.id == seen.job.id else "a second job was made"


def _came_back(seen: Seen) -> str | None:
    result = _result(seen.job)
    return None if result == {"said": "bonjour"} else f"its result is {result}"


def _used_up(seen: Seen) -> str | None:
    return _runs(seen, "failed", "failed") or _died_of(seen, DeadReason.MAX_ATTEMPTS)


def _rejected(seen: Seen) -> str | None:
    return _runs(seen, "failed") or _died_of(seen, DeadReason.REJECTED)


def _timed_out(seen: Seen) -> str | None:
    error = seen.job.last_error
    return None if error is not None and error.type == "TimeoutError" else f"it died of {error}"


def _died_of(seen: Seen, reason: DeadReason) -> str | None:
    return None if seen.job.dead_reason is reason else f"it died of {seen.job.dead_reason}"


def _handler_stopped(seen: Seen) -> str | None:
    # The worker hears of it at its next heartbeat; until then this is asked again.
    stopped = seen.job.id in tasks.app.state.interrupted
    return _runs(seen, "cancelled") or (None if stopped else WAIT)


def _never_started(seen: Seen) -> str | None:
    return _runs(seen) or (None if seen.job.cancel_reason is CancelReason.EXPIRED else "someone cancelled it")


def _fired_again(seen: Seen) -> str | None:
    times = {job.headers.get("ropeway-scheduled-for") for job in (seen.job, *seen.others)}
    if len(times) < 1 + len(seen.others):
        return "one instant was fired twice"
    return None if len(times) >= FIRES else WAIT


#: Not a flaw: something is still to come.
WAIT = "wait"

ACTS: tuple[Act, ...] = (
    Act("succeeds", _hello),
    Act("fails twice, then succeeds", _flaky, flaw=lambda seen: _runs(seen, "failed", "failed", "succeeded")),
    Act("waits for its time", _later, flaw=_ran_on_time),
    Act("snoozes, then succeeds", _snooze, flaw=_costs_nothing),
    Act("tells its progress", _import, flaw=_moved),
    Act("works a processor hard", _primes, flaw=_counted_elsewhere),
    Act("has its process killed", _crash, flaw=lambda seen: _runs(seen, "crashed", "succeeded")),
    Act("is urgent and goes first", _overtakes, flaw=_went_first),
    Act("is asked for twice, runs once", _twice, flaw=_is_one_job),
    Act("comes in over HTTP, twice", _over_http, flaw=_is_one_job, over_http=True),
    Act("is run over HTTP", _abroad, flaw=_came_back, during=_work_over_http, over_http=True),
    Act("comes again every 2 seconds", _recurring, flaw=_fired_again, fired=tasks.tick.name),
    Act("never works", _broken, ends=State.DEAD, flaw=_used_up),
    Act("gives up at once", _discard, ends=State.DEAD, flaw=_rejected),
    Act("takes too long", _slow, ends=State.DEAD, flaw=_timed_out),
    Act(
        "is cancelled while it runs",
        _forever,
        ends=State.CANCELLED,
        flaw=_handler_stopped,
        during=_cancel_when_it_runs,
    ),
    Act("is not started in time", _expires, ends=State.CANCELLED, flaw=_never_started),
)
