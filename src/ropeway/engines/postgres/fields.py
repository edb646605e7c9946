"""How jobs travel to the functions: equal columns as one value, rare fields as one JSON object."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from ropeway.core import retry
from ropeway.core.events import rfc3339
from ropeway.core.job import DEFAULT_TIMEOUT, Alike, NewJob


class Submission(NamedTuple):
    """One job on its way in."""

    tenant: str
    job: NewJob
    id: UUID


def alike_arrays(tenant: str, jobs: Alike, ids: list[UUID]) -> tuple[Any, ...] | None:
    """Jobs that differ in their payloads alone, as the arguments of `add_lines`; None when a payload has several
    lines. The driver takes 0.6 µs for an element of an array, but none for a line of a text."""
    lines = b"\n".join(jobs.payloads)
    if lines.count(b"\n") != len(ids) - 1:
        return None
    model = jobs.model
    options = _options(model)
    return (
        [tenant],
        ids,
        [model.type],
        [model.queue],
        [model.priority],
        [model.max_attempts],
        lines.decode(),
        [] if model.run_at is None else [model.run_at] * len(ids),
        [] if model.delay is None else [model.delay] * len(ids),
        [],
        [] if options is None else [options] * len(ids),
    )


def times_of_array(data: bytes) -> list[datetime]:
    """An array of times out of `array_send`: 20 bytes of head, then the length and microseconds of each."""
    return [_EPOCH + timedelta(microseconds=micros) for _, micros in _time_in_array(data[20:])]


_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_time_in_array = struct.Struct(">iq").iter_unpack


def insert_arrays(batch: Sequence[Submission]) -> tuple[list[Any], ...]:
    """A batch as the arrays of `add_jobs`."""
    jobs = [submission.job for submission in batch]
    return (
        folded([submission.tenant for submission in batch]),
        [submission.id for submission in batch],
        folded([job.type for job in jobs]),
        folded([job.queue for job in jobs]),
        folded([job.priority for job in jobs]),
        folded([job.max_attempts for job in jobs]),
        [job.payload.decode() for job in jobs],
        sparse([job.run_at for job in jobs]),
        sparse([job.delay for job in jobs]),
        sparse([job.idempotency_key for job in jobs]),
        sparse([_options(job) for job in jobs]),
    )


def insert_values(submission: Submission) -> tuple[Any, ...]:
    """A bare job as the arguments of `insert_job`."""
    tenant, job, id = submission
    return (tenant, id, job.type, job.queue, job.priority, job.max_attempts, job.payload.decode())


def is_bare(job: NewJob) -> bool:
    """Whether a job without keys is due at once and sets nothing that few jobs set."""
    return job.run_at is None and job.delay is None and _options(job) is None


def sparse(values: list[Any]) -> list[Any]:
    """A column that may be NULL; nothing at all when it is NULL throughout."""
    return [] if values.count(None) == len(values) else values


def _options(job: NewJob) -> str | None:
    """The rare fields of a job as JSON; None for most jobs."""
    if (
        job.timeout == DEFAULT_TIMEOUT
        and job.retry is None
        and job.expires_at is None
        and job.expires_in is None
        and not job.tags
        and not job.headers
    ):
        return None
    return msgspec.json.encode(rare_fields(job)).decode()


def rare_fields(job: NewJob) -> dict[str, Any]:
    """The fields that few jobs set, as `add_jobs` and the SQL function take them."""
    rare: dict[str, Any] = {}
    if job.timeout != DEFAULT_TIMEOUT:
        rare["timeout"] = job.timeout
    if job.retry is not None:
        rare["retry"] = retry.encode(job.retry)
    if job.expires_at is not None:
        rare["expires_at"] = rfc3339(job.expires_at)
    if job.expires_in is not None:
        rare["expires_in"] = job.expires_in
    if job.tags:
        rare["tags"] = list(job.tags)
    if job.headers:
        rare["headers"] = dict(job.headers)
    return rare


def folded(values: list[Any]) -> list[Any]:
    """A column that is the same throughout, as one value: the driver's work is per element."""
    return values[:1] if values.count(values[0]) == len(values) else values
