"""The whole of a tenant at one moment, and what in it needs somebody's attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from ropeway.core.durations import in_words
from ropeway.core.fleet import WorkerInfo
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.query import QueueStats
from ropeway.core.states import LIVE_STATES, State
from ropeway.engines.protocol import Engine

#: Counts of a look that is taken every second stop here.
MOST_COUNTED = 10_000

#: A job that could run and has waited longer than this is worth a word.
OLDEST_SECONDS = 60.0

#: A worker reports every ten seconds; one that is silent for longer than this has most likely stopped.
SILENT_SECONDS = 25.0

Kind = Literal["no_workers", "silent_worker", "not_served", "paused", "late", "dead", "full"]

#: The most urgent first.
URGENCY: tuple[Kind, ...] = ("no_workers", "not_served", "full", "silent_worker", "late", "paused", "dead")


class Concern(msgspec.Struct, frozen=True):
    """One thing that needs attention; `queue` or `worker` is what it is about."""

    kind: Kind
    message: str
    advice: str
    queue: str | None = None
    worker: str | None = None


class Overview(msgspec.Struct, frozen=True):
    """Queues and workers as they were at `at`, by the engine's clock."""

    at: datetime
    queues: Sequence[QueueStats]
    workers: Sequence[WorkerInfo]

    @property
    def counts(self) -> dict[State, int]:
        """Jobs by state over all queues."""
        total = dict.fromkeys(State, 0)
        for stats in self.queues:
            for state, number in stats.counts.items():
                total[state] += number
        return total

    @property
    def capped(self) -> bool:
        """Whether some count stopped before the end: sums are then lower bounds."""
        return any(stats.counts_capped for stats in self.queues)

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
    def slots(self) -> int:
        return sum(worker.slots for worker in self.workers)

    @property
    def slots_used(self) -> int:
        return sum(worker.running for worker in self.workers)

    def queue(self, name: str) -> QueueStats | None:
        return next((stats for stats in self.queues if stats.queue == name), None)

    def silent_for(self, worker: WorkerInfo) -> float:
        """Seconds since a worker was last heard of."""
        return 0.0 if worker.seen_at is None else max(0.0, (self.at - worker.seen_at).total_seconds())

    def is_silent(self, worker: WorkerInfo) -> bool:
        """Whether a worker should have been heard of since."""
        return self.silent_for(worker) > SILENT_SECONDS


async def look(engine: Engine, tenant: str = DEFAULT_TENANT, *, cap: int = MOST_COUNTED) -> Overview:
    """Look at everything once, at a cost that does not grow with what is stored."""
    queues = await engine.queue_stats(cap=cap, tenant=tenant)
    workers = await engine.workers(tenant=tenant)
    return Overview(await engine.now(), queues, workers)


def seconds_to_empty(stats: QueueStats) -> float | None:
    """In how many seconds a queue is empty if it goes on like this; None when it does not get shorter."""
    due = stats.counts.get(State.QUEUED, 0) + stats.counts.get(State.RUNNING, 0)
    gain = (stats.finished_per_minute - stats.enqueued_per_minute) / 60
    if due == 0:
        return 0.0
    return due / gain if gain > 0 else None


# ── What needs attention ──


def concerns(overview: Overview) -> list[Concern]:
    """What somebody should look at, the most urgent first."""
    found = [concern for stats in overview.queues for concern in _of_queue(stats, overview)]
    found += _of_workers(overview)
    return sorted(found, key=lambda concern: URGENCY.index(concern.kind))


def _of_queue(stats: QueueStats, overview: Overview) -> list[Concern]:
    name, found = stats.queue, []
    due, oldest = stats.counts.get(State.QUEUED, 0), stats.oldest_age_seconds or 0.0
    served = any(name in worker.queues and worker.state == "running" for worker in overview.workers)
    if stats.paused:
        waiting = f"{_jobs_wait(due)} in it" if due else "nothing waits in it"
        found.append(
            Concern("paused", f"The queue {name} is paused; {waiting}.", "Resume it when work may go on.", name)
        )
    elif due and overview.workers and not served:
        found.append(
            Concern(
                "not_served",
                f"Nobody works on the queue {name}, and {_jobs_wait(due)} in it.",
                f"Start a worker with --queues {name}.",
                name,
            )
        )
    elif oldest > OLDEST_SECONDS:
        found.append(
            Concern(
                "late",
                f"The oldest job that could run in {name} has waited for {in_words(oldest)}.",
                "Start more workers, or look at what the running jobs do.",
                name,
            )
        )
    if stats.counts.get(State.DEAD, 0):
        number = f"{stats.counts[State.DEAD]:,}{'+' if stats.counts_capped else ''}"
        found.append(
            Concern(
                "dead",
                f"{number} {'job' if number == '1' else 'jobs'} of {name} died.",
                "Look at the errors, fix their cause, replay them.",
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


def _of_workers(overview: Overview) -> list[Concern]:
    if not overview.workers:
        waiting = sum(_live(stats.counts) for stats in overview.queues)
        if not waiting:
            return []
        return [
            Concern(
                "no_workers", f"No worker is running, and {_jobs_wait(waiting)}.", "Start one: ropeway worker APP."
            )
        ]
    return [
        Concern(
            "silent_worker",
            f"The worker {worker.id} was last heard of {in_words(overview.silent_for(worker))} ago.",
            "If its process is gone, its jobs are taken back when their leases end.",
            worker=worker.id,
        )
        for worker in overview.workers
        if overview.is_silent(worker)
    ]


def _jobs_wait(number: int) -> str:
    return "1 job waits" if number == 1 else f"{number:,} jobs wait"


def _live(counts: Mapping[State, int]) -> int:
    return sum(number for state, number in counts.items() if state in LIVE_STATES)
