"""Jobs: looked at, listed, counted and explained."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from ropeway.api.rendering import found, missing_job, seen, sees_payload
from ropeway.api.routing import Call, Reply, Route
from ropeway.core import fields
from ropeway.core.access import Scope
from ropeway.core.errors import BatchTooLarge, FieldError, NotFound
from ropeway.core.events import attempt_history, rfc3339
from ropeway.core.fields import MAX_BATCH
from ropeway.core.query import id_position
from ropeway.service.explain import explain
from ropeway.service.jobs import Jobs
from ropeway.wire import models, paths
from ropeway.wire.objects import Object, detail_object, event_object, job_object, log_object, time_or_none
from ropeway.wire.queries import CountQuery, JobsQuery, ListQuery, LogsQuery, PlaceQuery, filter_of
from ropeway.wire.requests import LookupBody

if TYPE_CHECKING:
    from ropeway.core.job import Job
    from ropeway.core.query import Order

_BY_ID = (Scope.READ, Scope.ENQUEUE)
_OF_WORKERS = (Scope.READ, Scope.ENQUEUE, Scope.WORK)


async def get_job(call: Call) -> Reply:
    return Reply(200, seen(call, await found(call, call.job_id)))


async def get_job_detail(call: Call) -> Reply:
    job = await found(call, call.job_id)
    events = await call.deps.engine.events_of(job.id, tenant=call.tenant)
    logs = await Jobs(call.deps.engine, tenant=call.tenant).logs(job.id)
    whole = sees_payload(call)
    return Reply(200, detail_object(job, attempt_history(events), events, logs, payload=whole, result=whole))


async def get_job_events(call: Call) -> Reply:
    id = call.job_id
    events = await call.deps.engine.events_of(id, tenant=call.tenant)
    if not events:
        # Events may outlive their job, and a job its events.
        await found(call, id)
    return Reply(200, {"events": [event_object(event) for event in events]})


async def get_job_logs(call: Call) -> Reply:
    query: LogsQuery = call.query
    id = call.job_id
    await found(call, id)
    lines = await call.deps.engine.log_of(id, after=query.after, limit=query.limit, tenant=call.tenant)
    return Reply(200, {"logs": [log_object(line) for line in lines]})


async def explain_job(call: Call) -> Reply:
    try:
        explanation = await explain(call.deps.engine, call.job_id, call.tenant)
    except NotFound:
        raise missing_job() from None
    reasons = []
    for reason in explanation.reasons:
        told: Object = {"code": reason.code, "message": reason.message}
        if reason.until is not None:
            told["until"] = rfc3339(reason.until)
        reasons.append(told)
    body = {
        "id": str(explanation.id),
        "status": explanation.state.value,
        "reasons": reasons,
        "ahead": explanation.ahead,
        "expected_start": time_or_none(explanation.expected_start),
    }
    return Reply(200, body)


async def place_of_job(call: Call) -> Reply:
    query: PlaceQuery = call.query
    id = call.job_id
    await found(call, id)
    place = await call.deps.engine.place(id, cap=query.cap, tenant=call.tenant)
    if place is None:
        return Reply(200, {"ahead": None, "capped": False})
    return Reply(200, {"ahead": place.number, "capped": place.capped})


async def list_jobs(call: Call) -> Reply:
    query: JobsQuery = call.query
    return Reply(200, await page_of(call, query, query.order))


async def page_of(call: Call, query: ListQuery, order: Order) -> Object:
    """A page as it is told."""
    include = query.included()
    page, cursor = await listed(call, query, order)
    whole = sees_payload(call)
    payload, result = whole and "payload" in include, whole and "result" in include
    traceback = "traceback" in include
    jobs = [job_object(job, payload=payload, result=result, traceback=traceback) for job in page]
    return {"jobs": jobs, "next_cursor": cursor}


async def listed(call: Call, query: ListQuery, order: Order) -> tuple[list[Job], str | None]:
    """A page of jobs, and a cursor that is good for this tenant, filter and order only."""
    where = filter_of(query)
    bound = ("jobs", call.tenant, order, query.question())
    after = await call.deps.seals.unseal(query.cursor, *bound)
    if isinstance(query, JobsQuery) and query.after_id is not None:
        if after is not None:
            raise FieldError("give cursor or after_id, not both", code="conflicting_fields", pointer="/after_id")
        try:
            after = id_position(fields.parse_id(query.after_id))
        except FieldError as error:
            error.pointer = "/after_id"
            raise
    page = await call.deps.engine.find(where, order=order, limit=query.limit, after=after, tenant=call.tenant)
    return page.jobs, await call.deps.seals.seal(page.next, *bound)


async def count_jobs(call: Call) -> Reply:
    query: CountQuery = call.query
    count = await call.deps.engine.count(filter_of(query), cap=query.cap, tenant=call.tenant)
    return Reply(200, {"count": count.number, "capped": count.capped})


async def lookup_jobs(call: Call) -> Reply:
    body: LookupBody = call.body
    ids = ids_of(body.ids)
    jobs = await call.deps.engine.get(ids, tenant=call.tenant)
    return Reply(200, {"jobs": [None if job is None else seen(call, job, traceback=True) for job in jobs]})


def ids_of(texts: list[str]) -> list[UUID]:
    """Up to a thousand ids in their one canonical form."""
    if not texts:
        raise FieldError("name at least one job", pointer="/ids")
    if len(texts) > MAX_BATCH:
        raise BatchTooLarge(f"at most {MAX_BATCH:,} ids in one call", hint="ask in several calls")
    ids = []
    for index, text in enumerate(texts):
        try:
            ids.append(fields.parse_id(text))
        except FieldError as error:
            error.index, error.pointer = index, f"/ids/{index}"
            raise
    return ids


async def get_time(call: Call) -> Reply:
    return Reply(200, {"now": rfc3339(await call.deps.engine.now()), "tenant": call.tenant})


ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        paths.JOBS,
        list_jobs,
        scopes=(Scope.READ,),
        query=JobsQuery,
        replies={200: models.JobList},
        codes=(
            "invalid_field",
            "bad_cursor",
            "timezone_required",
            "invalid_time",
            "invalid_id",
            "conflicting_fields",
        ),
        summary="List jobs",
        tag="jobs",
    ),
    Route(
        "GET",
        paths.JOBS_COUNT,
        count_jobs,
        scopes=(Scope.READ,),
        query=CountQuery,
        replies={200: models.JobCount},
        codes=("invalid_field", "timezone_required", "invalid_time"),
        summary="Count jobs, no further than a cap",
        tag="jobs",
    ),
    Route(
        "POST",
        paths.JOBS_LOOKUP,
        lookup_jobs,
        scopes=_OF_WORKERS,
        body=LookupBody,
        replies={200: models.JobsFound},
        codes=("invalid_id", "batch_too_large", "invalid_field"),
        summary="Look up to 1,000 jobs up by id",
        tag="jobs",
    ),
    Route(
        "GET",
        paths.JOB,
        get_job,
        scopes=_BY_ID,
        replies={200: models.Job},
        codes=("not_found", "invalid_id"),
        summary="A job as it is now",
        tag="jobs",
    ),
    Route(
        "GET",
        f"{paths.JOB}/detail",
        get_job_detail,
        scopes=_BY_ID,
        replies={200: models.JobDetail},
        codes=("not_found", "invalid_id"),
        summary="A job with its attempts, events and log",
        tag="jobs",
    ),
    Route(
        "GET",
        f"{paths.JOB}/explain",
        explain_job,
        scopes=_BY_ID,
        replies={200: models.Explanation},
        codes=("not_found", "invalid_id"),
        summary="Why a job is not running, what is before it, when it will",
        tag="jobs",
    ),
    Route(
        "GET",
        f"{paths.JOB}/place",
        place_of_job,
        scopes=(Scope.READ,),
        query=PlaceQuery,
        replies={200: models.Place},
        codes=("not_found", "invalid_id", "invalid_field"),
        summary="How many due jobs are in line before a job",
        tag="jobs",
    ),
    Route(
        "GET",
        f"{paths.JOB}/events",
        get_job_events,
        scopes=_OF_WORKERS,
        replies={200: models.EventsFound},
        codes=("not_found", "invalid_id"),
        summary="The kept events of a job",
        tag="jobs",
    ),
    Route(
        "GET",
        f"{paths.JOB}/logs",
        get_job_logs,
        scopes=_OF_WORKERS,
        query=LogsQuery,
        replies={200: models.LogsFound},
        codes=("not_found", "invalid_id", "invalid_field"),
        summary="The kept log lines of a job",
        tag="jobs",
    ),
    Route(
        "GET",
        paths.TIME,
        get_time,
        scopes=tuple(Scope),
        replies={200: models.Now},
        summary="What the store's clock says",
        tag="jobs",
    ),
)
