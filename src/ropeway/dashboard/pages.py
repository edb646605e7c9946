"""The pages: each asks the service layer and hands what it got to a template."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
from starlette.responses import Response as Raw

from ropeway.core import fields
from ropeway.core.errors import BadCursor, FieldError, InputError, NotFound
from ropeway.core.query import JobFilter, JobPage, id_position, parse_id_position
from ropeway.core.states import LIVE_STATES, TERMINAL_STATES, DeadReason, EventName, State
from ropeway.dashboard import drawing
from ropeway.dashboard.asking import FILTERS, filter_of
from ropeway.service.actions import Actions
from ropeway.service.bulk import REDRIVABLE
from ropeway.service.dead import DeadJobs
from ropeway.service.explain import explain
from ropeway.service.history import RANGES, History
from ropeway.service.jobs import Jobs
from ropeway.service.overview import concerns, seconds_to_empty
from ropeway.service.schedules import Schedules
from ropeway.settings import describe, setting_names, variable_of
from ropeway.wire.problems import Refused

if TYPE_CHECKING:
    from starlette.responses import Response

    from ropeway.core.job import Job
    from ropeway.dashboard.frame import Visit

#: Jobs on one page of a list, and jobs that the page of the workers looks for.
PAGE = 50
MOST_RUNNING = 500
#: Events and actions that are shown at once.
MOST_EVENTS, MOST_ACTIONS = 200, 100
#: Dead jobs that are looked at for their groups each time the page is shown.
MOST_DEAD = 1_000


async def nowhere(_visit: Visit) -> Response:
    raise NotFound("there is no such page", hint="perhaps it was moved, or its address is mistyped")


async def wrong_method(_visit: Visit) -> Response:
    raise Refused("this address is not for that", code="method_not_allowed", hint="go there from its page")


async def overview(visit: Visit) -> Response:
    seen = await visit.frame.live.overview(visit.tenant)
    return visit.show(
        "overview.html",
        page="overview",
        seen=seen,
        now=seen.at,
        concerns=concerns(seen),
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
    rows = [(stats, seconds_to_empty(stats), _served_by(seen.workers, stats.queue)) for stats in seen.queues]
    return visit.show("queues.html", page="queues", rows=rows, now=seen.at)


def _served_by(workers: Any, queue: str) -> int:
    return sum(queue in worker.queues for worker in workers)


# ── Jobs ──


async def jobs(visit: Visit) -> Response:
    asked = dict(visit.request.query_params)
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
        page = await service.page(where, limit=PAGE, after=_after(asked))
    seen = await visit.frame.live.overview(visit.tenant)
    return visit.show(
        "jobs.html",
        page="jobs",
        jobs=page.jobs,
        next=page.next,
        asked={name: asked.get(name, "") for name in (*FILTERS, "id")},
        first="from" not in asked,
        wrong=wrong,
        states=list(State),
        reasons=list(DeadReason),
        queues=[stats.queue for stats in seen.queues],
        now=await visit.engine.now(),
    )


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
    id = fields.parse_id(visit.request.path_params["id"])
    detail = await Jobs(visit.engine, tenant=visit.tenant).detail(id)
    now = await visit.engine.now()
    why = None if detail.job.state in TERMINAL_STATES else await explain(visit.engine, id, visit.tenant)
    return visit.show(
        "job.html",
        page="jobs",
        job=detail.job,
        attempts=detail.attempts,
        events=detail.events,
        logs=detail.logs,
        pieces=drawing.timeline(detail.job, detail.events, now),
        why=why,
        ended=detail.job.state in TERMINAL_STATES,
        can_retry=detail.job.state in REDRIVABLE,
        can_cancel=detail.job.state in LIVE_STATES,
        can_move=detail.job.state in (State.SCHEDULED, State.QUEUED, State.RETRYING),
        curl=_as_curl(detail.job) if visit.viewer.sees_payloads else None,
        now=now,
    )


def _as_curl(job: Job) -> str:
    """A command that makes such a job again."""
    payload = (job.payload or b"null").decode(errors="replace")
    body = f'{{"type": "{job.type}", "queue": "{job.queue}", "priority": {job.priority}, "payload": {payload}}}'
    quoted = body.replace("'", "'\\''")
    return (
        'curl -X POST "$ROPEWAY_SERVER/v1/jobs" -H "Authorization: Bearer $ROPEWAY_TOKEN" '
        f"-H 'Content-Type: application/json' -d '{quoted}'"
    )


async def dead(visit: Visit) -> Response:
    queue = visit.request.query_params.get("queue", "").strip() or None
    if queue is not None:
        fields.check_name(queue, "queue")
    found = await DeadJobs(visit.engine, tenant=visit.tenant).groups(queue, most=MOST_DEAD)
    seen = await visit.frame.live.overview(visit.tenant)
    return visit.show(
        "dead.html",
        page="dead",
        found=found,
        queue=queue,
        queues=[stats.queue for stats in seen.queues],
        now=await visit.engine.now(),
    )


# ── Everything else ──


async def schedules(visit: Visit) -> Response:
    service = Schedules(visit.engine, tenant=visit.tenant)
    found = await service.all()
    last = [one.last_job_id for one in found if one.last_job_id is not None]
    jobs = {job.id: job for job in await visit.engine.get(last, tenant=visit.tenant) if job is not None}
    rows = [(one, Schedules.coming(one, 3), _job_of(one.last_job_id, jobs)) for one in found]
    return visit.show("schedules.html", page="schedules", rows=rows, now=await visit.engine.now())


def _job_of(id: UUID | None, jobs: dict[UUID, Job]) -> Job | None:
    return None if id is None else jobs.get(id)


async def workers(visit: Visit) -> Response:
    seen = await visit.frame.live.overview(visit.tenant)
    running: dict[str, list[Job]] = {}
    if seen.workers:
        where = JobFilter(states=frozenset({State.RUNNING}))
        page = await Jobs(visit.engine, tenant=visit.tenant).page(where, limit=MOST_RUNNING)
        for one in page.jobs:
            running.setdefault(one.locked_by or "", []).append(one)
    return visit.show("workers.html", page="workers", seen=seen, running=running, now=seen.at)


async def events(visit: Visit) -> Response:
    asked = {name: visit.request.query_params.get(name, "").strip() for name in ("queue", "type", "event")}
    newest = await visit.frame.live.events(visit.tenant)
    shown = [
        event
        for event in newest
        if asked["queue"] in ("", event.queue)
        and asked["type"] in ("", event.type)
        and asked["event"] in ("", event.event.value)
    ][:MOST_EVENTS]
    return visit.show(
        "events.html",
        page="events",
        events=shown,
        asked=asked,
        names=list(EventName),
        seen=len(newest),
        now=await visit.engine.now(),
    )


async def audit(visit: Visit) -> Response:
    actions = await Actions(visit.engine, tenant=visit.tenant).page(limit=MOST_ACTIONS)
    return visit.show("audit.html", page="audit", actions=actions, now=await visit.engine.now())


async def settings(visit: Visit) -> Response:
    loaded = visit.frame.settings
    shown = loaded.shown()
    rows = [
        (name, shown[name], loaded.sources.get(name, "set by the program"), variable_of(name), describe(name))
        for name in setting_names()
    ]
    return visit.show("settings.html", page="settings", rows=rows, durability=visit.engine.durability)
