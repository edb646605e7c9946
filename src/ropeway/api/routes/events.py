"""Events: of one job until it ends, or the tenant's tail, as they happen or page by page."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import TypeVar

from ropeway.api.listeners import Wants
from ropeway.api.rendering import missing_job
from ropeway.api.routing import Call, Reply, Route, Stream
from ropeway.api.sse import Chunks, job_stream, parse_seq, tail_stream
from ropeway.core import fields
from ropeway.core.access import Scope
from ropeway.core.errors import FieldError, QuotaExceeded
from ropeway.core.events import Event
from ropeway.service.seals import TICKET_SECONDS
from ropeway.wire import cursors, models, paths
from ropeway.wire.objects import event_object
from ropeway.wire.queries import EventsQuery
from ropeway.wire.requests import NoBody

STREAM = "text/event-stream"

#: Pages that one call reads through in search of events that are wanted.
_MOST_PAGES = 20
_LOG = "events"

Opened = TypeVar("Opened", Chunks, "Chunks | None")


async def stream_job(call: Call) -> Reply | Stream:
    after = parse_seq(call.header("last-event-id"))
    deps, tenant, who = call.deps, call.tenant, call.principal
    chunks = await _placed(
        call,
        job_stream(deps.engine, deps.streams, tenant, call.job_id, after, missing=missing_job, principal=who),
    )
    # 204 tells a browser that it need not come back.
    return Reply(204) if chunks is None else Stream(chunks, media_type=STREAM)


async def stream_events(call: Call) -> Reply | Stream:
    query: EventsQuery = call.query
    wants = _wants(query)
    as_page = b"application/json" in call.headers.get(b"accept", b"")
    if query.last is not None:
        return await _newest(call, query.last, wants, after=query.after, as_page=as_page)
    if as_page:
        return await _page(call, query, wants)
    after = call.header("last-event-id") or query.after or "end"
    position = None if after == "end" else await _position(call, after)
    secret, tenant = await call.deps.seals.secret(), call.tenant
    stream = tail_stream(
        call.deps.engine,
        call.deps.streams,
        tenant,
        position,
        wants,
        lambda place: cursors.seal(secret, place, _LOG, tenant),
        live=after == "end",
        principal=call.principal,
    )
    return Stream(await _placed(call, stream), media_type=STREAM)


async def _placed(call: Call, opening: Coroutine[None, None, Opened]) -> Opened:
    """The stream, in one of the places for those who wait, until it is closed. Raises QuotaExceeded."""
    places, tenant = call.deps.places, call.tenant
    try:
        places.take(tenant)
    except QuotaExceeded:
        opening.close()
        raise
    chunks: Opened | None = None
    try:
        chunks = await opening
        return chunks
    finally:
        if chunks is None:
            places.leave(tenant)
        else:
            chunks.afterwards(lambda: places.leave(tenant))


async def create_ticket(call: Call) -> Reply:
    ticket = await call.deps.tickets.issue(call.principal)
    return Reply(200, {"ticket": ticket, "expires_in": TICKET_SECONDS})


async def _page(call: Call, query: EventsQuery, wants: Wants) -> Reply:
    """A page of events; it may be empty though there are more to come, when few are wanted."""
    position = await _position(call, query.after)
    events: list[Event] = []
    for _ in range(_MOST_PAGES):
        page = await call.deps.engine.tail(position, limit=query.limit, tenant=call.tenant)
        position = page.position
        events = [event for event in page.events if wants(event)]
        if events or len(page.events) < query.limit:
            break
    return await _told(call, events, position)


async def _newest(call: Call, number: int, wants: Wants, *, after: str | None, as_page: bool) -> Reply:
    """The last events of the log: what somebody sees first who then follows it."""
    if after is not None:
        raise FieldError(
            "last begins before the end of the log, after begins elsewhere",
            code="conflicting_fields",
            pointer="/last",
            hint="give one of them",
        )
    if not as_page:
        raise FieldError(
            "last is for a page of events, not for a stream",
            pointer="/last",
            hint="ask with Accept: application/json, then follow from its next_after",
        )
    page = await call.deps.engine.newest_events(limit=number, tenant=call.tenant)
    return await _told(call, [event for event in page.events if wants(event)], page.position)


async def _told(call: Call, events: Sequence[Event], position: str | None) -> Reply:
    place = await call.deps.seals.seal(position, _LOG, call.tenant)
    return Reply(200, {"events": [event_object(event) for event in events], "next_after": place})


async def _position(call: Call, after: str | None) -> str | None:
    if after is None or after == "start":
        return None
    if after == "end":
        return await call.deps.engine.tail_position()
    return await call.deps.seals.unseal(after, _LOG, call.tenant)


def _wants(query: EventsQuery) -> Wants:
    queue = None if query.queue is None else fields.check_name(query.queue, "queue")
    type = None if query.type is None else fields.check_name(query.type, "type")
    name = query.event

    def wants(event: Event) -> bool:
        return (
            (queue is None or event.queue == queue)
            and (type is None or event.type == type)
            and (name is None or event.event is name)
        )

    return wants


_JOB_STREAM = tuple(
    Route(
        "GET",
        path,
        stream_job,
        name=name,
        scopes=(Scope.READ, Scope.ENQUEUE),
        replies={200: None, 204: None},
        media=(STREAM,),
        headers=("Last-Event-ID",),
        codes=("not_found", "invalid_id", "bad_cursor", "quota_exceeded"),
        ticket=True,
        summary="The events of a job, past and coming, until it ends",
        tag="events",
    )
    for path, name in ((f"{paths.JOB}/stream", "stream_job"), (paths.RUN_STREAM, "stream_run"))
)

ROUTES: tuple[Route, ...] = (
    *_JOB_STREAM,
    Route(
        "GET",
        paths.EVENTS,
        stream_events,
        scopes=(Scope.READ,),
        query=EventsQuery,
        replies={200: models.EventList},
        media=(STREAM,),
        headers=("Last-Event-ID", "Accept"),
        codes=("invalid_field", "conflicting_fields", "bad_cursor", "position_expired", "quota_exceeded"),
        ticket=True,
        summary="The tenant's events as they happen; a page of them with Accept: application/json",
        tag="events",
    ),
    Route(
        "POST",
        paths.TICKET,
        create_ticket,
        scopes=(Scope.READ, Scope.ENQUEUE),
        body=NoBody,
        body_optional=True,
        replies={200: models.Ticket},
        summary="A ticket that stands for the key in the URL of one stream, for a minute",
        tag="events",
    ),
)
