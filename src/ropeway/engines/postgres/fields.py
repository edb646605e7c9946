"""How jobs travel to the functions: equal columns as one value, rare fields as one JSON object."""

from __future__ import annotations

from typing import Any

from ropeway.core import retry
from ropeway.core.events import rfc3339
from ropeway.core.job import DEFAULT_TIMEOUT, NewJob


def rare_fields(job: NewJob) -> dict[str, Any]:
    """The fields that few jobs set, as `insert_jobs` and the SQL function take them."""
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
