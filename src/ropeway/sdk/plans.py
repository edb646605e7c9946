"""What each method of the clients sends and how its answer is read, without sending anything.

Both clients take their methods from here, signature and words included, so that they cannot differ. Jobs are
checked by the same rules as everywhere else before they are sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict, Unpack, cast
from uuid import UUID

from msgspec import UNSET, Raw

from ropeway.core import fields
from ropeway.core.errors import BatchTooLarge
from ropeway.core.events import rfc3339
from ropeway.core.job import (
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    DEFAULT_TIMEOUT,
    NewJob,
)
from ropeway.core.retry import RetryPolicy
from ropeway.core.unique import Unique
from ropeway.sdk.parts import (
    JobFields,
    JobId,
    Ticket,
    as_json,
    get,
    id_of,
    new_job,
    not_a_duplicate_of_itself,
    numbered,
    post,
    reader,
    time_of,
    type_name,
    with_key,
    with_token,
)
from ropeway.wire import models, paths, records
from ropeway.wire.calls import Answer, Call

# ── Producers ──


def enqueue(
    type: str,
    payload: Any = UNSET,
    *,
    queue: str = DEFAULT_QUEUE,
    priority: int | str = DEFAULT_PRIORITY,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    run_at: datetime | None = None,
    delay: float | None = None,
    idempotency_key: str | None = None,
    unique: Unique | None = None,
    retry: RetryPolicy | str | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    expires_at: datetime | None = None,
    expires_in: float | None = None,
    tags: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
) -> Call[models.EnqueuedBrief]:
    """Enqueue one job; its id and status come back. `payload` is any value that JSON has a form for.

    Safe to be cut off: it is sent again under the same idempotency key (one is made when you give none), so a lost
    reply never makes a second job. `deduplicated` tells that your key, or `unique`, has found an earlier job.
    Indeterminate, when no try could tell, has the key in its `keys`: the same call with that key goes on with it.
    """
    job = new_job(
        JobFields(
            type=type,
            payload=payload,
            queue=queue,
            priority=priority,
            max_attempts=max_attempts,
            run_at=run_at,
            delay=delay,
            idempotency_key=idempotency_key,
            unique=unique,
            retry=retry,
            timeout=timeout,
            expires_at=expires_at,
            expires_in=expires_in,
            tags=tags,
            headers=headers,
        )
    )
    keyed, key = with_key(job)
    body = records.lean(records.enqueue_body(keyed))
    own = job.idempotency_key is None and job.unique is None

    def read(answer: Answer) -> models.EnqueuedBrief:
        return not_a_duplicate_of_itself(reader(models.EnqueuedBrief)(answer), own)

    return post(paths.JOBS, body, read, repeatable=True, headers={"Prefer": "return=minimal"}, keys=(key,))


def enqueue_batch(jobs: Iterable[JobFields | NewJob]) -> Call[list[models.EnqueuedBrief]]:
    """Enqueue up to 1,000 jobs, all or none; an answer per job, in order. Safe to be cut off, as `enqueue`.

    A job that is refused raises with its `index`, and nothing is stored.
    """
    asked = [job if isinstance(job, NewJob) else numbered(job, index) for index, job in enumerate(jobs)]
    if len(asked) > fields.MAX_BATCH:
        raise BatchTooLarge(
            f"at most {fields.MAX_BATCH:,} jobs in one call, these are {len(asked):,}", hint="split the batch"
        )
    own = [job.idempotency_key is None and job.unique is None for job in asked]
    keyed = [with_key(job) for job in asked]
    body = {"jobs": [records.lean(records.enqueue_body(job)) for job, _ in keyed]}

    def read(answer: Answer) -> list[models.EnqueuedBrief]:
        made = reader(models.EnqueuedBatch)(answer).jobs
        return [not_a_duplicate_of_itself(job, mine) for job, mine in zip(made, own, strict=True)]

    return post(paths.JOBS_BATCH, body, read, repeatable=True, keys=tuple(key for _, key in keyed))


def get_job(id: JobId) -> Call[models.Job]:
    """A job as it is now. Raises NotFound."""
    return get(paths.job(id_of(id)), models.Job)


def get_job_detail(id: JobId) -> Call[models.JobDetail]:
    """A job with its attempts, its events and its log."""
    return get(paths.job(id_of(id), "detail"), models.JobDetail)


def get_status(id: JobId) -> Call[models.Status]:
    """A job's status alone: `queued`, `running`, `succeeded` ..."""
    return Call("GET", paths.job(id_of(id)), lambda answer: reader(models.Job)(answer).status, repeatable=True)


class JobFilters(TypedDict, total=False):
    """Which jobs. Every filter narrows; times are half-open. `include` may name `payload` and `result`."""

    queue: str
    type: str
    status: str | Iterable[str]
    idempotency_key: str
    worker_id: str
    error: str
    tag: str
    created_after: datetime
    created_before: datetime
    finished_after: datetime
    finished_before: datetime
    order: Literal["newest", "oldest"]
    include: Iterable[Literal["payload", "result"]]
    page_size: int


def jobs_page(cursor: str | None = None, **filters: Unpack[JobFilters]) -> Call[models.JobList]:
    """One page of jobs, newest first unless `order` says otherwise, and the cursor of the next."""
    query: dict[str, object] = dict(filters)
    query["limit"] = query.pop("page_size", None)
    query["cursor"] = cursor
    for name in ("status", "include"):
        words = query.get(name)
        if isinstance(words, Iterable) and not isinstance(words, str):
            query[name] = ",".join(words) or None
    for name in ("created_after", "created_before", "finished_after", "finished_before"):
        at = query.get(name)
        if at is not None:
            query[name] = rfc3339(fields.check_time(cast(datetime, at), name))
    return Call("GET", paths.JOBS, reader(models.JobList), query=query, repeatable=True)


def cancel_job(id: JobId, reason: str | None = None) -> Call[models.Job]:
    """End a job that has not ended, a running one too. Raises JobEnded.

    When the reply is lost this raises Indeterminate: ask for the job's status.
    """
    body = {} if reason is None else {"reason": reason}
    return post(paths.job(id_of(id), "cancel"), body, reader(models.Job))


def retry_job(id: JobId) -> Call[models.Job]:
    """A dead or cancelled job runs again, with a fresh budget. Raises InvalidState."""
    return post(paths.job(id_of(id), "retry"), {}, reader(models.Job))


# ── Workers ──


def lease(
    queues: str | Sequence[str] | Mapping[str, int],
    worker_id: str,
    *,
    count: int = 1,
    lease_seconds: float | None = None,
    wait: float = 0.0,
    owner: UUID | None = None,
) -> Call[list[models.LeasedJob]]:
    """Claim up to `count` due jobs; an empty list when none came within `wait` seconds.

    Several queues are walked in their order, a mapping gives weights instead. Beat before `lease_seconds` are over
    (on your own monotonic clock), and end each with ack, nack, snooze or release. When the reply is lost this
    raises Indeterminate: what was claimed comes back when its lease is over.
    """
    names = [queues] if isinstance(queues, str) else queues
    asked = (
        [{"queue": name, "weight": weight} for name, weight in names.items()]
        if isinstance(names, Mapping)
        else names
    )
    body: dict[str, object] = {"queues": asked, "worker_id": worker_id, "count": count, "wait": wait}
    if lease_seconds is not None:
        body["lease_seconds"] = lease_seconds
    if owner is not None:
        body["owner"] = owner

    def read(answer: Answer) -> list[models.LeasedJob]:
        return [] if answer.status == 204 else reader(models.LeaseReply)(answer).leases

    return post(paths.LEASE, body, read, waits=wait)


def ack(leased: Ticket, result: Any = UNSET) -> Call[models.AckReply]:
    """The job is done. `result` is any value that JSON has a form for. Raises LeaseLost: it is no longer yours."""
    body = {} if result is UNSET else {"result": Raw(as_json(result, "result"))}
    return with_token(leased, "ack", body, models.AckReply)


def nack(
    leased: Ticket, error: str | BaseException, *, retry: bool = True, retry_after: float | None = None
) -> Call[models.NackReply]:
    """The job failed: it is retried while it has attempts left, unless `retry` is False."""
    told: object = error
    if isinstance(error, BaseException):
        told = {"type": type_name(error), "message": str(error)}
    body: dict[str, object] = {"error": told, "retry": retry}
    if retry_after is not None:
        body["retry_after"] = retry_after
    return with_token(leased, "nack", body, models.NackReply)


def heartbeat(leased: Ticket, *, lease_seconds: float | None = None) -> Call[models.HeartbeatReply]:
    """Still at work: the lease begins anew, for all jobs of its lease call. `revoked` names those to stop."""
    body = {} if lease_seconds is None else {"lease_seconds": lease_seconds}
    return with_token(leased, "heartbeat", body, models.HeartbeatReply)


def snooze(
    leased: Ticket, delay: float | None = None, *, run_at: datetime | None = None
) -> Call[models.SnoozeReply]:
    """Call it again later; the attempt does not count."""
    body: dict[str, object] = {}
    if delay is not None:
        body["delay"] = delay
    if run_at is not None:
        body["run_at"] = time_of(run_at, "run_at")
    return with_token(leased, "snooze", body, models.SnoozeReply)


def release(leased: Ticket) -> Call[models.ReleaseReply]:
    """Not run after all: back to its place in line; the attempt does not count."""
    return with_token(leased, "release", {}, models.ReleaseReply)


def progress(
    leased: Ticket, done: float | None = None, total: float | None = None, message: str | None = None
) -> Call[models.ProgressReply]:
    """How far the job is."""
    body = {"done": done, "total": total, "message": message}
    given = {name: value for name, value in body.items() if value is not None}
    return with_token(leased, "progress", given, models.ProgressReply)


# ── Operators ──


def get_queue_stats(queue: str) -> Call[models.Queue]:
    """One queue at a glance: its counts by status, its oldest job, its rates."""
    return get(paths.queue(queue), models.Queue)


def list_queues() -> Call[list[models.Queue]]:
    """The same of every queue, by name."""
    return Call("GET", paths.QUEUES, lambda answer: reader(models.QueueList)(answer).queues, repeatable=True)
