"""Schedules: the recurring jobs."""

from __future__ import annotations

import msgspec

from ropeway.api.rendering import after_the_effect, found, noted, seen, sees_payload
from ropeway.api.routing import Call, Reply, Route
from ropeway.core import fields
from ropeway.core.access import Scope
from ropeway.core.errors import FieldError, NotFound
from ropeway.core.schedule import Schedule
from ropeway.wire import models, paths
from ropeway.wire.convert import changed_schedule, schedule_of
from ropeway.wire.objects import Object, schedule_object
from ropeway.wire.requests import NoBody, PutScheduleBody, ScheduleChange

_READ = (Scope.READ,)
_ADMIN = (Scope.ADMIN,)
#: A worker writes down what its code declares; since a schedule enqueues, its key must be one that may.
_DECLARE = (Scope.ADMIN, Scope.WORK)


async def list_schedules(call: Call) -> Reply:
    found = await call.deps.engine.schedules(tenant=call.tenant)
    return Reply(200, {"schedules": [_shown(call, one) for one in found]})


async def get_schedule(call: Call) -> Reply:
    return Reply(200, _shown(call, await _found(call, _name(call))))


async def create_schedule(call: Call) -> Reply:
    body: PutScheduleBody = call.body
    made = await call.deps.engine.put_schedule(
        msgspec.structs.replace(schedule_of(body), source=body.source), replace=False, tenant=call.tenant
    )
    await noted(call, "schedule.create", made.name)
    return Reply(201, _shown(call, made), ((b"location", paths.schedule(made.name).encode()),))


async def put_schedule(call: Call) -> Reply:
    """Store a schedule under its name. A key that may work and enqueue declares its code, nothing else."""
    body: PutScheduleBody = call.body
    name = _name(call)
    if body.name != name:
        raise FieldError("the name differs from the one in the path", code="conflicting_fields", pointer="/name")
    if not call.allows(Scope.ADMIN):
        call.principal.require(Scope.ENQUEUE)
    declared = body.source == "code" or not call.allows(Scope.ADMIN)
    spec = msgspec.structs.replace(schedule_of(body), source="code" if declared else "api")
    stored = await call.deps.engine.put_schedule(spec, tenant=call.tenant)
    if not declared:
        await noted(call, "schedule.change", name)
    return Reply(200, _shown(call, stored, whole=True))


async def change_schedule(call: Call) -> Reply:
    body: ScheduleChange = call.body
    before = await _found(call, _name(call))
    spec = changed_schedule(before.spec, body)
    stored = await call.deps.engine.put_schedule(spec, tenant=call.tenant)
    if stored.spec.paused != spec.paused:
        with after_the_effect():
            stored = await call.deps.engine.pause_schedule(spec.name, spec.paused, tenant=call.tenant)
    await noted(call, "schedule.change", stored.name)
    return Reply(200, _shown(call, stored))


async def delete_schedule(call: Call) -> Reply:
    name = _name(call)
    try:
        await call.deps.engine.delete_schedule(name, tenant=call.tenant)
    except NotFound:
        raise _missing() from None
    await noted(call, "schedule.delete", name)
    return Reply(204)


async def pause_schedule(call: Call) -> Reply:
    return await _paused(call, paused=True)


async def resume_schedule(call: Call) -> Reply:
    return await _paused(call, paused=False)


async def run_schedule(call: Call) -> Reply:
    name = _name(call)
    try:
        id = await call.deps.engine.run_schedule(name, tenant=call.tenant)
    except NotFound:
        raise _missing() from None
    call.deps.streams.poke()
    await noted(call, "schedule.run", name)
    with after_the_effect():
        return Reply(201, seen(call, await found(call, id)), ((b"location", paths.job(id).encode()),))


async def _paused(call: Call, *, paused: bool) -> Reply:
    name = _name(call)
    try:
        stored = await call.deps.engine.pause_schedule(name, paused, tenant=call.tenant)
    except NotFound:
        raise _missing() from None
    await noted(call, "schedule.pause" if paused else "schedule.resume", name)
    return Reply(200, _shown(call, stored))


async def _found(call: Call, name: str) -> Schedule:
    for schedule in await call.deps.engine.schedules(tenant=call.tenant):
        if schedule.name == name:
            return schedule
    raise _missing()


def _name(call: Call) -> str:
    return fields.check_name(call.params["name"], "name")


def _missing() -> NotFound:
    return NotFound("no such schedule", hint="GET /v1/schedules lists them")


def _shown(call: Call, schedule: Schedule, *, whole: bool = False) -> Object:
    object = schedule_object(schedule)
    if not whole and not sees_payload(call):
        del object["payload"]
    return object


_FIELDS = ("invalid_field", "payload_too_large")


ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        paths.SCHEDULES,
        list_schedules,
        scopes=_READ,
        replies={200: models.ScheduleList},
        summary="All schedules",
        tag="schedules",
    ),
    Route(
        "POST",
        paths.SCHEDULES,
        create_schedule,
        scopes=_ADMIN,
        body=PutScheduleBody,
        replies={201: models.Schedule},
        codes=(*_FIELDS, "name_taken"),
        summary="Create a schedule",
        tag="schedules",
    ),
    Route(
        "GET",
        paths.SCHEDULE,
        get_schedule,
        scopes=_READ,
        replies={200: models.Schedule},
        codes=("not_found", "invalid_field"),
        summary="One schedule",
        tag="schedules",
    ),
    Route(
        "PUT",
        paths.SCHEDULE,
        put_schedule,
        scopes=_DECLARE,
        body=PutScheduleBody,
        replies={200: models.Schedule},
        codes=(*_FIELDS, "conflicting_fields"),
        summary="Store a schedule under its name; a worker's key declares what is in its code",
        tag="schedules",
    ),
    Route(
        "PATCH",
        paths.SCHEDULE,
        change_schedule,
        scopes=_ADMIN,
        body=ScheduleChange,
        replies={200: models.Schedule},
        codes=("not_found", *_FIELDS),
        summary="Change a schedule",
        tag="schedules",
    ),
    Route(
        "DELETE",
        paths.SCHEDULE,
        delete_schedule,
        scopes=_ADMIN,
        replies={204: None},
        codes=("not_found", "invalid_field"),
        summary="Remove a schedule",
        tag="schedules",
    ),
    Route(
        "POST",
        f"{paths.SCHEDULE}/pause",
        pause_schedule,
        scopes=_ADMIN,
        body=NoBody,
        body_optional=True,
        replies={200: models.Schedule},
        codes=("not_found", "invalid_field"),
        summary="Let a schedule fire no more",
        tag="schedules",
    ),
    Route(
        "POST",
        f"{paths.SCHEDULE}/resume",
        resume_schedule,
        scopes=_ADMIN,
        body=NoBody,
        body_optional=True,
        replies={200: models.Schedule},
        codes=("not_found", "invalid_field"),
        summary="Let a schedule fire again",
        tag="schedules",
    ),
    Route(
        "POST",
        f"{paths.SCHEDULE}/run",
        run_schedule,
        scopes=_ADMIN,
        body=NoBody,
        body_optional=True,
        replies={201: models.Job},
        codes=("not_found", "invalid_field"),
        summary="Make a schedule's job now, besides its times",
        tag="schedules",
    ),
)
