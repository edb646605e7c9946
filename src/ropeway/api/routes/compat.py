"""Older faces of the same service, for clients that were written against them: only with `ROPEWAY_COMPAT=1`.

Nothing here has rules of its own: each call is turned into one of `/v1`, with the same keys, scopes and limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Literal, TypeVar
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ropeway.api.rendering import found, sees_payload
from ropeway.api.routes import changing, dead, events, queues, settling
from ropeway.api.routes.enqueueing import check_size, converted, key_header, store, store_one, trace_of
from ropeway.api.routes.jobs import listed
from ropeway.api.routes.leasing import take
from ropeway.api.routing import Call, Reply, Route
from ropeway.core import fields
from ropeway.core.access import Scope
from ropeway.core.events import attempt_history
from ropeway.core.job import Job, NewJob
from ropeway.core.query import JobFilter
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
    Key,
    LeaseBody,
    LeaseSeconds,
    Name,
    Payload,
    Retries,
    Time,
    WorkerId,
)
from ropeway.wire.tokens import format_token

T = TypeVar("T")

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


class Task(Body):
    type: Name
    payload: Payload | UnsetType = UNSET
    priority: Literal["high", "default", "low"] = "default"
    execute_at: Time | None = None
    idempotency_key: Key | None = None


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


class TaskMade(msgspec.Struct):
    id: UUID
    status: str


class TasksMade(msgspec.Struct):
    ids: list[UUID]


class TaskStats(msgspec.Struct):
    pending_high: int
    pending_default: int
    pending_low: int
    delayed: int
    processing: int
    dlq: int


# ── Document 002: queues ──


async def make_queue_job(call: Call) -> Reply:
    answer = await store_one(call, await _made(call, _queue_job, call.body, call.raw, call))
    return Reply(200 if answer.deduplicated else 201, {"job_id": str(answer.id), "status": _status(answer)})


async def make_queue_jobs(call: Call) -> Reply:
    body: QueueJobs = call.body
    check_size(len(body.jobs))
    jobs = await _made(call, converted, lambda index: _queue_job(body.jobs[index], b"", None), len(body.jobs))
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


# ── Document 003: tasks ──


async def make_task(call: Call) -> Reply:
    answer = await store_one(call, await _made(call, _task, call.body, call.raw, call))
    status = PRUNED if answer.state is None else answer.state.value
    return Reply(200 if answer.deduplicated else 201, {"id": str(answer.id), "status": status})


async def make_tasks(call: Call) -> Reply:
    bodies: Sequence[Task] = call.body
    check_size(len(bodies))
    raw = msgspec.json.decode(call.raw, type=list[msgspec.Raw])
    jobs = await _made(call, converted, lambda index: _task(bodies[index], bytes(raw[index]), None), len(bodies))
    answers = await store(call, jobs)
    return Reply(201, {"ids": [str(answer.id) for answer in answers]})


async def get_task_stats(call: Call) -> Reply:
    """Counts stop where those of queues do, at 10,000."""

    async def count(state: State, priority: int | None = None) -> int:
        where = JobFilter(states=frozenset({state}), priority=priority)
        return (await call.deps.engine.count(where, tenant=call.tenant)).number

    queued = {priority: await count(State.QUEUED, priority) for priority in range(1, 10)}
    return Reply(
        200,
        {
            "pending_high": sum(queued[priority] for priority in range(1, 5)),
            "pending_default": queued[5],
            "pending_low": sum(queued[priority] for priority in range(6, 10)),
            "delayed": await count(State.SCHEDULED) + await count(State.RETRYING),
            "processing": await count(State.RUNNING),
            "dlq": await count(State.DEAD),
        },
    )


def _task(body: Task, raw: bytes, call: Call | None) -> NewJob:
    asked = EnqueueBody(
        type=body.type,
        payload=body.payload,
        priority=body.priority,
        execute_at=body.execute_at,
        idempotency_key=body.idempotency_key,
    )
    if call is None:
        return new_job(asked, raw)
    return new_job(asked, raw, key=key_header(call), trace=trace_of(call))


async def _made(call: Call, make: Callable[..., T], *given: object) -> T:
    return await call.deps.heavy.by_size(len(call.raw), make, *given)


# ── The routes ──


def _cost(number: Callable[[Call], int]) -> Callable[[Call], float]:
    return lambda call: float(number(call))


_ENQUEUE = (Scope.ENQUEUE,)
_BY_ID = (Scope.READ, Scope.ENQUEUE)
_REFUSALS = (
    *("invalid_field", "timezone_required", "invalid_time", "conflicting_fields", "idempotency_mismatch"),
    *("key_required", "key_in_flight", "payload_too_large", "quota_exceeded", "queue_full", "indeterminate"),
)
_TOKENS = ("invalid_id", "invalid_field", "lease_lost", "terminal", "indeterminate")


def _old(route: Route, path: str, name: str) -> Route:
    """A route of today under an older path."""
    return msgspec.structs.replace(route, path=path, name=name, compat=True, tag="older faces", links={})


def _today(routes: Sequence[Route], path: str) -> Route:
    return next(route for route in routes if route.path == path)


ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        "/jobs",
        make_queue_job,
        scopes=_ENQUEUE,
        body=QueueJob,
        replies={201: QueueJobMade, 200: QueueJobMade},
        codes=_REFUSALS,
        headers=("Idempotency-Key",),
        summary="Enqueue a job",
        tag="older faces",
        compat=True,
    ),
    Route(
        "POST",
        "/jobs/batch",
        make_queue_jobs,
        scopes=_ENQUEUE,
        body=QueueJobs,
        large=True,
        replies={201: QueueJobsMade},
        codes=(*_REFUSALS, "batch_too_large"),
        cost=_cost(lambda call: len(call.body.jobs)),
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
    _old(_today(queues.ROUTES, "/v1/dashboard/queues"), "/dashboard/queues", "old_dashboard_queues"),
    Route(
        "POST",
        "/task",
        make_task,
        scopes=_ENQUEUE,
        body=Task,
        replies={201: TaskMade, 200: TaskMade},
        codes=_REFUSALS,
        headers=("Idempotency-Key",),
        summary="Enqueue a task",
        tag="older faces",
        compat=True,
    ),
    Route(
        "POST",
        "/tasks",
        make_tasks,
        scopes=_ENQUEUE,
        body=list[Task],
        large=True,
        replies={201: TasksMade},
        codes=(*_REFUSALS, "batch_too_large"),
        cost=_cost(lambda call: len(call.body)),
        summary="Enqueue several tasks, all or none",
        tag="older faces",
        compat=True,
    ),
    Route(
        "GET",
        "/stats",
        get_task_stats,
        scopes=(Scope.READ,),
        replies={200: TaskStats},
        summary="How many tasks wait, by priority, and how many run or are dead",
        tag="older faces",
        compat=True,
    ),
    _old(_today(events.ROUTES, "/v1/runs/{id}/stream"), "/runs/{id}/stream", "old_stream_run"),
    _old(_today(dead.ROUTES, "/v1/dlq/retry"), "/dlq/retry", "old_retry_dead"),
)
