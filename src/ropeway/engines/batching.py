"""What a batch of new jobs comes to before the store is asked: limits, and duplicates within the batch."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ropeway.core import fields
from ropeway.core.errors import BatchTooLarge, FieldError, IdempotencyMismatch
from ropeway.core.job import NewJob

#: An engine takes this many jobs in one call; the HTTP face allows fewer.
MAX_ENQUEUE = 10_000


def check_batch(jobs: Sequence[NewJob], now: datetime) -> None:
    """Refuse a batch that is too long, or a job that lies beyond the horizon, naming its index."""
    if len(jobs) > MAX_ENQUEUE:
        raise BatchTooLarge(f"at most {MAX_ENQUEUE:,} jobs in one call", hint="send them in several calls")
    for index, job in enumerate(jobs):
        if job.run_at is None and job.expires_at is None:
            continue
        try:
            for field in ("run_at", "expires_at"):
                value = getattr(job, field)
                if value is not None:
                    fields.check_horizon(value, field, now)
        except FieldError as error:
            error.index = index
            raise


def mismatch(index: int | None = None) -> IdempotencyMismatch:
    """The refusal of a known key with another body."""
    return IdempotencyMismatch(
        "this idempotency key was used before with another body",
        hint="use a new key for a new job; repeat the first body to get the first job",
        index=index,
    )
