"""The log of what operators did."""

from __future__ import annotations

from ropeway.api.routing import Call, Reply, Route
from ropeway.core.access import Scope
from ropeway.core.auditlog import ActionFilter
from ropeway.service.actions import Actions
from ropeway.wire import models, paths
from ropeway.wire.convert import time_of
from ropeway.wire.cursors import bad_cursor
from ropeway.wire.objects import action_object
from ropeway.wire.queries import AuditQuery


async def list_actions(call: Call) -> Reply:
    query: AuditQuery = call.query
    where = ActionFilter(
        actor=query.actor,
        action=query.action,
        after=time_of(query.after, "after"),
        before=time_of(query.before, "before"),
    )
    bound = ("audit", call.tenant, repr((query.actor, query.action, query.after, query.before)))
    place = await call.deps.seals.unseal(query.cursor, *bound)
    if place is not None and not place.isdigit():
        raise bad_cursor()
    # One more than asked for tells whether there is another page.
    found = await Actions(call.deps.engine, tenant=call.tenant).page(
        where, query.limit + 1, None if place is None else int(place)
    )
    page = found[: query.limit]
    position = str(page[-1].n) if len(found) > query.limit else None
    return Reply(
        200,
        {
            "entries": [action_object(action) for action in page],
            "next_cursor": await call.deps.seals.seal(position, *bound),
        },
    )


ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        paths.AUDIT,
        list_actions,
        scopes=(Scope.ADMIN,),
        query=AuditQuery,
        replies={200: models.AuditList},
        codes=("invalid_field", "bad_cursor", "timezone_required", "invalid_time"),
        summary="What operators did, the newest first",
        tag="access",
    ),
)
