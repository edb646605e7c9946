"""Document 003: tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from ropeway.api.routes.compat.common import ENQUEUE, REFUSALS, cost, made
from ropeway.api.routes.enqueueing import check_size, converted, key_header, store, store_one, trace_of
from ropeway.api.routing import Call, Reply, Route
from ropeway.core.access import Scope
from ropeway.core.job import NewJob
from ropeway.core.query import JobFilter
from ropeway.core.states import PRUNED, State
from ropeway.wire.convert import new_job
from ropeway.wire.requests import (
    Body,
    EnqueueBody,
    Key,
    Name,
    Payload,
    Time,
)


class Task(Body):
    type: Name
    payload: Payload | UnsetType = UNSET
    priority: Literal["high", "default", "low"] = "default"
    execute_at: Time | None = None
    idempotency_key: Key | None = None


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


async def make_task(call: Call) -> Reply:
    answer = await store_one(call, await made(call, _task, call.body, call.raw, call))
    status = PRUNED if answer.state is None else answer.state.value
    return Reply(200 if answer.deduplicated else 201, {"id": str(answer.id), "status": status})


async def make_tasks(call: Call) -> Reply:
    bodies: Sequence[Task] = call.body
    check_size(len(bodies))
    raw = msgspec.json.decode(call.raw, type=list[msgspec.Raw])
    jobs = await made(call, converted, lambda index: _task(bodies[index], bytes(raw[index]), None), len(bodies))
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


ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        "/task",
        make_task,
        scopes=ENQUEUE,
        body=Task,
        replies={201: TaskMade, 200: TaskMade},
        codes=REFUSALS,
        headers=("Idempotency-Key",),
        summary="Enqueue a task",
        tag="older faces",
        compat=True,
    ),
    Route(
        "POST",
        "/tasks",
        make_tasks,
        scopes=ENQUEUE,
        body=list[Task],
        large=True,
        replies={201: TasksMade},
        codes=(*REFUSALS, "batch_too_large"),
        cost=cost(lambda call: len(call.body)),
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
)
