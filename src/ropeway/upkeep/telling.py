"""What a sweep did, told: one `sweep_complete` line, and more about jobs that people may ask for."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ropeway.core.errors import EngineError
from ropeway.core.job import Job
from ropeway.core.states import State
from ropeway.engines.protocol import Engine, Rescued
from ropeway.observability.logs import Logger
from ropeway.observability.metrics import WorkerMetrics
from ropeway.observability.names import JOB_DEAD, JOB_LOST, SWEEP_COMPLETE


def tell_sweep(log: Logger, sweep: str, **counts: int) -> None:
    """One line per sweep; a sweep that found nothing is only of interest to whoever debugs it."""
    (log.info if any(counts.values()) else log.debug)(SWEEP_COMPLETE, sweep=sweep, **counts)


async def tell_taken_back(
    sweep: str, rescued: Sequence[Rescued], engine: Engine, log: Logger, metrics: WorkerMetrics | None
) -> None:
    """Jobs were taken back from owners that are gone; those that may not run again are told by name."""
    dead = [each for each in rescued if each.state is State.DEAD]
    tell_sweep(log, sweep, rescued=len(rescued), dead=len(dead))
    if metrics is not None:
        metrics.reclaimed(len(rescued))
    jobs = await look_up(engine, [(each.tenant, each.id) for each in dead])
    for each in rescued:
        if each.state is not State.DEAD:
            log.warning(JOB_LOST, job_id=each.id, tenant=each.tenant, state=each.state.value)
    for each in dead:
        job = jobs.get(each.id)
        if job is None:
            log.error(JOB_DEAD, job_id=each.id, tenant=each.tenant)
            continue
        log.error(
            JOB_DEAD,
            job_id=job.id,
            type=job.type,
            queue=job.queue,
            attempt=job.attempt,
            tenant=job.tenant,
            reason=job.dead_reason,
            error=None if job.last_error is None else job.last_error.message,
        )
        if metrics is not None:
            metrics.died(job.queue, job.type)


async def look_up(engine: Engine, named: Sequence[tuple[str, UUID]]) -> dict[UUID, Job]:
    """These jobs by id; without those that cannot be read now: what was done is told either way."""
    ids_by_tenant: dict[str, list[UUID]] = {}
    for tenant, id in named:
        ids_by_tenant.setdefault(tenant, []).append(id)
    found: dict[UUID, Job] = {}
    try:
        for tenant, ids in ids_by_tenant.items():
            found |= {job.id: job for job in await engine.get(ids, tenant=tenant) if job is not None}
    except EngineError:
        pass  # the next sweep will meet it as well, and says so
    return found
