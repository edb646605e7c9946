"""What handlers share: who may see what, what a missing thing is told, and the note of what an operator did."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ropeway.core.access import Scope
from ropeway.core.errors import EngineError, Indeterminate, NotFound, RopewayError
from ropeway.service.actions import notes_of
from ropeway.wire.objects import Object, job_object

if TYPE_CHECKING:
    from uuid import UUID

    from ropeway.api.routing import Call
    from ropeway.core.job import Job
    from ropeway.engines.protocol import Changed


def missing_job() -> NotFound:
    """The same words for a job that is not there and for one of another tenant: not even an id differs."""
    return NotFound("no such job", hint="ended jobs are removed when their time is over: see the keep_ settings")


def sees_payload(call: Call) -> bool:
    return Scope.READ_PAYLOAD in call.principal.scopes


def seen(call: Call, job: Job, *, traceback: bool = False) -> Object:
    """A job with what the caller's key may see of it."""
    whole = Scope.READ_PAYLOAD in call.principal.scopes
    return job_object(job, payload=whole, result=whole, traceback=traceback)


async def found(call: Call, id: UUID) -> Job:
    """Raises NotFound."""
    (job,) = await call.deps.engine.get([id], tenant=call.tenant)
    if job is None:
        raise missing_job()
    return job


def changed(answer: Changed | RopewayError) -> Changed:
    """An operator's verb was applied, or raises why not."""
    if isinstance(answer, NotFound):
        raise missing_job()
    if isinstance(answer, RopewayError):
        raise answer
    return answer


async def noted(
    call: Call, action: str, target: str, count: int | None = None, *, tenant: str | None = None
) -> None:
    """Write down what an operator has just done. Never fails for the store: see `service/notes.py`."""
    notes = notes_of(call.principal.actor, action, [target], count, call.request_id)
    await call.deps.notes.write(notes, tenant=tenant or call.tenant)


async def noted_each(call: Call, action: str, targets: Iterable[str]) -> None:
    """The same for several things at once, an entry for each."""
    notes = notes_of(call.principal.actor, action, targets, request_id=call.request_id)
    await call.deps.notes.write(notes, tenant=call.tenant)


@contextlib.contextmanager
def after_the_effect() -> Iterator[None]:
    """Round what comes after something was done: that the store went away then does not mean that nothing was."""
    try:
        yield
    except Indeterminate:
        raise
    except EngineError as error:
        raise Indeterminate(f"it was done, but then: {error.message}", hint="look before you repeat it") from error
