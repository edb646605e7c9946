"""What the buttons do. Each action is checked, done by the service layer, noted in the audit log and told."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from ropeway.core import fields
from ropeway.core.access import Scope
from ropeway.core.errorgroups import is_fingerprint
from ropeway.core.errors import FieldError, NotFound, RopewayError
from ropeway.core.query import JobFilter
from ropeway.dashboard.asking import FILTERS, filter_of
from ropeway.service.bulk import MOST_AT_ONCE, Bulk
from ropeway.service.dead import DeadJobs
from ropeway.service.jobs import Jobs
from ropeway.service.queues import Queues
from ropeway.service.schedules import Schedules

if TYPE_CHECKING:
    from starlette.responses import Response

    from ropeway.dashboard.frame import Visit
    from ropeway.engines.protocol import Changed

#: Jobs that may be picked one by one.
MOST_PICKED = 500


def _may_act(visit: Visit) -> None:
    visit.viewer.principal.require(Scope.ADMIN)


async def queue(visit: Visit) -> Response:
    _may_act(visit)
    name, verb = visit.request.path_params["queue"], visit.request.path_params["verb"]
    service = Queues(visit.engine, tenant=visit.tenant)
    if verb == "pause":
        await service.pause(name)
        words = f"The queue {name} is paused: workers finish what they run and take nothing more from it."
    elif verb == "resume":
        await service.resume(name)
        words = f"The queue {name} goes on."
    else:
        raise _unknown(verb)
    await visit.note(f"queue.{verb}", name)
    return await visit.back(words, "ui/queues")


async def job(visit: Visit) -> Response:
    _may_act(visit)
    id, verb = fields.parse_id(visit.request.path_params["id"]), visit.request.path_params["verb"]
    service = Jobs(visit.engine, tenant=visit.tenant)
    if verb == "retry":
        _done(await service.retry([id], by=visit.viewer.principal.actor))
        words = "The job runs again, with a fresh budget of attempts."
    elif verb == "cancel":
        changed = _done(await service.cancel([id]))
        running = changed.before.value == "running"
        words = "The job is cancelled." + (" Its worker learns it at its next heartbeat." if running else "")
    elif verb == "reschedule":
        delay = _delay(visit.form.one("delay"))
        await visit.engine.reschedule(id, delay=delay, tenant=visit.tenant)
        words = "The job is due now." if delay == 0 else f"The job is due in {delay:g} seconds."
    else:
        raise _unknown(verb)
    await visit.note(f"job.{verb}", str(id))
    return await visit.back(words, f"ui/jobs/{id}")


def _delay(text: str) -> float:
    try:
        delay = float(text or "0")
    except ValueError:
        raise FieldError("the delay is a number of seconds", pointer="/delay") from None
    return fields.check_seconds(delay, "delay", 0, fields.HORIZON_SECONDS)


def _done(answers: list[Changed | RopewayError]) -> Changed:
    (answer,) = answers
    if isinstance(answer, RopewayError):
        raise answer
    return answer


# ── Many jobs ──


async def bulk(visit: Visit) -> Response:
    """Cancel or retry the jobs that were picked, or all that a filter finds: those only after a second yes."""
    _may_act(visit)
    verb = visit.form.one("verb")
    if verb not in ("cancel", "retry"):
        raise _unknown(verb)
    ids = _picked(visit)
    if ids:
        done = await _each(visit, verb, ids)
        skipped = f"; the state of {len(ids) - done:,} did not allow it" if done < len(ids) else ""
        return await visit.back(f"{_number(done)} {_told(verb)}{skipped}.", "ui/jobs")
    asked = visit.form.mapping()
    where = filter_of(asked)
    service = Bulk(visit.engine, tenant=visit.tenant)
    if visit.form.one("confirmed") != "yes":
        count = await (service.count_cancellable(where) if verb == "cancel" else service.count_retriable(where))
        return visit.show(
            "confirm.html",
            page="jobs",
            verb=verb,
            count=count,
            most=MOST_AT_ONCE,
            asked={name: asked.get(name, "") for name in FILTERS if asked.get(name)},
            back=visit.form.one("back"),
        )
    if verb == "cancel":
        report = await service.cancel(where)
    else:
        report = await service.retry(where, by=visit.viewer.principal.actor)
    if report.done:
        await visit.note(f"job.{verb}", _filter_words(asked), count=len(report.done))
    more = " There are more: do it again for the next." if report.more else ""
    return await visit.back(f"{_number(len(report.done))} {_told(verb)}.{more}", "ui/jobs")


async def _each(visit: Visit, verb: str, ids: list[UUID]) -> int:
    service = Jobs(visit.engine, tenant=visit.tenant)
    if verb == "cancel":
        answers = await service.cancel(ids)
    else:
        answers = await service.retry(ids, by=visit.viewer.principal.actor)
    done = [str(answer.id) for answer in answers if not isinstance(answer, RopewayError)]
    if done:
        await visit.note(f"job.{verb}", *done)
    return len(done)


async def replay(visit: Visit) -> Response:
    """Dead jobs: one group, those of a queue, or those that were picked."""
    _may_act(visit)
    service = DeadJobs(visit.engine, tenant=visit.tenant)
    queue = visit.form.one("queue") or None
    fingerprints = list(dict.fromkeys(visit.form.all("fingerprint")))
    by = visit.viewer.principal.actor
    if visit.form.one("confirmed") != "yes":
        found = await service.groups(queue)
        groups = [group for group in found.groups if not fingerprints or group.fingerprint in fingerprints]
        return visit.show(
            "confirm_replay.html",
            page="dead",
            groups=groups,
            total=sum(group.count for group in groups),
            whole=found.complete,
            every=not fingerprints,
            queue=queue,
        )
    if not all(map(is_fingerprint, fingerprints)):
        # Before anything is done: what is done must be noted.
        raise FieldError("that is no group of dead jobs", pointer="/fingerprint", hint="load the page again")
    retried, more = 0, False
    where = JobFilter(queue=queue)
    chosen: list[str | None] = [*fingerprints] or [None]
    for fingerprint in chosen:
        report = await service.retry_where(where, fingerprint=fingerprint, limit=MOST_AT_ONCE, by=by)
        retried += report.retried
        more = more or report.more
    if retried:
        target = ", ".join(fingerprints) if fingerprints else f"all of {queue or 'every queue'}"
        await visit.note("dlq.retry", target, count=retried)
    left = " There are more: do it again for the next." if more else ""
    return await visit.back(f"{_number(retried)} run again.{left}", "ui/dead")


async def schedule(visit: Visit) -> Response:
    _may_act(visit)
    name, verb = visit.request.path_params["schedule"], visit.request.path_params["verb"]
    service = Schedules(visit.engine, tenant=visit.tenant)
    if verb == "pause":
        await service.pause(name)
        words = f"The schedule {name} is paused: it makes no more jobs."
    elif verb == "resume":
        await service.resume(name)
        words = f"The schedule {name} goes on."
    elif verb == "run":
        made = await service.run(name)
        words = f"The schedule {name} made the job {made.id} just now."
    else:
        raise _unknown(verb)
    await visit.note(f"schedule.{verb}", name)
    return await visit.back(words, "ui/schedules")


def _picked(visit: Visit) -> list[UUID]:
    ids = [fields.parse_id(text) for text in visit.form.all("id") if text]
    if len(ids) > MOST_PICKED:
        raise FieldError(f"at most {MOST_PICKED} jobs can be picked at once", pointer="/id")
    return ids


def _number(count: int) -> str:
    return f"{count:,} {'job' if count == 1 else 'jobs'}"


def _told(verb: str) -> str:
    return "cancelled" if verb == "cancel" else "run again"


def _filter_words(asked: dict[str, str]) -> str:
    return " ".join(f"{name}={asked[name]}" for name in FILTERS if asked.get(name)) or "all jobs"


def _unknown(verb: str) -> NotFound:
    return NotFound(f"there is no action {verb[:32]!r}")
