"""What the buttons do to one thing. Each action is checked, done by the service layer, noted in the audit log and
told; what is done to many jobs is in `many`."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from ropeway.core import fields
from ropeway.core.access import Scope
from ropeway.core.errors import FieldError, JobEnded, NotFound, RopewayError
from ropeway.core.states import TERMINAL_STATES, State
from ropeway.dashboard.confirming import ask, is_confirmed
from ropeway.service.jobs import Jobs
from ropeway.service.queues import Queues
from ropeway.service.schedules import Schedules

if TYPE_CHECKING:
    from starlette.responses import Response

    from ropeway.dashboard.frame import Visit
    from ropeway.engines.protocol import Changed


def may_act(visit: Visit) -> None:
    """Raises MissingScope."""
    visit.viewer.principal.require(Scope.ADMIN)


async def queue(visit: Visit) -> Response:
    may_act(visit)
    name, verb = visit.request.path_params["queue"], visit.request.path_params["verb"]
    service = Queues(visit.engine, tenant=visit.tenant)
    if verb == "pause":
        await service.pause(name)
        words = f"The queue {name} is paused: workers finish what they run and take nothing more from it."
    elif verb == "resume":
        await service.resume(name)
        words = f"The queue {name} goes on."
    else:
        raise unknown(verb)
    await visit.note(f"queue.{verb}", name)
    return await visit.back(words, "ui/queues")


async def job(visit: Visit) -> Response:
    may_act(visit)
    id, verb = fields.parse_id(visit.request.path_params["id"]), visit.request.path_params["verb"]
    service = Jobs(visit.engine, tenant=visit.tenant)
    if verb == "retry":
        _done(await service.retry([id], by=visit.viewer.principal.actor))
        words = "The job runs again, with a fresh budget of attempts."
    elif verb == "cancel":
        if not is_confirmed(visit):
            return await _ask_cancel(visit, service, id)
        running = _done(await service.cancel([id])).before is State.RUNNING
        words = "The job is cancelled." + (" Its worker learns it at its next heartbeat." if running else "")
    elif verb == "reschedule":
        delay = _delay(visit.form.one("delay"))
        await service.reschedule(id, delay=delay)
        words = "The job is due now." if delay == 0 else f"The job is due in {delay:g} seconds."
    else:
        raise unknown(verb)
    await visit.note(f"job.{verb}", str(id))
    return await visit.back(words, f"ui/jobs/{id}")


async def _ask_cancel(visit: Visit, service: Jobs, id: UUID) -> Response:
    job = await service.get(id)
    if job.state in TERMINAL_STATES:
        raise JobEnded(f"the job has already ended: {job.state.value}", status=job.state.value)
    return ask(
        visit,
        "Cancel this job?",
        page="jobs",
        action=f"ui/jobs/{id}/cancel",
        label="Cancel the job",
        otherwise=f"ui/jobs/{id}",
        lines=[f"{job.type} {id}", f"It is in the queue {job.queue}, {job.state.value}."],
        danger=True,
    )


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


async def schedule(visit: Visit) -> Response:
    may_act(visit)
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
        raise unknown(verb)
    await visit.note(f"schedule.{verb}", name)
    return await visit.back(words, "ui/schedules")


def unknown(verb: str) -> NotFound:
    return NotFound(f"there is no action {verb[:32]!r}")
