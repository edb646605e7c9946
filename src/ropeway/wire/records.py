"""For the side that calls: replies back to the records of `core`, and records to request bodies."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw

from ropeway.core.events import Event, rfc3339
from ropeway.core.fleet import WorkerInfo
from ropeway.core.job import DEFAULT_TENANT, Job, NewJob, Progress
from ropeway.core.joblog import LogLine
from ropeway.core.payload import JobError
from ropeway.core.query import QueueSettings, QueueStats
from ropeway.core.retry import PRESETS, RetryPolicy
from ropeway.core.schedule import NewSchedule, Schedule
from ropeway.core.states import State
from ropeway.core.unique import Unique
from ropeway.wire import models, requests

#: One preset of each shape: its numbers are all replaced, so that any policy can be sent.
_BY_SHAPE = {policy.shape: name for name, policy in reversed(list(PRESETS.items()))}

_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode


def job_of(model: models.Job, *, tenant: str = DEFAULT_TENANT) -> Job:
    """A stored job. What the key may not see is None."""
    payload, result = model.payload, model.result
    return Job(
        id=model.id,
        tenant=tenant,
        type=model.type,
        queue=model.queue,
        state=State(model.status),
        priority=model.priority,
        payload=None if payload is UNSET else bytes(payload),
        attempt=model.attempt,
        attempts=model.attempts,
        max_attempts=model.max_attempts,
        run_at=model.run_at,
        created_at=model.created_at,
        updated_at=model.updated_at,
        failures=model.failures,
        lease_lost_count=model.lease_lost_count,
        timeout=model.timeout,
        retry=model.retry,
        started_at=model.started_at,
        finished_at=model.finished_at,
        locked_by=model.locked_by,
        locked_until=model.locked_until,
        last_error=None if model.last_error is None else error_of(model.last_error),
        # On the wire the result null and no result are the same.
        result=None if result is UNSET or bytes(result) == b"null" else bytes(result),
        dead_reason=model.dead_reason,
        cancel_reason=model.cancel_reason,
        idempotency_key=model.idempotency_key,
        expires_at=model.expires_at,
        tags=tuple(model.tags),
        headers=model.headers,
        progress=None
        if model.progress is None
        else Progress(model.progress.done, model.progress.total, model.progress.message, model.progress.at),
        result_sanitized=model.result_sanitized,
        result_too_large=model.result_too_large,
    )


def error_of(model: models.LastError) -> JobError:
    traceback = None if model.traceback is UNSET else model.traceback
    return JobError(model.type, model.message, traceback, model.truncated, model.sanitized is True)


def event_of(model: models.Event, *, tenant: str = DEFAULT_TENANT) -> Event:
    return Event(
        event=model.event,
        tenant=tenant,
        job_id=model.job_id,
        seq=model.seq,
        at=model.at,
        type=model.type,
        queue=model.queue,
        state=model.status,
        attempt=model.attempt,
        worker_id=model.worker_id,
        data=model.data,
    )


def line_of(model: models.LogEntry) -> LogLine:
    return LogLine(model.message, model.level, model.attempt, model.n, model.at)


def queue_stats_of(model: models.Queue) -> QueueStats:
    # A server of before `capped` only says that some counts are.
    capped = model.capped or (model.counts if model.counts_capped else ())
    return QueueStats(
        queue=model.queue,
        paused=model.paused,
        counts={State(status): number for status, number in model.counts.items()},
        capped=frozenset(State(status) for status in capped),
        oldest_age_seconds=model.oldest_age_seconds,
        enqueued_per_minute=model.enqueued_per_minute,
        finished_per_minute=model.finished_per_minute,
        settings=QueueSettings(model.depth_limit, model.require_key, model.lease_seconds),
    )


def worker_of(model: models.Worker) -> WorkerInfo:
    return WorkerInfo(
        id=model.worker_id,
        host=model.host,
        pid=model.pid,
        version=model.version,
        queues=tuple(model.queues),
        types=tuple(model.types),
        slots=model.slots,
        running=model.running,
        rss_bytes=model.rss_bytes,
        state=model.state,
        started_at=model.started_at,
        seen_at=model.last_seen_at,
    )


def schedule_of(model: models.Schedule) -> Schedule:
    unique = model.unique
    spec = NewSchedule(
        name=model.name,
        cron=model.cron,
        type=model.type,
        tz=model.tz,
        queue=model.queue,
        payload=b"{}" if model.payload is UNSET else bytes(model.payload),
        priority=model.priority,
        max_attempts=model.max_attempts,
        missed=model.missed,
        paused=model.paused,
        source=model.source,
        timeout=model.timeout,
        retry=model.retry,
        unique=None
        if unique is None
        else Unique(
            unique.by, unique.key, unique.within, None if unique.states is None else frozenset(unique.states)
        ),
        expires_in=model.expires_in,
        tags=tuple(model.tags),
        headers=model.headers,
    )
    return Schedule(spec, model.next_run_at, model.last_run_at, model.last_job_id)


def enqueue_body(job: NewJob) -> requests.EnqueueBody:
    """The body that asks for a job."""
    return requests.EnqueueBody(
        type=job.type,
        payload=Raw(job.payload),
        queue=job.queue,
        priority=job.priority,
        max_attempts=job.max_attempts,
        run_at=None if job.run_at is None else rfc3339(job.run_at),
        delay=job.delay,
        idempotency_key=job.idempotency_key,
        key_window=job.key_window,
        unique=None if job.unique is None else unique_body(job.unique),
        retry=None if job.retry is None else retry_body(job.retry),
        timeout=job.timeout,
        expires_at=None if job.expires_at is None else rfc3339(job.expires_at),
        expires_in=job.expires_in,
        tags=list(job.tags),
        headers=dict(job.headers),
    )


def lean(body: requests.Body) -> dict[str, Any]:
    """A body as an object to be added to, without what is at its default."""
    members: dict[str, Any] = _decode_members(msgspec.json.encode(body))
    return members


def schedule_body(spec: NewSchedule) -> requests.ScheduleBody:
    return requests.ScheduleBody(
        name=spec.name,
        cron=spec.cron,
        type=spec.type,
        tz=spec.tz,
        queue=spec.queue,
        payload=Raw(spec.payload),
        priority=spec.priority,
        max_attempts=spec.max_attempts,
        timeout=spec.timeout,
        retry=None if spec.retry is None else retry_body(spec.retry),
        unique=None if spec.unique is None else unique_body(spec.unique),
        expires_in=spec.expires_in,
        tags=list(spec.tags),
        headers=dict(spec.headers),
        missed=spec.missed,
        paused=spec.paused,
    )


def retry_body(policy: RetryPolicy) -> requests.RetryBody:
    """A policy as a preset of its shape with all numbers given."""
    return msgspec.convert(
        {
            "policy": _BY_SHAPE[policy.shape],
            "base": policy.base,
            "factor": policy.factor,
            "cap": policy.cap,
            "jitter": policy.jitter,
        },
        requests.RetryBody,
    )


def unique_body(rule: Unique) -> requests.UniqueBody:
    statuses = None if rule.states is None else sorted(rule.states)
    return requests.UniqueBody(by=rule.by, key=rule.key, within=rule.within, statuses=statuses)
