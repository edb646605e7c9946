"""Workers: who lives, and what they run."""

from __future__ import annotations

from ropeway.api.routing import Call, Reply, Route
from ropeway.core import fields
from ropeway.core.access import Scope
from ropeway.core.query import MAX_PAGE, JobFilter
from ropeway.core.states import State
from ropeway.wire import models, paths
from ropeway.wire.convert import worker_of
from ropeway.wire.objects import worker_object
from ropeway.wire.queries import WorkersQuery
from ropeway.wire.requests import WorkerBody

_RUNNING = JobFilter(states=frozenset({State.RUNNING}))


async def report_worker(call: Call) -> Reply:
    body: WorkerBody = call.body
    worker = worker_of(_id(call), body)
    await call.deps.attendance.admit(call.tenant, worker.id)
    await call.deps.engine.report_worker(worker, tenant=call.tenant)
    return Reply(200, {"quiet": False, "stop": False})


async def forget_worker(call: Call) -> Reply:
    id = _id(call)
    await call.deps.engine.forget_worker(id, tenant=call.tenant)
    call.deps.attendance.forget(call.tenant, id)
    return Reply(204)


async def list_workers(call: Call) -> Reply:
    query: WorkersQuery = call.query
    engine, tenant = call.deps.engine, call.tenant
    workers = await engine.workers(seen_within=query.seen_within, tenant=tenant)
    running: dict[str, list[str]] = {}
    if workers:
        # One page of the newest: enough for people, whatever the fleet.
        for job in (await engine.find(_RUNNING, limit=MAX_PAGE, tenant=tenant)).jobs:
            running.setdefault(job.locked_by or "", []).append(str(job.id))
    return Reply(
        200,
        {"workers": [{**worker_object(one), "running_jobs": running.get(one.id, [])} for one in workers]},
    )


def _id(call: Call) -> str:
    return fields.check_text(call.params["worker_id"], "worker_id", limit=128)


ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        paths.WORKERS,
        list_workers,
        scopes=(Scope.READ,),
        query=WorkersQuery,
        replies={200: models.WorkerList},
        codes=("invalid_field",),
        summary="The workers that were heard of within a minute",
        tag="workers",
    ),
    Route(
        "PUT",
        paths.WORKER,
        report_worker,
        scopes=(Scope.WORK,),
        body=WorkerBody,
        replies={200: models.WorkerOrders},
        codes=("invalid_field", "quota_exceeded"),
        summary="A worker tells that it is there, every ten seconds",
        tag="workers",
    ),
    Route(
        "DELETE",
        paths.WORKER,
        forget_worker,
        scopes=(Scope.WORK,),
        replies={204: None},
        codes=("invalid_field",),
        summary="A worker is gone",
        tag="workers",
    ),
)
