"""Producers: one job, a batch, or a stream of lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from ropeway.api.heavy import SLOW_BYTES
from ropeway.api.rendering import sees_payload
from ropeway.api.routes.ndjson import enqueue_lines
from ropeway.api.routing import Call, Header, Reply, Route
from ropeway.core.access import Scope
from ropeway.core.errors import BatchTooLarge, FieldError, InputError
from ropeway.core.events import rfc3339
from ropeway.core.fields import MAX_BATCH
from ropeway.core.job import NewJob
from ropeway.core.states import PRUNED
from ropeway.engines.protocol import Enqueued
from ropeway.service.counting import count_stored
from ropeway.wire import models, paths
from ropeway.wire.convert import new_job
from ropeway.wire.objects import Object, job_object, retry_object, time_or_none
from ropeway.wire.requests import BatchBody, EnqueueBody

_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")
_REPLAYED: tuple[Header, ...] = ((b"idempotency-replayed", b"true"),)
_MINIMAL: tuple[Header, ...] = ((b"preference-applied", b"return=minimal"),)

_decode_items = msgspec.json.Decoder(dict[str, list[msgspec.Raw]]).decode


async def enqueue(call: Call) -> Reply:
    body: EnqueueBody = call.body
    key, trace = key_header(call), trace_of(call)
    if len(call.raw) <= SLOW_BYTES:
        job = new_job(body, call.raw, key=key, trace=trace)
    else:
        job = await call.deps.heavy.run(partial(new_job, key=key, trace=trace), body, call.raw)
    answer = await store_one(call, job)
    minimal = wants_little(call)
    headers = _MINIMAL if minimal else ()
    if answer.deduplicated:
        first = brief(call, answer) if minimal else await _first(call, job, answer)
        return Reply(200, first, _REPLAYED + headers)
    location = (b"location", paths.job(answer.id).encode())
    return Reply(201, brief(call, answer) if minimal else await made(call, job, answer), (location, *headers))


async def enqueue_batch(call: Call) -> Reply:
    body: BatchBody = call.body
    jobs = await call.deps.heavy.by_size(len(call.raw), batch_of, body.jobs, call)
    answers = await store(call, jobs)
    return Reply(201, {"jobs": [brief(call, answer, times=True) for answer in answers], **durability(call)})


# ── What both need, and the older faces too ──


def key_header(call: Call) -> str | None:
    """The header's key. Its bytes are UTF-8, as they would be in the body."""
    value = call.headers.get(b"idempotency-key")
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise FieldError("the header Idempotency-Key is not valid UTF-8", pointer="/idempotency_key") from None


def trace_of(call: Call) -> dict[str, str] | None:
    """The trace that the request is part of, which its job goes on with."""
    parent = call.headers.get(b"traceparent")
    if parent is None or not _TRACEPARENT.match(parent):
        return None
    trace = {"traceparent": parent.decode()}
    state = call.headers.get(b"tracestate")
    if state is not None and state.isascii() and len(state) <= 512:
        trace["tracestate"] = state.decode()
    return trace


def wants_little(call: Call) -> bool:
    prefer = call.headers.get(b"prefer")
    return prefer is not None and b"return=minimal" in prefer.lower().replace(b" ", b"")


def batch_of(bodies: Sequence[EnqueueBody], call: Call) -> list[NewJob]:
    """The jobs of a batch; the first one that is refused is named by its index."""
    check_size(len(bodies))
    if call.headers.get(b"idempotency-key") is not None:
        raise FieldError(
            "the header Idempotency-Key is for a single job",
            pointer="/idempotency_key",
            hint="give each job of the batch its own idempotency_key",
        )
    raw = _items(call.raw)
    trace = trace_of(call)
    return converted(lambda index: new_job(bodies[index], lambda: raw(index), trace=trace), len(bodies))


def converted(make: Callable[[int], NewJob], number: int) -> list[NewJob]:
    jobs = []
    for index in range(number):
        try:
            jobs.append(make(index))
        except InputError as error:
            error.index = index
            raise
    return jobs


def check_size(number: int) -> None:
    if number == 0:
        raise FieldError("a batch has at least one job", pointer="/jobs")
    if number > MAX_BATCH:
        raise BatchTooLarge(
            f"a batch has at most {MAX_BATCH:,} jobs, this one has {number:,}", hint="split it, or send NDJSON"
        )


def _items(body: bytes) -> Callable[[int], bytes]:
    """Each job of a batch as it came, cut out when the first one is wanted: only keyed jobs need theirs."""
    items: list[msgspec.Raw] = []

    def item(index: int) -> bytes:
        if not items:
            items.extend(_decode_items(body)["jobs"])
        return bytes(items[index])

    return item


async def store_one(call: Call, job: NewJob) -> Enqueued:
    (answer,) = await store(call, (job,), single=True)
    return answer


async def store(call: Call, jobs: Sequence[NewJob], *, single: bool = False) -> Sequence[Enqueued]:
    """Admit and store. A single job's refusal has no index: there is nothing to count."""
    deps = call.deps
    try:
        async with deps.admission.admitted(call.principal, jobs):
            answers = await deps.engine.enqueue(jobs, tenant=call.tenant)
    except InputError as error:
        if single:
            error.index = None
        raise
    count_stored(call.tenant, jobs, answers)
    deps.streams.poke()
    return answers


def durability(call: Call) -> Object:
    """What every accept says where the store may forget it."""
    return {"durability": "relaxed"} if call.deps.engine.durability == "relaxed" else {}


def brief(call: Call, answer: Enqueued, *, times: bool = False) -> Object:
    id = str(answer.id)
    status = PRUNED if answer.state is None else answer.state.value
    object: Object = {"id": id, "run_id": id, "status": status, "deduplicated": answer.deduplicated}
    if times:
        if answer.created_at is not None and answer.run_at is not None:
            object["created_at"] = rfc3339(answer.created_at)
            object["run_at"] = rfc3339(answer.run_at)
    elif call.deps.engine.durability == "relaxed":
        object["durability"] = "relaxed"
    return object


async def _first(call: Call, sent: NewJob, answer: Enqueued) -> Object:
    """The job that was there before; only its id once it is gone.

    Who comes with its key and the same body may see what it sent. A unique rule is met by any body, and the job
    that was there may be somebody else's.
    """
    (job,) = await call.deps.engine.get([answer.id], tenant=call.tenant)
    if job is None:
        return {**brief(call, answer), "status": PRUNED}
    whole = sees_payload(call)
    own = sent.idempotency_key is not None and sent.idempotency_key == job.idempotency_key
    object = job_object(job, payload=whole or own, result=whole)
    return {**object, "run_id": str(job.id), "deduplicated": True, **durability(call)}


async def made(call: Call, job: NewJob, answer: Enqueued) -> Object:
    """A new job as it is in the store, without looking there: nothing can have happened to it that is not told."""
    if answer.state is None or answer.created_at is None or answer.run_at is None or job.expires_in is not None:
        (stored,) = await call.deps.engine.get([answer.id], tenant=call.tenant)
        if stored is not None:
            return {**job_object(stored), "run_id": str(stored.id), "deduplicated": False, **durability(call)}
    id = str(answer.id)
    created = time_or_none(answer.created_at)
    # Most jobs are due when they are made, and writing a time takes as long as all else here.
    due = created if answer.run_at == answer.created_at else time_or_none(answer.run_at)
    object: Object = {
        "id": id,
        "type": job.type,
        "queue": job.queue,
        "status": PRUNED if answer.state is None else answer.state.value,
        "priority": job.priority,
        "payload": msgspec.Raw(job.payload),
        "attempt": 0,
        "attempts": 0,
        "max_attempts": job.max_attempts,
        "run_at": due,
        "created_at": created,
        "updated_at": created,
        **_NEVER_RUN,
        "idempotency_key": job.idempotency_key,
        "timeout": job.timeout,
        "expires_at": time_or_none(job.expires_at),
        "tags": job.tags,
        "headers": job.headers,
        "retry": None if job.retry is None else retry_object(job.retry),
        "run_id": id,
        "deduplicated": False,
    }
    if call.deps.engine.durability == "relaxed":
        object["durability"] = "relaxed"
    return object


#: What a job that was never leased has in common with every other one.
_NEVER_RUN: Object = {
    "started_at": None,
    "finished_at": None,
    "locked_by": None,
    "locked_until": None,
    "lease_lost_count": 0,
    "last_error": None,
    "result": None,
    "dead_at": None,
    "dead_reason": None,
    "cancel_reason": None,
    "progress": None,
    "failures": 0,
    "result_sanitized": False,
    "result_too_large": False,
}


def _cost_of_batch(call: Call) -> float:
    # Lines are paid for as they come.
    return 0.0 if call.body is None else float(len(call.body.jobs))


def _refusals(*more: str) -> tuple[str, ...]:
    return (
        *("invalid_field", "timezone_required", "invalid_time", "conflicting_fields", "idempotency_mismatch"),
        *("key_required", "key_in_flight", "payload_too_large", "quota_exceeded", "queue_full", "indeterminate"),
        *more,
    )


ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        paths.JOBS,
        enqueue,
        scopes=(Scope.ENQUEUE,),
        body=EnqueueBody,
        replies={201: models.EnqueuedJob | models.EnqueuedBrief, 200: models.EnqueuedJob | models.EnqueuedBrief},
        codes=_refusals(),
        headers=("Idempotency-Key", "Prefer", "traceparent"),
        summary="Enqueue a job",
        description="200 with the first job when the idempotency key or the unique rule finds one.",
        tag="producers",
        links={"get_job": {"id": "$response.body#/id"}, "cancel_job": {"id": "$response.body#/id"}},
    ),
    Route(
        "POST",
        paths.JOBS_BATCH,
        enqueue_batch,
        scopes=(Scope.ENQUEUE,),
        body=BatchBody,
        large=True,
        streamed={"application/x-ndjson": enqueue_lines},
        media=("application/x-ndjson",),
        replies={201: models.EnqueuedBatch, 200: None},
        codes=_refusals("batch_too_large"),
        headers=("traceparent",),
        cost=_cost_of_batch,
        summary="Enqueue up to 1,000 jobs, all or none; or any number as NDJSON",
        tag="producers",
    ),
)
