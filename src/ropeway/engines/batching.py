"""What a batch of new jobs comes to before the store is asked: limits, and what its keys say."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from ropeway.core import fields
from ropeway.core.errors import BatchTooLarge, FieldError, IdempotencyMismatch, PayloadError
from ropeway.core.job import Alike, NewJob
from ropeway.core.states import LIVE_STATES, State
from ropeway.core.unique import key_is_free
from ropeway.engines.protocol import Enqueued

#: An engine takes this many jobs in one call; the HTTP face allows fewer.
MAX_ENQUEUE = 10_000


def check_batch(jobs: Sequence[NewJob], now: datetime, max_payload_bytes: int) -> None:
    """Refuse a batch that is too long, or a job that is too large or beyond the horizon, naming its index."""
    if len(jobs) > MAX_ENQUEUE:
        raise BatchTooLarge(f"at most {MAX_ENQUEUE:,} jobs in one call", hint="send them in several calls")
    if (
        isinstance(jobs, Alike)
        and jobs.model.run_at is None
        and jobs.model.expires_at is None
        and max(map(len, jobs.payloads), default=0) <= max_payload_bytes
    ):
        return
    for index, job in enumerate(jobs):
        if len(job.payload) > max_payload_bytes:
            raise PayloadError(
                f"the payload has {len(job.payload):,} bytes; at most {max_payload_bytes:,} are allowed",
                code="payload_too_large",
                hint="store the data elsewhere and send a reference",
                index=index,
            )
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


class Held(msgspec.Struct, frozen=True):
    """A key that is taken: by which job, for how long, and that job's state now (None: it was pruned)."""

    job_id: UUID
    fingerprint: bytes
    until: datetime | None
    enqueued_at: datetime
    state: State | None


def known_by_keys(
    job: NewJob, fingerprint: bytes, now: datetime, idempotency: Held | None, unique: Held | None
) -> Enqueued | None:
    """The earlier job that answers for a new one, if one of its keys says so. Raises IdempotencyMismatch.

    `idempotency` and `unique` are who holds the keys that the new job asks for.
    """
    if idempotency is not None and not key_is_free(
        until=idempotency.until, now=now, job_ended=idempotency.state not in LIVE_STATES
    ):
        if idempotency.fingerprint != fingerprint:
            raise mismatch()
        return Enqueued(idempotency.job_id, idempotency.state, deduplicated=True)
    if (
        job.unique is not None
        and unique is not None
        and job.unique.hit(state=unique.state, enqueued_at=unique.enqueued_at, now=now)
    ):
        return Enqueued(unique.job_id, unique.state, deduplicated=True)
    return None
