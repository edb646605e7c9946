"""Dead jobs: listed by time of death, grouped by what killed them, and run again after the fix."""

from __future__ import annotations

from uuid import UUID

from ropeway.api.rendering import noted, noted_each
from ropeway.api.routes.jobs import ids_of, page_of
from ropeway.api.routing import Call, Reply, Route
from ropeway.core import fields
from ropeway.core.access import Scope
from ropeway.core.errors import FieldError
from ropeway.core.events import rfc3339
from ropeway.core.query import JobFilter
from ropeway.service.dead import DeadJobs, Retried
from ropeway.wire import models, paths
from ropeway.wire.convert import time_of
from ropeway.wire.queries import DeadQuery, GroupsQuery
from ropeway.wire.requests import DeadFilterBody, DeadRetryBody


async def list_dead(call: Call) -> Reply:
    query: DeadQuery = call.query
    return Reply(200, await page_of(call, query, "died"))


async def list_dead_groups(call: Call) -> Reply:
    query: GroupsQuery = call.query
    queue = None if query.queue is None else fields.check_name(query.queue, "queue")
    found = await DeadJobs(call.deps.engine, tenant=call.tenant).groups(queue)
    return Reply(
        200,
        {
            "groups": [
                {
                    "fingerprint": group.fingerprint,
                    "type": group.type,
                    "message": group.message,
                    "count": group.count,
                    "first_at": rfc3339(group.first_at),
                    "last_at": rfc3339(group.last_at),
                    "sample_id": str(group.sample_id),
                }
                for group in found.groups
            ],
            "looked_at": found.looked_at,
            "complete": found.complete,
        },
    )


async def retry_dead(call: Call) -> Reply:
    body: DeadRetryBody = call.body
    ids, report = await _retried(call, body)
    if report.retried:
        call.deps.streams.poke()
        if body.filter is not None:
            await noted(call, "dlq.retry", _words(body.filter), report.retried)
        else:
            skipped = {one.id for one in report.skipped}
            await noted_each(call, "dlq.retry", (str(id) for id in ids if id not in skipped))
    return Reply(
        200,
        {
            "matched": report.matched,
            "retried": report.retried,
            "skipped": [{"id": str(one.id), "code": one.code} for one in report.skipped],
            "more": report.more,
            "dry_run": report.dry_run,
        },
    )


async def _retried(call: Call, body: DeadRetryBody) -> tuple[list[UUID], Retried]:
    """The ids that were asked for, none with a filter, and what came of it."""
    given = [name for name in ("id", "ids", "filter") if getattr(body, name) is not None]
    if len(given) != 1:
        code = "conflicting_fields" if given else "invalid_field"
        raise FieldError("give one of id, ids and filter", code=code, pointer=f"/{(given or ['id'])[0]}")
    dead = DeadJobs(call.deps.engine, tenant=call.tenant)
    by = call.principal.actor
    if body.filter is not None:
        where, fingerprint = _where(body.filter), body.filter.fingerprint
        report = await dead.retry_where(
            where, fingerprint=fingerprint, limit=body.limit, dry_run=body.dry_run, by=by
        )
        return [], report
    ids = list(dict.fromkeys(ids_of(body.ids) if body.ids is not None else [fields.parse_id(body.id or "")]))
    return ids, await dead.retry(ids, dry_run=body.dry_run, by=by)


def _where(asked: DeadFilterBody) -> JobFilter:
    return JobFilter(
        queue=asked.queue,
        type=asked.type,
        reason=asked.reason,
        finished_after=time_of(asked.dead_after, "filter/dead_after"),
        finished_before=time_of(asked.dead_before, "filter/dead_before"),
    )


def _words(asked: DeadFilterBody) -> str:
    named = ("queue", "type", "reason", "fingerprint", "dead_after", "dead_before")
    given = [f"{name}={value}" for name in named if (value := getattr(asked, name)) is not None]
    return " ".join(given) or "all"


ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        paths.DLQ,
        list_dead,
        scopes=(Scope.READ,),
        query=DeadQuery,
        replies={200: models.JobList},
        codes=("invalid_field", "bad_cursor", "timezone_required", "invalid_time"),
        summary="List dead jobs, the newest death first",
        tag="dead letters",
    ),
    Route(
        "GET",
        paths.DLQ_GROUPS,
        list_dead_groups,
        scopes=(Scope.READ,),
        query=GroupsQuery,
        replies={200: models.DeadGroups},
        codes=("invalid_field",),
        summary="Dead jobs grouped by their error",
        tag="dead letters",
    ),
    Route(
        "POST",
        paths.DLQ_RETRY,
        retry_dead,
        scopes=(Scope.ADMIN,),
        body=DeadRetryBody,
        replies={200: models.DeadRetryReply},
        codes=("invalid_field", "invalid_id", "conflicting_fields", "batch_too_large", "timezone_required")
        + ("invalid_time",),
        summary="Run dead jobs again: one, several, or what a filter finds; or count them",
        tag="dead letters",
    ),
)
