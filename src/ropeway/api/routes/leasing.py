"""Workers get jobs: by lease, at once or by long poll."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from ropeway.api.routing import Call, Reply, Route
from ropeway.core import fields
from ropeway.core.access import Scope
from ropeway.core.errors import RopewayError
from ropeway.core.outcome import Released
from ropeway.engines.protocol import Engine, LeaseBatch, Settlement, Weighted, WorkerRef
from ropeway.wire import models, paths
from ropeway.wire.convert import lost_of
from ropeway.wire.objects import Object, job_object, time_or_none
from ropeway.wire.requests import (
    MAX_WAIT,
    EndOwnerBody,
    LeaseBody,
    LeaseManyBody,
    OtherGrantsBody,
    OwnerBody,
    WaitBody,
)
from ropeway.wire.tokens import format_token

if TYPE_CHECKING:
    from ropeway.api.deps import Deps
    from ropeway.service.limits import Reservation

#: Seconds of a lease when neither the worker nor the queue says how long.
LEASE_SECONDS = 30.0

_WORK = (Scope.WORK,)


async def lease_from_queue(call: Call) -> Reply:
    return await _lease(call, [fields.check_name(call.params["queue"], "queue")], call.body)


async def lease(call: Call) -> Reply:
    body: LeaseManyBody = call.body
    queues: list[str | Weighted] = [
        fields.check_name(one, "queues")
        if isinstance(one, str)
        else Weighted(fields.check_name(one.queue, "queues"), one.weight)
        for one in body.queues
    ]
    return await _lease(call, queues, body)


async def _lease(call: Call, queues: Sequence[str | Weighted], body: LeaseBody) -> Reply:
    batch = await take(call, queues, body)
    if batch is not None and batch.leases:
        return Reply(200, _leases(batch))
    due = None if batch is None else batch.next_due_in
    return Reply(204, headers=() if due is None else ((b"next-due-in", f"{due:.6f}".encode()),))


async def take(call: Call, queues: Sequence[str | Weighted], body: LeaseBody) -> LeaseBatch | None:
    """What the queues have now, or have within the time that the worker waits. A batch without leases may say when
    the next job is due; None when the worker has gone."""
    fields.check_text(body.worker_id, "worker_id", limit=128)
    if body.lease_seconds is not None:
        fields.check_seconds(body.lease_seconds, "lease_seconds", 1, fields.MAX_LEASE_SECONDS)
    names = [one if isinstance(one, str) else one.queue for one in queues]
    seconds = await _lease_seconds(call, names) if body.lease_seconds is None else body.lease_seconds
    worker = WorkerRef(body.worker_id, uuid4() if body.owner is None else body.owner)
    deps, tenant = call.deps, call.tenant
    asked = body.count

    async def lease(room: Reservation) -> LeaseBatch:
        got = 0
        try:
            batch = await deps.engine.lease(queues, room.number, worker, lease_seconds=seconds, tenant=tenant)
            got = len(batch.leases)
            return batch
        finally:
            room.used(got)

    async def attempt() -> LeaseBatch:
        nonlocal asked
        # It may be long since the call began, and its key may have been revoked.
        await call.confirm()
        room = await deps.admission.lease(call.principal, body.count)
        asked = room.number
        batch = await _kept(deps, asyncio.create_task(lease(room)), tenant)
        if batch.leases:
            deps.streams.poke()
        return batch

    wait = min(body.wait, MAX_WAIT)
    with _place(call, wait):
        batch = await deps.polls.lease(
            tenant, names, wait, attempt, full=lambda batch: len(batch.leases) >= asked, caller=call
        )
    if batch is None or not batch.leases:
        return batch
    if wait > 0 and not await call.present():
        # Nobody is there to run them: they go back to their places at once, not when the lease expires.
        await _release(deps.engine, batch, tenant)
        return None
    return batch


@contextmanager
def _place(call: Call, wait: float) -> Iterator[None]:
    """One of the places for those who wait. Raises QuotaExceeded."""
    if wait <= 0:
        yield
        return
    call.deps.places.take(call.tenant)
    try:
        yield
    finally:
        call.deps.places.leave(call.tenant)


async def _lease_seconds(call: Call, queues: Sequence[str]) -> float:
    """The shortest that the queues are set to: none of their jobs may be held longer than its queue allows."""
    settings = [await call.deps.admission.lease_seconds(call.principal, queue) for queue in queues]
    return min((seconds for seconds in settings if seconds is not None), default=LEASE_SECONDS)


def _leases(batch: LeaseBatch) -> Object:
    leases = [
        {
            "job": job_object(leased.job, traceback=True),
            "attempt": leased.lease.attempt,
            "lease_token": format_token(leased.lease),
            "lease_seconds": batch.lease_seconds,
            "locked_until": time_or_none(leased.job.locked_until),
        }
        for leased in batch.leases
    ]
    return (
        {"leases": leases} if batch.next_due_in is None else {"leases": leases, "next_due_in": batch.next_due_in}
    )


# ── Callers that go away ──


async def _kept(deps: Deps, leasing: asyncio.Task[LeaseBatch], tenant: str) -> LeaseBatch:
    """The batch; if the caller is cut off while it is on its way, its jobs are given back when it comes."""
    try:
        return await asyncio.shield(leasing)
    except asyncio.CancelledError:
        task = asyncio.create_task(_give_back(deps.engine, leasing, tenant))
        deps.releasing.add(task)
        task.add_done_callback(deps.releasing.discard)
        raise


async def _give_back(engine: Engine, leasing: asyncio.Task[LeaseBatch], tenant: str) -> None:
    try:
        batch = await leasing
    except RopewayError:
        return
    await _release(engine, batch, tenant)


async def _release(engine: Engine, batch: LeaseBatch, tenant: str) -> None:
    if not batch.leases:
        return
    try:
        await engine.settle([Settlement(one.lease, Released()) for one in batch.leases], tenant=tenant)
    except RopewayError:
        # Then they come back when their lease expires.
        return


# ── Owners and hints ──


async def heartbeat_owner(call: Call) -> Reply:
    body: OwnerBody = call.body
    beat = await call.deps.engine.heartbeat_owner(body.owner, tenant=call.tenant)
    if beat is None:
        return Reply(204)
    return Reply(200, {"expires_in": beat.expires_in, "revoked": [str(id) for id in beat.revoked]})


async def other_grants(call: Call) -> Reply:
    body: OtherGrantsBody = call.body
    grants = await call.deps.engine.other_grants(body.owner, body.known, tenant=call.tenant)
    return Reply(200, {"grants": [str(token) for token in grants]})


async def end_owner(call: Call) -> Reply:
    body: EndOwnerBody = call.body
    started: list[UUID] | None = None if body.started is None else [fields.parse_id(id) for id in body.started]
    rescued = await call.deps.engine.end_grants(
        body.owner, started=started, lost=lost_of(body), only=body.only, tenant=call.tenant
    )
    call.deps.streams.poke()
    return Reply(200, {"rescued": [{"id": str(one.id), "status": one.state.value} for one in rescued]})


async def wait_for_work(call: Call) -> Reply:
    body: WaitBody = call.body
    queues = [fields.check_name(queue, "queues") for queue in body.queues]
    wait = min(body.wait, MAX_WAIT)
    with _place(call, wait):
        signalled, number = await call.deps.polls.hint(call.tenant, queues, wait, caller=call, after=body.after)
    await call.confirm()
    return Reply(200, {"signalled": signalled, "number": number})


def _cost_of_queues(call: Call) -> float:
    """Each queue is asked or listened to; never more than can be paid at once."""
    return min(float(len(call.body.queues)), call.deps.admission.burst(call.principal))


ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        paths.QUEUE_LEASE,
        lease_from_queue,
        scopes=_WORK,
        body=LeaseBody,
        replies={200: models.LeaseReply, 204: None},
        codes=("invalid_field", "quota_exceeded"),
        summary="Get up to `count` jobs of a queue to run, waiting up to `wait` seconds for the first",
        tag="workers",
        links={
            "ack_job": {"id": "$response.body#/leases/0/job/id"},
            "heartbeat_job": {"id": "$response.body#/leases/0/job/id"},
        },
    ),
    Route(
        "POST",
        paths.LEASE,
        lease,
        scopes=_WORK,
        body=LeaseManyBody,
        replies={200: models.LeaseReply, 204: None},
        codes=("invalid_field", "quota_exceeded"),
        cost=_cost_of_queues,
        summary="The same from several queues, in strict order or drawn by weight",
        tag="workers",
    ),
    Route(
        "POST",
        paths.OWNER_HEARTBEAT,
        heartbeat_owner,
        scopes=_WORK,
        body=OwnerBody,
        replies={200: models.OwnerBeat, 204: None},
        codes=("invalid_field",),
        free=True,
        summary="Extend every lease of one worker process; 204 when it holds none",
        tag="workers",
    ),
    Route(
        "POST",
        paths.OWNER_OTHER_GRANTS,
        other_grants,
        scopes=_WORK,
        body=OtherGrantsBody,
        replies={200: models.OtherGrants},
        codes=("invalid_field",),
        free=True,
        summary="The grants that hold jobs of one worker process, but for those that it knows",
        tag="workers",
    ),
    Route(
        "POST",
        paths.OWNER_END,
        end_owner,
        scopes=_WORK,
        body=EndOwnerBody,
        large=True,
        replies={200: models.OwnerEnded},
        codes=("invalid_field", "invalid_id"),
        free=True,
        summary="A worker process is gone: its started jobs are lost, the others released",
        tag="workers",
    ),
    Route(
        "POST",
        paths.WAIT,
        wait_for_work,
        scopes=_WORK,
        body=WaitBody,
        replies={200: models.WaitReply},
        codes=("invalid_field", "quota_exceeded"),
        cost=_cost_of_queues,
        summary="Wait for a hint that a queue may have work",
        tag="workers",
    ),
)
