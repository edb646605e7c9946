"""Why a job is not running, what is before it, and when its turn comes."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

import msgspec

from ropeway.core.fleet import WorkerInfo
from ropeway.core.job import DEFAULT_TENANT, Job
from ropeway.core.query import Count, QueueStats
from ropeway.core.states import TERMINAL_STATES, State
from ropeway.engines.protocol import Engine
from ropeway.service.jobs import Jobs

Code = Literal["not_due", "retry_wait", "queue_paused", "no_worker", "behind_others", "running", "ended"]

#: Names of queues or types that a message lists, at most.
MOST_NAMES = 5


class Reason(msgspec.Struct, frozen=True):
    """One reason; `until` when its end is known."""

    code: Code
    message: str
    until: datetime | None = None


class Explanation(msgspec.Struct, frozen=True):
    """The reasons, the weightiest first. `ahead` only of a job that is queued: how many are in line before it (at
    least, if `ahead_capped`). `expected_start` is an estimate from what finished in the last minute; None: nobody
    can tell."""

    id: UUID
    state: State
    reasons: list[Reason]
    ahead: int | None = None
    ahead_capped: bool = False
    expected_start: datetime | None = None


async def explain(engine: Engine, id: UUID, tenant: str = DEFAULT_TENANT) -> Explanation:
    """Raises NotFound."""
    job = await Jobs(engine, tenant=tenant).get(id)
    if job.state in TERMINAL_STATES:
        return Explanation(id, job.state, [_ended(job)])
    if job.state is State.RUNNING:
        return Explanation(id, job.state, [_running(job)])
    if job.state is State.WAITING:
        return Explanation(id, job.state, [Reason("behind_others", "It waits for the end of other jobs.")])
    found = await engine.queue_stats([job.queue], tenant=tenant)
    stats = found[0] if found else QueueStats(job.queue, False, {})
    paused = [_paused(job)] if stats.paused else []
    if job.state in (State.SCHEDULED, State.RETRYING):
        reason = _not_due(job) if job.state is State.SCHEDULED else _retry_wait(job)
        return Explanation(id, job.state, [reason, *paused], expected_start=None if paused else job.run_at)
    place = await engine.place(id, tenant=tenant)
    if place is None:
        # It moved on between two looks; what it is now is another story, told by the next question.
        return await _moved_on(engine, job, tenant)
    workers = await engine.workers(tenant=tenant)
    serving = [worker for worker in workers if job.queue in worker.queues and worker.state == "running"]
    able = [worker for worker in serving if not worker.types or job.type in worker.types]
    reasons = paused + ([] if able else [_no_worker(job, workers, serving)])
    start = None
    if not reasons:
        start = _expected(await engine.now(), place, stats, able)
    if not reasons or place.number:
        reasons.append(_behind(place, able))
    return Explanation(id, job.state, reasons, place.number, place.capped, start)


async def _moved_on(engine: Engine, before: Job, tenant: str) -> Explanation:
    job = await Jobs(engine, tenant=tenant).get(before.id)
    if job.state in TERMINAL_STATES:
        return Explanation(job.id, job.state, [_ended(job)])
    if job.state is State.RUNNING:
        return Explanation(job.id, job.state, [_running(job)])
    if job.state is State.RETRYING:
        return Explanation(job.id, job.state, [_retry_wait(job)], expected_start=job.run_at)
    return Explanation(job.id, job.state, [_not_due(job)], expected_start=job.run_at)


# ── The reasons in words ──


def _ended(job: Job) -> Reason:
    at = f" at {_time(job.finished_at)}" if job.finished_at else ""
    if job.state is State.SUCCEEDED:
        return Reason("ended", f"It succeeded{at}; there is nothing left to run.")
    why = {
        State.DEAD: f"It died{at} ({job.dead_reason or 'unknown reason'}) and runs no more unless it is retried.",
        State.CANCELLED: (
            f"It was not started in time and was cancelled{at}."
            if job.cancel_reason == "expired"
            else f"It was cancelled{at} and runs no more unless it is retried."
        ),
    }
    return Reason("ended", why[job.state])


def _running(job: Job) -> Reason:
    since = f" since {_time(job.started_at)}" if job.started_at else ""
    by = f" on worker {job.locked_by}" if job.locked_by else ""
    return Reason("running", f"It runs{since}{by}, attempt {job.attempts} of {job.max_attempts}.")


def _not_due(job: Job) -> Reason:
    return Reason("not_due", f"It is scheduled for {_time(job.run_at)}.", job.run_at)


def _retry_wait(job: Job) -> Reason:
    message = f"Attempt {job.attempts} of {job.max_attempts} failed; it is tried again at {_time(job.run_at)}."
    return Reason("retry_wait", message, job.run_at)


def _paused(job: Job) -> Reason:
    return Reason(
        "queue_paused", f"The queue {job.queue} is paused: workers take nothing from it until it resumes."
    )


def _no_worker(job: Job, workers: list[WorkerInfo], serving: list[WorkerInfo]) -> Reason:
    if serving:
        known = _names({type for worker in serving for type in worker.types})
        message = f"No worker of the queue {job.queue} knows the type {job.type}; they know {known}."
    elif any(job.queue in worker.queues for worker in workers):
        message = f"The workers of the queue {job.queue} take no new jobs now: they are quiet or stopping."
    elif workers:
        served = _names({queue for worker in workers for queue in worker.queues})
        message = f"No worker serves the queue {job.queue}; those that are alive serve {served}."
    else:
        message = "No worker is alive; start one with `ropeway worker`."
    return Reason("no_worker", message)


def _behind(place: Count, able: list[WorkerInfo]) -> Reason:
    slots = sum(worker.slots for worker in able)
    if place.number == 0:
        message = "It is next in line." if able else "It is next in line, once there is a worker."
    elif place.number == 1:
        message = "One job of its queue is before it."
    else:
        most = "More than " if place.capped else ""
        message = f"{most}{place.number:,} jobs of its queue are before it."
    if able:
        message += f" {len(able):,} {'worker' if len(able) == 1 else 'workers'} with {slots:,} slots take from it."
    return Reason("behind_others", message)


def _expected(now: datetime, place: Count, stats: QueueStats, able: list[WorkerInfo]) -> datetime | None:
    if place.number < sum(max(0, worker.slots - worker.running) for worker in able):
        return now
    if place.capped or stats.finished_per_minute <= 0:
        return None
    return now + timedelta(minutes=(place.number + 1) / stats.finished_per_minute)


def _names(names: set[str]) -> str:
    shown = sorted(names)[:MOST_NAMES]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return (", ".join(shown) or "none") + more


def _time(at: datetime | None) -> str:
    return "" if at is None else at.strftime("%Y-%m-%d %H:%M:%S UTC")
