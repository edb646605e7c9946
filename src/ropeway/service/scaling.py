"""How many workers a queue needs, for whoever starts and stops them."""

from __future__ import annotations

import math

import msgspec

from ropeway.core.fleet import WorkerInfo
from ropeway.core.query import JobFilter, QueueStats
from ropeway.core.states import State
from ropeway.engines.protocol import Engine

#: In how many seconds a backlog should be worked off.
TARGET_SECONDS = 60.0

#: A backlog is counted no further than this; beyond it the number is a lower bound.
MOST_COUNTED = 100_000


class Scaling(msgspec.Struct, frozen=True):
    """A queue as an autoscaler sees it. `backlog` is what could run now and does not."""

    queue: str
    backlog: int
    running: int
    oldest_age_seconds: float | None
    workers_wanted: int


def workers_wanted(stats: QueueStats, backlog: int, workers: list[WorkerInfo]) -> int:
    """How many workers would work off the backlog within a minute while new jobs go on coming.

    From what was seen in the last minute: a job takes `running / finished per second` seconds (Little's law). To
    finish `backlog / 60` jobs per second besides those that come, `(backlog / 60 + enqueued per second) x` that
    many seconds must run at once: so many slots are needed, at least those that run now, at most one per job.
    Divided by the slots of the workers that serve the queue, on average, that is the number of workers.

    Nothing finished lately: one slot per job, up to twice the slots that are there, since nobody knows how long
    the jobs take. No worker was seen: one, if there is anything to do, for its slots and its speed will show how
    many more. A paused queue needs only those that finish what runs. Slots of workers that serve other queues as
    well are counted in full for each.
    """
    running = stats.counts.get(State.RUNNING, 0)
    if stats.paused:
        backlog = 0
    if backlog + running == 0:
        return 0
    serving = [worker for worker in workers if stats.queue in worker.queues and worker.slots > 0]
    if not serving:
        return 1
    slots_there = sum(worker.slots for worker in serving)
    finished = stats.finished_per_minute / 60
    if finished > 0 and running > 0:
        seconds_each = running / finished
        slots = (backlog / TARGET_SECONDS + stats.enqueued_per_minute / 60) * seconds_each
    elif finished > 0:
        # Jobs so short that none was seen running: what is there keeps up.
        slots = backlog / TARGET_SECONDS / finished * slots_there
    else:
        slots = min(backlog + running, 2 * slots_there)
    slots = min(max(slots, running), backlog + running)
    return max(1, math.ceil(slots / (slots_there / len(serving)) - 1e-9))


async def scaling_of(engine: Engine, queue: str, tenant: str) -> Scaling:
    """A queue's scaling figures, from the store as it is now."""
    found = await engine.queue_stats([queue], tenant=tenant)
    stats = found[0] if found else QueueStats(queue, False, {})
    backlog = stats.counts.get(State.QUEUED, 0)
    if State.QUEUED in stats.capped:
        where = JobFilter(queue=queue, states=frozenset({State.QUEUED}))
        backlog = (await engine.count(where, cap=MOST_COUNTED, tenant=tenant)).number
    return Scaling(
        queue=queue,
        backlog=backlog,
        running=stats.counts.get(State.RUNNING, 0),
        oldest_age_seconds=stats.oldest_age_seconds,
        workers_wanted=workers_wanted(stats, backlog, await engine.workers(tenant=tenant)),
    )
