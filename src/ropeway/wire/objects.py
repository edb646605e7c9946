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
    from ropeway.core.events import Attempt, Event
    from ropeway.core.fleet import WorkerInfo
    from ropeway.core.job import Job, Progress
    from ropeway.core.joblog import LogLine
    from ropeway.core.payload import JobError
    from ropeway.core.query import QueueStats
    from ropeway.core.schedule import Schedule
    from ropeway.core.unique import Unique

Object = dict[str, Any]


def job_object(job: Job) -> Object:
    """A job with everything that is on its row."""
    return {
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
        "last_error": None if job.last_error is None else _last_error(job.last_error),
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
    }


def detail_object(
    job: Job, attempts: Iterable[Attempt], events: Iterable[Event], logs: Iterable[LogLine]
) -> Object:
    """A job and all that is known of its life."""
    return {
        **job_object(job),
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
        "oldest_age_seconds": stats.oldest_age_seconds,
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
        "retry": None if spec.retry is None else msgspec.structs.asdict(spec.retry),
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


def unique_object(rule: Unique) -> Object:
    return {"by": rule.by, "key": rule.key, "within": rule.within, "states": sorted(rule.blocking_states)}


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


def _last_error(error: JobError) -> Object:
    return {"type": error.type, "message": error.message, "truncated": error.truncated}


def _error_with_traceback(error: JobError) -> Object:
    return {"type": error.type, "message": error.message, "traceback": error.traceback}
