"""Document 002: jobs of named queues."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ropeway.api.rendering import found, sees_payload
from ropeway.api.routes import changing, settling
from ropeway.api.routes.compat.common import ENQUEUE, REFUSALS, cost, made
from ropeway.api.routes.enqueueing import check_size, converted, key_header, store, store_one, trace_of
from ropeway.api.routes.jobs import listed
from ropeway.api.routes.leasing import take
from ropeway.api.routing import Call, Reply, Route
from ropeway.core import fields
from ropeway.core.access import Scope
from ropeway.core.events import attempt_history
from ropeway.core.job import Job, NewJob
from ropeway.core.states import PRUNED, DeadReason, State
from ropeway.engines.protocol import Enqueued
from ropeway.service.jobs import Jobs
from ropeway.wire import models
from ropeway.wire.convert import error_text, new_job
from ropeway.wire.objects import Object, attempt_object, event_object, json_or_none, log_object, time_or_none
from ropeway.wire.queries import JobsQuery
from ropeway.wire.requests import (
    Body,
    CancelBody,
    EnqueueBody,
    LeaseBody,
    LeaseSeconds,
    Name,
    Payload,
    Retries,
    Time,
    WorkerId,
)
from ropeway.wire.tokens import format_token

#: What the older face calls a state.
STATUSES = {
    State.SCHEDULED: "pending",
    State.QUEUED: "pending",
    State.RETRYING: "pending",
    State.WAITING: "pending",
    State.RUNNING: "processing",
    State.SUCCEEDED: "completed",
    State.DEAD: "dead",
    State.CANCELLED: "cancelled",
}

_BY_ID = (Scope.READ, Scope.ENQUEUE)
_TOKENS = ("invalid_id", "invalid_field", "lease_lost", "terminal", "indeterminate")

# ── What is sent and what comes back ──


class QueueJob(Body):
    """Priority is higher-first around 0. The type of the job is its queue's name unless it is given."""

    queue_name: Name
    payload: Payload | UnsetType = UNSET
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 0
    max_retries: Retries = 3
    run_at: Time | None = None
    type: Name | None = None


class QueueJobs(Body):
    jobs: list[QueueJob]


class QueueLease(Body):
    worker_id: WorkerId
    lease_seconds: LeaseSeconds | None = None


class QueueJobMade(msgspec.Struct):
    job_id: UUID
    status: str


class QueueJobsMade(msgspec.Struct):
    job_ids: list[UUID]


class OldJob(msgspec.Struct, kw_only=True):
    """A job as the older face shows it. `payload` and `result` are absent for keys that may not see them."""

    id: UUID
    queue_name: str
    status: Literal["pending", "processing", "completed", "dead", "cancelled"]
    priority: int
    retry_count: int
    max_retries: int
    run_at: datetime
    locked_until: datetime | None
    locked_by: str | None
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error_text: str | None
    dead_at: datetime | None
    dead_reason: DeadReason | None
    lease_lost_count: int
    payload: msgspec.Raw | UnsetType = UNSET
    result: msgspec.Raw | UnsetType | None = UNSET


class OldJobs(msgspec.Struct):
    jobs: list[OldJob]
    next_cursor: str | None


class OldJobDetail(OldJob, kw_only=True):
    attempt_history: list[models.Attempt]
    events: list[models.Event]
    logs: list[models.LogEntry]


class OldLease(msgspec.Struct):
    job: OldJob
    lease_token: str


# ── Handlers ──


async def make_queue_job(call: Call) -> Reply:
    answer = await store_one(call, await made(call, _queue_job, call.body, call.raw, call))
    return Reply(200 if answer.deduplicated else 201, {"job_id": str(answer.id), "status": _status(answer)})


async def make_queue_jobs(call: Call) -> Reply:
    body: QueueJobs = call.body
    check_size(len(body.jobs))
    jobs = await made(call, converted, lambda index: _queue_job(body.jobs[index], b"", None), len(body.jobs))
    answers = await store(call, jobs)
    return Reply(201, {"job_ids": [str(answer.id) for answer in answers]})


async def list_queue_jobs(call: Call) -> Reply:
    page, cursor = await listed(call, call.query, call.query.order)
    return Reply(200, {"jobs": [_job(call, job) for job in page], "next_cursor": cursor})


async def get_queue_job(call: Call) -> Reply:
    return Reply(200, _job(call, await found(call, call.job_id)))


async def get_queue_job_detail(call: Call) -> Reply:
    job = await found(call, call.job_id)
    told = await call.deps.engine.events_of(job.id, tenant=call.tenant)
    logs = await Jobs(call.deps.engine, tenant=call.tenant).logs(job.id)
    detail = {
        "attempt_history": [attempt_object(one) for one in attempt_history(told)],
        "events": [event_object(event) for event in told],
        "logs": [log_object(line) for line in logs],
    }
    return Reply(200, {**_job(call, job), **detail})


async def lease_queue_job(call: Call) -> Reply:
    body: QueueLease = call.body
    queue = fields.check_name(call.params["queue_name"], "queue_name")
    batch = await take(call, [queue], LeaseBody(body.worker_id, lease_seconds=body.lease_seconds))
    if batch is None or not batch.leases:
        return Reply(204)
    (leased,) = batch.leases
    return Reply(200, {"job": _job(call, leased.job, whole=True), "lease_token": format_token(leased.lease)})


def _queue_job(body: QueueJob, raw: bytes, call: Call | None) -> NewJob:
    asked = EnqueueBody(
        type=body.queue_name if body.type is None else body.type,
        queue=body.queue_name,
        payload=body.payload,
        priority=min(9, max(1, 5 - body.priority)),
        max_retries=body.max_retries,
        run_at=body.run_at,
    )
    if call is None:
        return new_job(asked, raw)
    return new_job(asked, raw, key=key_header(call), trace=trace_of(call))


def _job(call: Call, job: Job, *, whole: bool = False) -> Object:
    max_retries = job.max_attempts - 1
    object: Object = {
        "id": str(job.id),
        "queue_name": job.queue,
        "payload": json_or_none(job.payload),
        "status": STATUSES[job.state],
        "priority": 5 - job.priority,
        "retry_count": min(job.failures + job.lease_lost_count, max_retries),
        "max_retries": max_retries,
        "run_at": time_or_none(job.run_at),
        "locked_until": time_or_none(job.locked_until),
        "locked_by": job.locked_by,
        "created_at": time_or_none(job.created_at),
        "updated_at": time_or_none(job.updated_at),
        "started_at": time_or_none(job.started_at),
        "finished_at": time_or_none(job.finished_at),
        "result": json_or_none(job.result),
        "error_text": None if job.last_error is None else error_text(job.last_error),
        "dead_at": time_or_none(job.dead_at),
        "dead_reason": job.dead_reason,
        "lease_lost_count": job.lease_lost_count,
    }
    if not whole and not sees_payload(call):
        del object["payload"], object["result"]
    return object


def _status(answer: Enqueued) -> str:
    return PRUNED if answer.state is None else STATUSES[answer.state]


ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        "/jobs",
        make_queue_job,
        scopes=ENQUEUE,
        body=QueueJob,
        replies={201: QueueJobMade, 200: QueueJobMade},
        codes=REFUSALS,
        headers=("Idempotency-Key",),
        summary="Enqueue a job",
        tag="older faces",
        compat=True,
    ),
    Route(
        "POST",
        "/jobs/batch",
        make_queue_jobs,
        scopes=ENQUEUE,
        body=QueueJobs,
        large=True,
        replies={201: QueueJobsMade},
        codes=(*REFUSALS, "batch_too_large"),
        cost=cost(lambda call: len(call.body.jobs)),
        summary="Enqueue several jobs, all or none",
        tag="older faces",
        compat=True,
    ),
    Route(
        "GET",
        "/jobs",
        list_queue_jobs,
        scopes=(Scope.READ,),
        query=JobsQuery,
        replies={200: OldJobs},
        codes=(
            "invalid_field",
            "invalid_id",
            "bad_cursor",
            "timezone_required",
            "invalid_time",
            "conflicting_fields",
        ),
        summary="List jobs",
        tag="older faces",
        compat=True,
    ),
    Route(
        "GET",
        "/jobs/{id}",
        get_queue_job,
        scopes=_BY_ID,
        replies={200: OldJob},
        codes=("not_found", "invalid_id"),
        summary="A job",
        tag="older faces",
        compat=True,
    ),
    Route(
        "GET",
        "/jobs/{id}/detail",
        get_queue_job_detail,
        scopes=_BY_ID,
        replies={200: OldJobDetail},
        codes=("not_found", "invalid_id"),
        summary="A job with its history",
        tag="older faces",
        compat=True,
    ),
    Route(
        "POST",
        "/queues/{queue_name}/lease",
        lease_queue_job,
        scopes=(Scope.WORK,),
        body=QueueLease,
        replies={200: OldLease, 204: None},
        codes=("invalid_field", "quota_exceeded"),
        summary="Get one job to run",
        tag="older faces",
        compat=True,
    ),
    *(
        Route(
            "POST",
            f"/jobs/{{id}}/{verb}",
            settling.handler_of(verb),
            name=f"{verb}_queue_job",
            scopes=(Scope.WORK,),
            body=settling.FORMS[verb].body,
            lenient=True,
            large=verb in settling.OUTCOMES,
            free=True,
            replies={200: settling.FORMS[verb].reply},
            codes=_TOKENS,
            summary=settling.FORMS[verb].summary,
            tag="older faces",
            compat=True,
        )
        for verb in ("ack", "nack", "heartbeat")
    ),
    Route(
        "POST",
        "/jobs/{id}/cancel",
        changing.cancel_job,
        name="cancel_queue_job",
        scopes=(Scope.ENQUEUE, Scope.ADMIN),
        body=CancelBody,
        body_optional=True,
        replies={200: models.Job, 202: models.Job},
        codes=("not_found", "invalid_id", "terminal", "invalid_field"),
        summary="Cancel a job",
        tag="older faces",
        compat=True,
    ),
)
