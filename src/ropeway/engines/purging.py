"""Retention: by whole UTC days on every engine, and a last word for each dead job that goes."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec

from ropeway.core.events import rfc3339
from ropeway.core.job import Job

#: The only logger that ever sees a payload: one line per dead job that retention removes.
purged = logging.getLogger("ropeway.purged")


def first_day_kept(now: datetime, keep_seconds: float) -> datetime:
    """Midnight (UTC) of the oldest day that must stay: days that ended before the retention began may go."""
    edge = now - timedelta(seconds=keep_seconds)
    return edge.replace(hour=0, minute=0, second=0, microsecond=0)


def log_purged(jobs: Iterable[Job]) -> None:
    """Write the last word on dead jobs, before they are removed."""
    if not purged.isEnabledFor(logging.INFO):
        return
    for job in jobs:
        purged.info(
            "%s",
            msgspec.json.encode(
                {
                    "event": "job_purged",
                    "id": str(job.id),
                    "tenant": job.tenant,
                    "type": job.type,
                    "queue": job.queue,
                    "reason": job.dead_reason,
                    "error": None if job.last_error is None else job.last_error.message,
                    "attempts": job.attempt,
                    "dead_at": None if job.finished_at is None else rfc3339(job.finished_at),
                    "payload": msgspec.Raw(job.payload or b"null"),
                }
            ).decode(),
        )
