"""Queues: what each holds, whether workers may take from it, what it is set to, how many workers it needs."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from ropeway.api.rendering import after_the_effect, noted
from ropeway.api.routing import Call, Reply, Route
from ropeway.core import fields
from ropeway.core.access import Scope
from ropeway.core.query import QueueSettings, QueueStats
from ropeway.service.queues import Queues
from ropeway.wire import models, paths
from ropeway.wire.objects import Object, queue_object
from ropeway.wire.queries import QueuesQuery
from ropeway.wire.requests import NoBody, QueueBody

_READ = (Scope.READ,)
_ADMIN = (Scope.ADMIN,)


async def list_queues(call: Call) -> Reply:
    query: QueuesQuery = call.query
    names = None if query.queues is None else [fields.check_name(one, "queues") for one in query.queues.split(",")]
    found = await call.deps.engine.queue_stats(names, cap=query.cap, tenant=call.tenant)
    return Reply(200, {"queues": [queue_object(stats) for stats in found]})


async def get_queue(call: Call) -> Reply:
    return Reply(200, await _stats(call, _queue(call)))


async def pause_queue(call: Call) -> Reply:
    queue = _queue(call)
    await call.deps.engine.pause(queue, tenant=call.tenant)
    return await _done(call, "queue.pause", queue)


async def resume_queue(call: Call) -> Reply:
    queue = _queue(call)
    await call.deps.engine.resume(queue, tenant=call.tenant)
    return await _done(call, "queue.resume", queue)


async def set_queue(call: Call) -> Reply:
    body: QueueBody = call.body
    queue = _queue(call)
    known = (await call.deps.engine.queue_settings(tenant=call.tenant)).get(queue, QueueSettings())
    given = {name: value for name, value in msgspec.structs.asdict(body).items() if value is not UNSET}
    await call.deps.engine.set_queue(queue, msgspec.structs.replace(known, **given), tenant=call.tenant)
    call.deps.admission.forget_settings(call.tenant)
    return await _done(call, "queue.set", queue)


async def get_stats(call: Call) -> Reply:
    engine, tenant = call.deps.engine, call.tenant
    queues = await engine.queue_stats(tenant=tenant)
    counts: dict[str, int] = {}
    for stats in queues:
        for state, number in stats.counts.items():
            counts[state.value] = counts.get(state.value, 0) + number
    return Reply(
        200, {"counts": counts, "queues": len(queues), "workers": len(await engine.workers(tenant=tenant))}
    )


async def get_scaling(call: Call) -> Reply:
    scaling = await Queues(call.deps.engine, tenant=call.tenant).scaling(_queue(call))
    return Reply(200, msgspec.structs.asdict(scaling))


async def _done(call: Call, action: str, queue: str) -> Reply:
    """The queue as it is after what was done to it."""
    await noted(call, action, queue)
    with after_the_effect():
        return Reply(200, await _stats(call, queue))


def _queue(call: Call) -> str:
    return fields.check_name(call.params["queue"], "queue")


async def _stats(call: Call, queue: str) -> Object:
    """A queue is a name: one that nobody has used yet is an empty one."""
    found = await call.deps.engine.queue_stats([queue], tenant=call.tenant)
    return queue_object(found[0] if found else QueueStats(queue, False, {}))


ROUTES: tuple[Route, ...] = (
    *(
        Route(
            "GET",
            path,
            list_queues,
            name=name,
            scopes=_READ,
            query=QueuesQuery,
            replies={200: models.QueueList},
            codes=("invalid_field",),
            summary="All queues with their counts",
            tag="queues",
        )
        for path, name in ((paths.QUEUES, "list_queues"), (paths.DASHBOARD_QUEUES, "dashboard_queues"))
    ),
    Route(
        "GET",
        paths.QUEUE,
        get_queue,
        scopes=_READ,
        replies={200: models.Queue},
        codes=("invalid_field",),
        summary="One queue with its counts",
        tag="queues",
    ),
    Route(
        "PATCH",
        paths.QUEUE,
        set_queue,
        scopes=_ADMIN,
        body=QueueBody,
        replies={200: models.Queue},
        codes=("invalid_field",),
        summary="Set a queue's depth limit, whether its jobs need keys, the length of its leases",
        tag="queues",
    ),
    Route(
        "POST",
        f"{paths.QUEUE}/pause",
        pause_queue,
        scopes=_ADMIN,
        body=NoBody,
        body_optional=True,
        replies={200: models.Queue},
        codes=("invalid_field",),
        summary="Let workers take nothing from a queue",
        tag="queues",
    ),
    Route(
        "POST",
        f"{paths.QUEUE}/resume",
        resume_queue,
        scopes=_ADMIN,
        body=NoBody,
        body_optional=True,
        replies={200: models.Queue},
        codes=("invalid_field",),
        summary="Let workers take from a queue again",
        tag="queues",
    ),
    Route(
        "GET",
        paths.STATS,
        get_stats,
        scopes=_READ,
        replies={200: models.Stats},
        summary="Counts over all queues",
        tag="queues",
    ),
    Route(
        "GET",
        paths.SCALING,
        get_scaling,
        scopes=_READ,
        replies={200: models.Scaling},
        codes=("invalid_field",),
        summary="How many workers a queue needs, for autoscalers",
        tag="queues",
    ),
)
