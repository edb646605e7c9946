"""The whole of a tenant at one moment, and what in it needs somebody's attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from ropeway.core.durations import in_words
from ropeway.core.fleet import WorkerInfo
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.query import Count, QueueStats
from ropeway.core.states import LIVE_STATES, State
from ropeway.engines.protocol import Engine
from ropeway.service.deaths import Deaths

#: Counts of a look that is taken every second stop here.
MOST_COUNTED = 10_000

#: A worker reports every ten seconds; one that is silent for longer than this has most likely stopped.
SILENT_SECONDS = 25.0

#: A worker that leaves in order is forgotten at once. One that fell silent is told for so long, and shown.
MISSED_SECONDS = 3_600.0

#: Workers that one sentence names.
MOST_NAMED = 3

Kind = Literal["no_workers", "silent_worker", "not_served", "paused", "late", "dying", "dead", "full"]

#: The most urgent first. `dying`: some died within the last hour; `dead`: they were there before.
URGENCY: tuple[Kind, ...] = (
    "no_workers",
    "not_served",
    "full",
    "silent_worker",
    "late",
    "dying",
    "paused",
    "dead",
)


class Concern(msgspec.Struct, frozen=True):
    """One thing that needs attention; `queue` or `worker` is what it is about."""

    kind: Kind
    message: str
    advice: str
    queue: str | None = None
    worker: str | None = None


class Overview(msgspec.Struct, frozen=True):
    """Queues and workers as they were at `at`, by the engine's clock.

    `workers` are those heard of within the last hour that have not said goodbye; what is summed up are those
    `present`. `died` is how many jobs of a queue died within the last hour, where that was looked for.
    """

    at: datetime
    queues: Sequence[QueueStats]
    workers: Sequence[WorkerInfo]
    died: Mapping[str, Count] = msgspec.field(default_factory=dict)

    @property
    def counts(self) -> dict[State, int]:
        """Jobs by state over all queues."""
        total = dict.fromkeys(State, 0)
        for stats in self.queues:
            for state, number in stats.counts.items():
                total[state] += number
        return total

    @property
    def capped(self) -> frozenset[State]:
        """The states of which some count stopped before the end: their sums are lower bounds."""
        return frozenset(state for stats in self.queues for state in stats.capped)

    @property
    def enqueued_per_minute(self) -> float:
        return sum(stats.enqueued_per_minute for stats in self.queues)

    @property
    def finished_per_minute(self) -> float:
        return sum(stats.finished_per_minute for stats in self.queues)

    @property
    def oldest_age_seconds(self) -> float | None:
        return max((s.oldest_age_seconds for s in self.queues if s.oldest_age_seconds is not None), default=None)

    @property
    def present(self) -> list[WorkerInfo]:
        """The workers that are there, as far as anybody knows."""
        return [worker for worker in self.workers if not self.is_silent(worker)]

    @property
    def silent(self) -> list[WorkerInfo]:
        """Those that should have been heard of since, the newest first."""
        return sorted((worker for worker in self.workers if self.is_silent(worker)), key=self.silent_for)

    @property
    def slots(self) -> int:
        return sum(worker.slots for worker in self.present)

    @property
    def slots_used(self) -> int:
        return sum(worker.running for worker in self.present)

    @property
    def serving(self) -> Counter[str]:
        """How many workers take jobs of each queue."""
        taking = (worker for worker in self.present if worker.state == "running")
        return Counter(queue for worker in taking for queue in set(worker.queues))

    def queue(self, name: str) -> QueueStats | None:
        return next((stats for stats in self.queues if stats.queue == name), None)

    def silent_for(self, worker: WorkerInfo) -> float:
        """Seconds since a worker was last heard of."""
        return 0.0 if worker.seen_at is None else max(0.0, (self.at - worker.seen_at).total_seconds())

    def is_silent(self, worker: WorkerInfo) -> bool:
        """Whether a worker should have been heard of since."""
        return self.silent_for(worker) > SILENT_SECONDS


async def look(
    engine: Engine, tenant: str = DEFAULT_TENANT, *, cap: int = MOST_COUNTED, deaths: Deaths | None = None
) -> Overview:
    """Look at everything once, at a cost that does not grow with what is stored. `deaths` is what the look before
    had: whoever looks every second keeps it."""
    queues = await engine.queue_stats(cap=cap, tenant=tenant)
    workers = await engine.workers(seen_within=MISSED_SECONDS, tenant=tenant)
    at = await engine.now()
    dead = {stats.queue: number for stats in queues if (number := stats.counts.get(State.DEAD, 0))}
    died = await (deaths or Deaths(engine, tenant=tenant)).within_the_hour(dead, at)
    return Overview(at, queues, workers, died)


def seconds_to_empty(stats: QueueStats) -> float | None:
    """In how many seconds a queue is empty if it goes on like this; None when it does not get shorter. 0 when no
    job waits, whatever runs.

    More than that, when its queued or running jobs were counted only up to the cap.
    """
    waiting, running = stats.counts.get(State.QUEUED, 0), stats.counts.get(State.RUNNING, 0)
    gain = (stats.finished_per_minute - stats.enqueued_per_minute) / 60
    if waiting == 0:
        return 0.0
    return (waiting + running) / gain if gain > 0 else None


# ── What needs attention ──


def concerns(overview: Overview, *, age_target: float) -> list[Concern]:
    """What somebody should look at, the most urgent first. A job that could run and has waited for longer than
    `age_target` seconds is late."""
    serving = overview.serving if overview.present else None
    found = _of_workers(overview)
    for stats in overview.queues:
        found += _of_queue(stats, serving, age_target)
        if stats.counts.get(State.DEAD, 0):
            found.append(_of_dead(stats, overview.died.get(stats.queue)))
    return sorted(found, key=lambda concern: URGENCY.index(concern.kind))


def _of_queue(stats: QueueStats, serving: Mapping[str, int] | None, age_target: float) -> list[Concern]:
    """`serving` is None where there are no workers: that is told once, and not of each queue."""
    name, found = stats.queue, []
    due, capped = stats.counts.get(State.QUEUED, 0), State.QUEUED in stats.capped
    oldest = stats.oldest_age_seconds or 0.0
    if stats.paused:
        waiting = f"{_jobs_wait(due, capped=capped)} in it" if due else "nothing waits in it"
        found.append(
            Concern("paused", f"The queue {name} is paused; {waiting}.", "Resume it when work may go on.", name)
        )
    elif due and serving is not None and not serving.get(name):
        found.append(
            Concern(
                "not_served",
                f"Nobody works on the queue {name}, and {_jobs_wait(due, capped=capped)} in it.",
                f"Start a worker with --queues {name}.",
                name,
            )
        )
    elif oldest > age_target:
        found.append(
            Concern(
                "late",
                f"The oldest job that could run in {name} has waited for {in_words(oldest)}.",
                "Start more workers, or look at what the running jobs do.",
                name,
            )
        )
    limit = stats.settings.depth_limit
    if limit is not None and _live(stats.counts) >= limit:
        found.append(
            Concern(
                "full",
                f"The queue {name} is at its limit of {limit:,} jobs.",
                "It refuses more until it is worked off.",
                name,
            )
        )
    return found


def _of_dead(stats: QueueStats, died: Count | None) -> Concern:
    name, dead = stats.queue, stats.counts[State.DEAD]
    total, are = _number(dead, capped=State.DEAD in stats.capped), "is" if dead == 1 else "are"
    advice = "Look at the errors, fix their cause, replay them."
    if died is not None and died.number:
        new = f"{_number(died.number, capped=died.capped)} {_jobs(died.number)}"
        words = f"{new} of {name} died within the last hour; {total} {are} dead in all."
        return Concern("dying", words, advice, name)
    none = "" if died is None or died.capped else "; none died within the last hour"
    return Concern("dead", f"{total} {_jobs(dead)} of {name} {are} dead{none}.", advice, name)


def _of_workers(overview: Overview) -> list[Concern]:
    found: list[Concern] = []
    waiting = _jobs_wait(_live(overview.counts), capped=bool(overview.capped & LIVE_STATES))
    if _live(overview.counts) and not overview.present:
        found.append(
            Concern("no_workers", f"No worker is running, and {waiting}.", "Start one: ropeway worker APP.")
        )
    if silent := overview.silent:
        found.append(
            Concern(
                "silent_worker",
                _silent(silent, overview.silent_for(silent[0])),
                "The jobs of a process that is gone are taken back when their leases end.",
                worker=silent[0].id,
            )
        )
    return found


def _silent(workers: Sequence[WorkerInfo], seconds: float) -> str:
    """In words; the first of them was heard of so many seconds ago."""
    newest = workers[0].id
    if len(workers) == 1:
        return f"The worker {newest} was last heard of {in_words(seconds)} ago, and said no goodbye."
    names = ", ".join(worker.id for worker in workers[:MOST_NAMED])
    more = f" and {len(workers) - MOST_NAMED:,} more" if len(workers) > MOST_NAMED else ""
    return (
        f"{len(workers):,} workers fell silent and said no goodbye: {names}{more}; "
        f"{newest} was last heard of {in_words(seconds)} ago."
    )


def _number(number: int, *, capped: bool) -> str:
    return f"{number:,}{'+' if capped else ''}"


def _jobs(number: int) -> str:
    return "job" if number == 1 else "jobs"


def _jobs_wait(number: int, *, capped: bool = False) -> str:
    if capped:
        return f"more than {number:,} jobs wait"
    return "1 job waits" if number == 1 else f"{number:,} jobs wait"


def _live(counts: Mapping[State, int]) -> int:
    return sum(number for state, number in counts.items() if state in LIVE_STATES)
