"""Operators and producers change jobs: cancel, retry, reschedule, delete; one, or several with an answer each."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from msgspec import UNSET, UnsetType

from ropeway.api.rendering import after_the_effect, changed, found, missing_job, noted_each, seen
from ropeway.api.routes.jobs import ids_of
from ropeway.api.routing import Call, Reply, Route
from ropeway.core import fields
from ropeway.core.access import Scope
from ropeway.core.errors import FieldError, NotFound, RopewayError
from ropeway.core.states import State
from ropeway.engines.operating import redrivable
from ropeway.engines.protocol import Changed
from ropeway.wire import models, paths
from ropeway.wire.convert import time_of
from ropeway.wire.objects import Object
from ropeway.wire.problems import problem_of
from ropeway.wire.queries import filter_of
from ropeway.wire.requests import (
    MAX_BY,
    CancelBody,
    ManyBody,
    NoBody,
    RescheduleBody,
    RetryManyBody,
    RetryWhereBody,
)

_CANCEL = (Scope.ENQUEUE, Scope.ADMIN)
_ADMIN = (Scope.ADMIN,)


async def cancel_job(call: Call) -> Reply:
    body: CancelBody = call.body
    id = call.job_id
    reason = fields.check_text(body.reason, "reason", limit=256) if body.reason else None
    done = changed((await call.deps.engine.cancel([id], tenant=call.tenant))[0])
    await _told(call, "job.cancel", [done], reason)
    # A running job is cancelled already; its worker has yet to learn it.
    return Reply(202 if done.before is State.RUNNING else 200, await _as_it_is(call, id))


async def retry_job(call: Call) -> Reply:
    id = call.job_id
    done = changed((await call.deps.engine.redrive([id], by=call.principal.actor, tenant=call.tenant))[0])
    await _told(call, "job.retry", [done])
    return Reply(200, await _as_it_is(call, id))


async def reschedule_job(call: Call) -> Reply:
    body: RescheduleBody = call.body
    id = call.job_id
    if body.run_at is not None and body.delay is not None:
        raise FieldError("give run_at or delay, not both", code="conflicting_fields", pointer="/run_at")
    try:
        done = await call.deps.engine.reschedule(
            id,
            run_at=time_of(body.run_at, "run_at"),
            delay=body.delay,
            priority=None if body.priority is None else fields.parse_priority(body.priority),
            queue=None if body.queue is None else fields.check_name(body.queue, "queue"),
            tenant=call.tenant,
        )
    except NotFound:
        raise missing_job() from None
    await _told(call, "job.reschedule", [done])
    return Reply(200, {**await _as_it_is(call, id), "before": done.before.value})


async def delete_job(call: Call) -> Reply:
    done = changed((await call.deps.engine.delete([call.job_id], tenant=call.tenant))[0])
    await _told(call, "job.delete", [done])
    return Reply(204)


async def cancel_jobs(call: Call) -> Reply:
    body: ManyBody = call.body
    return await _each(call, "job.cancel", ids_of(body.ids), call.deps.engine.cancel)


async def retry_jobs(call: Call) -> Reply:
    body: RetryManyBody = call.body
    by = _by(call, body.by)

    async def redrive(ids: list[UUID], *, tenant: str) -> list[Changed | RopewayError]:
        return await call.deps.engine.redrive(ids, by=by, tenant=tenant)

    return await _each(call, "job.retry", ids_of(body.ids), redrive)


def _by(call: Call, given: str | UnsetType | None) -> str | None:
    """Who is told in the events of the jobs to have done it; the audit log always has the key."""
    if given is UNSET:
        return call.principal.actor
    return None if given is None else fields.check_text(given, "by", limit=MAX_BY)


async def delete_jobs(call: Call) -> Reply:
    body: ManyBody = call.body
    return await _each(call, "job.delete", ids_of(body.ids), call.deps.engine.delete)


async def retry_jobs_where(call: Call) -> Reply:
    """Dead and cancelled jobs by any filter of the list; `/v1/dlq/retry` is the one for the dead."""
    body: RetryWhereBody = call.body
    report = await call.deps.engine.redrive_where(
        redrivable(filter_of(body.filter)),
        limit=body.limit,
        dry_run=body.dry_run,
        by=_by(call, body.by),
        tenant=call.tenant,
    )
    if not body.dry_run and report.retried:
        await noted_each(call, "job.retry", map(str, report.retried))
        call.deps.streams.poke()
    return Reply(
        200,
        {
            "matched": report.matched,
            "retried": [str(id) for id in report.retried],
            "more": report.more,
            "dry_run": report.dry_run,
        },
    )


async def _each(
    call: Call,
    action: str,
    ids: list[UUID],
    change: Callable[..., Coroutine[Any, Any, list[Changed | RopewayError]]],
) -> Reply:
    """Change several jobs, each with its own answer."""
    answers = await change(ids, tenant=call.tenant)
    await _told(call, action, [one for one in answers if isinstance(one, Changed)])
    return Reply(200, {"results": [_item(call, id, one) for id, one in zip(ids, answers, strict=True)]})


def _item(call: Call, id: UUID, answer: Changed | RopewayError) -> Object:
    if isinstance(answer, RopewayError):
        error = missing_job() if isinstance(answer, NotFound) else answer
        return {"id": str(id), "ok": False, "error": problem_of(error, call.request_id)}
    status = None if answer.state is None else answer.state.value
    return {"id": str(id), "ok": True, "before": answer.before.value, "status": status}


async def _told(call: Call, action: str, done: list[Changed], reason: str | None = None) -> None:
    call.deps.streams.poke()
    await noted_each(call, action, (str(one.id) if reason is None else f"{one.id}: {reason}" for one in done))


async def _as_it_is(call: Call, id: UUID) -> Object:
    """The job after what was done to it."""
    with after_the_effect():
        return seen(call, await found(call, id))


_ONE = ("not_found", "invalid_id")
_SEVERAL = ("invalid_id", "batch_too_large", "invalid_field")


ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        f"{paths.JOB}/cancel",
        cancel_job,
        scopes=_CANCEL,
        body=CancelBody,
        body_optional=True,
        replies={200: models.Job, 202: models.Job},
        codes=(*_ONE, "terminal", "invalid_field"),
        summary="Cancel a job; 202 when it runs, its worker learns it at its next heartbeat",
        tag="jobs",
    ),
    Route(
        "POST",
        f"{paths.JOB}/retry",
        retry_job,
        scopes=_ADMIN,
        body=NoBody,
        body_optional=True,
        replies={200: models.Job},
        codes=(*_ONE, "invalid_state"),
        summary="Run a dead or cancelled job again, with a fresh budget",
        tag="jobs",
    ),
    Route(
        "POST",
        f"{paths.JOB}/reschedule",
        reschedule_job,
        scopes=_ADMIN,
        body=RescheduleBody,
        replies={200: models.Rescheduled},
        codes=(*_ONE, "terminal", "invalid_state", "invalid_field", "conflicting_fields", "timezone_required")
        + ("invalid_time",),
        summary="Give a job that has not started another time, priority or queue",
        tag="jobs",
    ),
    Route(
        "DELETE",
        paths.JOB,
        delete_job,
        scopes=_ADMIN,
        replies={204: None},
        codes=(*_ONE, "invalid_state"),
        summary="Remove a job that does not run",
        tag="jobs",
    ),
    Route(
        "POST",
        paths.JOBS_CANCEL,
        cancel_jobs,
        scopes=_CANCEL,
        body=ManyBody,
        replies={200: models.ChangedBatch},
        codes=_SEVERAL,
        summary="Cancel up to 1,000 jobs, with an answer for each",
        tag="jobs",
    ),
    Route(
        "POST",
        paths.JOBS_RETRY,
        retry_jobs,
        scopes=_ADMIN,
        body=RetryManyBody,
        replies={200: models.ChangedBatch},
        codes=_SEVERAL,
        summary="Run up to 1,000 dead or cancelled jobs again, with an answer for each",
        tag="jobs",
    ),
    Route(
        "POST",
        paths.JOBS_DELETE,
        delete_jobs,
        scopes=_ADMIN,
        body=ManyBody,
        replies={200: models.ChangedBatch},
        codes=_SEVERAL,
        summary="Remove up to 1,000 jobs that do not run, with an answer for each",
        tag="jobs",
    ),
    Route(
        "POST",
        paths.JOBS_RETRY_WHERE,
        retry_jobs_where,
        scopes=_ADMIN,
        body=RetryWhereBody,
        replies={200: models.RetriedWhere},
        codes=("invalid_field", "timezone_required", "invalid_time"),
        summary="Run the dead and cancelled jobs again that a filter finds",
        tag="jobs",
    ),
)
