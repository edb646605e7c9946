"""Records as JSON objects under the promised names, the same on every face.

Payload and result are put in byte for byte (`msgspec.Raw`), so encode these objects with `msgspec.json`. Times are
RFC 3339 in UTC with microseconds; a state is called `status`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from ropeway.core.events import rfc3339

if TYPE_CHECKING:
    from ropeway.core.access import ApiKey, Tenant
    from ropeway.core.auditlog import Action
    from ropeway.core.events import Attempt, Event
    from ropeway.core.fleet import WorkerInfo
    from ropeway.core.job import Job, Progress
    from ropeway.core.joblog import LogLine
    from ropeway.core.payload import JobError
    from ropeway.core.query import QueueStats
    from ropeway.core.retry import RetryPolicy
    from ropeway.core.schedule import Schedule
    from ropeway.core.unique import Unique

Object = dict[str, Any]


def job_object(job: Job, *, payload: bool = True, result: bool = True, traceback: bool = False) -> Object:
    """A job with everything that is on its row; `payload` and `result` are absent when they are not to be seen,
    the last error's `traceback` unless it is asked for."""
    object: Object = {
        "id": str(job.id),
        "type": job.type,
        "queue": job.queue,
        "status": job.state.value,
        "priority": job.priority,
        "payload": json_or_none(job.payload),
        "attempt": job.attempt,
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "run_at": rfc3339(job.run_at),
        "created_at": rfc3339(job.created_at),
        "updated_at": rfc3339(job.updated_at),
        "started_at": time_or_none(job.started_at),
        "finished_at": time_or_none(job.finished_at),
        "locked_by": job.locked_by,
        "locked_until": time_or_none(job.locked_until),
        "lease_lost_count": job.lease_lost_count,
        "last_error": None if job.last_error is None else _last_error(job.last_error, traceback=traceback),
        "result": json_or_none(job.result),
        "dead_at": time_or_none(job.dead_at),
        "dead_reason": job.dead_reason,
        "cancel_reason": job.cancel_reason,
        "idempotency_key": job.idempotency_key,
        "timeout": job.timeout,
        "expires_at": time_or_none(job.expires_at),
        "tags": list(job.tags),
        "headers": dict(job.headers),
        "progress": None if job.progress is None else progress_object(job.progress),
        "failures": job.failures,
        "retry": None if job.retry is None else retry_object(job.retry),
        "result_sanitized": job.result_sanitized,
        "result_too_large": job.result_too_large,
    }
    if not payload:
        del object["payload"]
    if not result:
        del object["result"]
    return object


def detail_object(
    job: Job,
    attempts: Iterable[Attempt],
    events: Iterable[Event],
    logs: Iterable[LogLine],
    *,
    payload: bool = True,
    result: bool = True,
) -> Object:
    """A job and all that is known of its life."""
    return {
        **job_object(job, payload=payload, result=result),
        "attempt_history": [attempt_object(attempt) for attempt in attempts],
        "events": [event_object(event) for event in events],
        "logs": [log_object(line) for line in logs],
    }


def attempt_object(attempt: Attempt) -> Object:
    return {
        "attempt": attempt.attempt,
        "started_at": rfc3339(attempt.started_at),
        "finished_at": time_or_none(attempt.finished_at),
        "worker_id": attempt.worker_id,
        "outcome": attempt.outcome,
        "error": None if attempt.error is None else _error_with_traceback(attempt.error),
        "retry_in_ms": attempt.retry_in_ms,
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
    }


def event_object(event: Event) -> Object:
    return {
        "event": event.event.value,
        "job_id": str(event.job_id),
        "run_id": str(event.job_id),
        "seq": event.seq,
        "at": rfc3339(event.at),
        "type": event.type,
        "queue": event.queue,
        "status": event.state.value,
        "attempt": event.attempt,
        "worker_id": event.worker_id,
        "data": dict(event.data),
    }


def progress_object(progress: Progress) -> Object:
    return {
        "done": progress.done,
        "total": progress.total,
        "message": progress.message,
        "at": time_or_none(progress.at),
    }


def log_object(line: LogLine) -> Object:
    return {
        "n": line.n,
        "at": time_or_none(line.at),
        "level": line.level,
        "attempt": line.attempt,
        "message": line.message,
    }


def queue_object(stats: QueueStats) -> Object:
    return {
        "queue": stats.queue,
        "paused": stats.paused,
        "counts": {state.value: number for state, number in stats.counts.items()},
        "counts_capped": stats.counts_capped,
        "capped": [state.value for state in sorted(stats.capped)],
        "oldest_age_seconds": stats.oldest_age_seconds,
        "enqueued_per_minute": stats.enqueued_per_minute,
        "finished_per_minute": stats.finished_per_minute,
        "depth_limit": stats.settings.depth_limit,
        "require_key": stats.settings.require_key,
        "lease_seconds": stats.settings.lease_seconds,
    }


def schedule_object(schedule: Schedule) -> Object:
    spec = schedule.spec
    return {
        "name": spec.name,
        "cron": spec.cron,
        "tz": spec.tz,
        "type": spec.type,
        "queue": spec.queue,
        "payload": json_or_none(spec.payload),
        "priority": spec.priority,
        "max_attempts": spec.max_attempts,
        "timeout": spec.timeout,
        "retry": None if spec.retry is None else retry_object(spec.retry),
        "unique": None if spec.unique is None else unique_object(spec.unique),
        "expires_in": spec.expires_in,
        "tags": list(spec.tags),
        "headers": dict(spec.headers),
        "missed": spec.missed,
        "paused": spec.paused,
        "source": spec.source,
        "next_run_at": rfc3339(schedule.next_run_at),
        "last_run_at": time_or_none(schedule.last_run_at),
        "last_job_id": None if schedule.last_job_id is None else str(schedule.last_job_id),
    }


def retry_object(policy: RetryPolicy) -> Object:
    return msgspec.structs.asdict(policy)


def unique_object(rule: Unique) -> Object:
    return {"by": rule.by, "key": rule.key, "within": rule.within, "states": sorted(rule.blocking_states)}


def tenant_object(tenant: Tenant) -> Object:
    return {
        "id": tenant.id,
        "name": tenant.name,
        "email": tenant.email,
        "is_active": tenant.is_active,
        "limits": msgspec.structs.asdict(tenant.limits),
        "created_at": rfc3339(tenant.created_at),
        "last_seen_at": time_or_none(tenant.last_seen_at),
    }


def key_object(key: ApiKey) -> Object:
    """A key as it is listed: never its secret, nor the digest of it."""
    return {
        "id": key.id,
        "name": key.name,
        "scopes": sorted(key.scopes),
        "created_at": rfc3339(key.created_at),
        "expires_at": time_or_none(key.expires_at),
        "last_used_at": time_or_none(key.last_used_at),
        "revoked_at": time_or_none(key.revoked_at),
    }


def action_object(action: Action) -> Object:
    return {
        "at": rfc3339(action.at),
        "actor": action.actor,
        "action": action.action,
        "target": action.target,
        "count": action.count,
        "request_id": action.request_id,
    }


def worker_object(worker: WorkerInfo) -> Object:
    return {
        "worker_id": worker.id,
        "host": worker.host,
        "pid": worker.pid,
        "version": worker.version,
        "queues": list(worker.queues),
        "types": list(worker.types),
        "slots": worker.slots,
        "running": worker.running,
        "rss_bytes": worker.rss_bytes,
        "state": worker.state,
        "started_at": time_or_none(worker.started_at),
        "last_seen_at": time_or_none(worker.seen_at),
    }


def json_or_none(data: bytes | None) -> msgspec.Raw | None:
    """Stored JSON as it is."""
    return None if data is None else msgspec.Raw(data)


def time_or_none(at: datetime | None) -> str | None:
    return None if at is None else rfc3339(at)


def _last_error(error: JobError, *, traceback: bool) -> Object:
    object: Object = {"type": error.type, "message": error.message, "truncated": error.truncated}
    if traceback:
        object |= {"traceback": error.traceback, "sanitized": error.sanitized}
    return object


def _error_with_traceback(error: JobError) -> Object:
    return {"type": error.type, "message": error.message, "traceback": error.traceback}
