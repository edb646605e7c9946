"""The pages: each asks the service layer and hands what it got to a template."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response as Raw

from ropeway.core import fields
from ropeway.core.errorgroups import is_fingerprint
from ropeway.core.errors import BadCursor, FieldError, InputError, NotFound
from ropeway.core.job import TRACE_HEADERS
from ropeway.core.query import JobFilter, JobPage, id_position, parse_id_position
from ropeway.core.states import LIVE_STATES, TERMINAL_STATES, DeadReason, EventName, State
from ropeway.dashboard import columns, drawing
from ropeway.dashboard.asking import FILTERS, filter_of
from ropeway.dashboard.newest import EventFilter
from ropeway.runtime.ids import made_at
from ropeway.service.actions import Actions
from ropeway.service.bulk import REDRIVABLE
from ropeway.service.dead import DeadJobs
from ropeway.service.history import RANGES, History
from ropeway.service.jobs import Jobs
from ropeway.service.overview import concerns, seconds_to_empty
from ropeway.service.schedules import Schedules
from ropeway.settings import describe, setting_names, variable_of
from ropeway.wire.problems import Refused
from ropeway.wire.records import retry_body
from ropeway.wire.requests import EnqueueBody

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from starlette.responses import Response

    from ropeway.core.job import Job
    from ropeway.dashboard.frame import Page, Visit

#: Jobs on one page of a list.
PAGE = 50
#: Seconds that a search goes on for when it was told to.
ON_SECONDS = 2.0
#: Workers that are gone, and actions, that are shown at once.
MOST_SILENT, MOST_ACTIONS = 50, 100
#: Bytes of a payload that a command is written for: what a shell takes in one word has an end, and so has a page.
MOST_CURL = 20_000
#: Dead jobs that are looked at for their groups each time the page is shown.
MOST_DEAD = 1_000


async def nowhere(_visit: Visit) -> Response:
    raise NotFound("there is no such page", hint="perhaps it was moved, or its address is mistyped")


def wrong_method(allowed: Sequence[str]) -> Page:
    """The page of an address that is for other methods."""

    async def refuse(_visit: Visit) -> Response:
        allow = (b"allow", ", ".join(allowed).encode())
        raise Refused(
            "this address is not for that",
            code="method_not_allowed",
            hint="go there from its page",
            headers=(allow,),
        )

    return refuse


async def overview(visit: Visit) -> Response:
    seen = await visit.frame.live.overview(visit.tenant)
    return visit.show(
        "overview.html",
        page="overview",
        seen=seen,
        now=seen.at,
        concerns=concerns(seen, age_target=visit.frame.settings.age_target),
        keep=visit.frame.settings.keep_succeeded,
    )


async def history(visit: Visit) -> Response:
    """Figures for the charts, as JSON."""
    range = visit.request.query_params.get("range", "15m")
    if range not in RANGES:
        raise FieldError(f"unknown range {range[:16]!r}", pointer="/range", hint=f"one of {', '.join(RANGES)}")
    queue = visit.request.query_params.get("queue") or None
    if queue is not None:
        fields.check_name(queue, "queue")
    series = await History(visit.engine, tenant=visit.tenant).series(range, queue=queue)
    return Raw(msgspec.json.encode(series), media_type="application/json")


async def queues(visit: Visit) -> Response:
    seen = await visit.frame.live.overview(visit.tenant)
    serving = seen.serving
    rows = [(stats, seconds_to_empty(stats), serving[stats.queue]) for stats in seen.queues]
    return visit.show("queues.html", page="queues", rows=rows, now=seen.at)


# ── Jobs ──


async def jobs(visit: Visit) -> Response:
    asked = dict(visit.request.query_params)
    shown = columns.chosen(visit.request.query_params.getlist("columns"))
    wrong, where = None, JobFilter()
    try:
        where = filter_of(asked)
    except InputError as error:
        wrong = error
    service = Jobs(visit.engine, tenant=visit.tenant)
    found = asked.get("id", "").strip()
    if found and wrong is None:
        try:
            page = JobPage([await service.get(await service.starting_with(found))])
        except InputError as error:
            page, wrong = JobPage([]), error
        except NotFound:
            page = JobPage([])
    elif wrong is not None:
        page = JobPage([])
    else:
        after = _after(asked)
        page = await service.search(where, limit=PAGE, after=after, seconds=0.0 if after is None else ON_SECONDS)
    seen = await visit.frame.live.overview(visit.tenant)
    return visit.show(
        "jobs.html",
        page="jobs",
        jobs=page.jobs,
        next=page.next,
        searched=_searched(page),
        asked={name: asked.get(name, "") for name in (*FILTERS, "id")},
        columns=[(name, columns.COLUMNS[name], name in columns.NUMBERS) for name in shown],
        all_columns=[(name, label, name in shown) for name, label in columns.COLUMNS.items()],
        asked_columns=columns.as_asked(shown),
        first="from" not in asked,
        wrong=wrong,
        states=list(State),
        reasons=list(DeadReason),
        queues=[stats.queue for stats in seen.queues],
        now=seen.at,
    )


def _searched(page: JobPage) -> datetime | None:
    """How far back a search looked that found less than a page and may go on; None for all others."""
    if page.next is None or len(page.jobs) >= PAGE:
        return None
    return made_at(parse_id_position(page.next))


def _after(asked: dict[str, str]) -> str | None:
    """The place to go on from: the id of the last job of the page before."""
    text = asked.get("from")
    if not text:
        return None
    try:
        return id_position(parse_id_position(text))
    except BadCursor:
        raise FieldError(
            "that is not a page of this list", pointer="/from", hint="start again at the newest"
        ) from None


async def job(visit: Visit) -> Response:
    seen = await visit.frame.live.job(visit.tenant, fields.parse_id(visit.request.path_params["id"]))
    job, events = seen.detail.job, seen.detail.events
    updates = visit.request.headers.get("hx-request") == "true"
    return visit.show(
        "job.html",
        page="jobs",
        job=job,
        attempts=seen.detail.attempts,
        events=events,
        logs=seen.detail.logs,
        pieces=drawing.timeline(job, events, seen.at),
        why=seen.why,
        ended=job.state in TERMINAL_STATES,
        running=job.state is State.RUNNING,
        can_retry=job.state in REDRIVABLE,
        can_cancel=job.state in LIVE_STATES,
        can_move=job.state in (State.SCHEDULED, State.QUEUED, State.RETRYING),
        # An update takes only what changes.
        curl=_as_curl(job) if visit.viewer.sees_payloads and not updates else None,
        now=seen.at,
    )


def _as_curl(job: Job) -> str:
    """A command that makes such a job again, to run at once; "" when its payload is too long for one.

    It has all that is the job's own. Not its idempotency key, under which nothing new is made, not the trace that
    it belongs to, and not when it was due or expired: that is over.
    """
    payload = job.payload or b"null"
    if len(payload) > MOST_CURL:
        return ""
    body = EnqueueBody(
        type=job.type,
        payload=msgspec.Raw(payload),
        queue=job.queue,
        priority=job.priority,
        max_attempts=job.max_attempts,
        retry=None if job.retry is None else retry_body(job.retry),
        timeout=job.timeout,
        tags=list(job.tags),
        headers={name: value for name, value in job.headers.items() if name not in TRACE_HEADERS},
    )
    return (
        'curl -X POST "$ROPEWAY_SERVER/v1/jobs" -H "Authorization: Bearer $ROPEWAY_TOKEN" '
        f"-H 'Content-Type: application/json' -d {shlex.quote(msgspec.json.encode(body).decode(errors='replace'))}"
    )


async def dead(visit: Visit) -> Response:
    """Groups of dead jobs, and the newest of those jobs, perhaps of one group only."""
    queue = visit.request.query_params.get("queue", "").strip() or None
    if queue is not None:
        fields.check_name(queue, "queue")
    group = visit.request.query_params.get("group", "").strip() or None
    if group is not None and not is_fingerprint(group):
        raise FieldError("that is no group of dead jobs", pointer="/group", hint="go there from the page of all")
    service = DeadJobs(visit.engine, tenant=visit.tenant)
    found = await service.groups(queue, most=MOST_DEAD, show=PAGE, only=group)
    seen = await visit.frame.live.overview(visit.tenant)
    return visit.show(
        "dead.html",
        page="dead",
        found=found,
        queue=queue,
        group=group,
        queues=[stats.queue for stats in seen.queues],
        now=seen.at,
    )


# ── Everything else ──


async def schedules(visit: Visit) -> Response:
    service = Schedules(visit.engine, tenant=visit.tenant)
    found = await service.all()
    last = await service.last_jobs(found)
    rows = [(one, Schedules.coming(one, 3), last.get(one.name)) for one in found]
    seen = await visit.frame.live.overview(visit.tenant)
    return visit.show("schedules.html", page="schedules", rows=rows, now=seen.at)


async def workers(visit: Visit) -> Response:
    seen = await visit.frame.live.overview(visit.tenant)
    silent = seen.silent
    return visit.show(
        "workers.html",
        page="workers",
        seen=seen,
        workers=[*seen.present, *silent[:MOST_SILENT]],
        left_out=max(0, len(silent) - MOST_SILENT),
        at_work=await visit.frame.live.at_work(visit.tenant) if seen.workers else None,
        now=seen.at,
    )


async def events(visit: Visit) -> Response:
    asked = {name: visit.request.query_params.get(name, "").strip() for name in ("queue", "type", "event")}
    shown = await visit.frame.live.events(visit.tenant, EventFilter(**asked))
    at = (await visit.frame.live.overview(visit.tenant)).at
    return visit.show("events.html", page="events", shown=shown, asked=asked, names=list(EventName), now=at)


async def audit(visit: Visit) -> Response:
    visit.viewer.require_audit()
    actions = await Actions(visit.engine, tenant=visit.tenant).page(limit=MOST_ACTIONS)
    seen = await visit.frame.live.overview(visit.tenant)
    return visit.show("audit.html", page="audit", actions=actions, now=seen.at)


async def settings(visit: Visit) -> Response:
    visit.viewer.require_settings()
    loaded = visit.frame.settings
    shown = loaded.shown()
    rows = [
        (name, shown[name], loaded.sources.get(name, "set by the program"), variable_of(name), describe(name))
        for name in setting_names()
    ]
    return visit.show("settings.html", page="settings", rows=rows, durability=visit.engine.durability)
