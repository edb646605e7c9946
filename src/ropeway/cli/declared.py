"""What an app's code says about a task, for a job that is enqueued by name."""

from __future__ import annotations

from typing import Any, cast

from ropeway.core.job import Job
from ropeway.task.context import JobContext
from ropeway.task.spec import TaskSpec
from ropeway.worker.loading import load_program

_FIELDS = (
    "queue",
    "priority",
    "max_attempts",
    "retry",
    "timeout",
    "unique",
    "key_window",
    "expires_in",
    "tags",
    "headers",
)


def declared_fields(target: str, type: str, payload: bytes) -> dict[str, Any]:
    """The fields that the task's declaration gives its jobs.

    Raises UnknownTask when the app has no such task and BadArguments when the payload does not fit it: a person
    at a terminal wants to know now, not from a dead job.
    """
    registry = load_program(target).registry
    spec = registry.get(type)
    if spec is None:
        raise registry.unknown(type)
    given = {name: value for name in _FIELDS if (value := getattr(spec, name)) not in (None, (), {})}
    # Context and job are filled in by a worker; whether the rest fits can be told without them.
    arguments, keywords = spec.bind(payload, lambda: cast(JobContext, None), cast(Job, None))
    if spec.key is not None:
        given["idempotency_key"] = spec.key if isinstance(spec.key, str) else spec.key(*arguments, **keywords)
    return {**given, **_window(spec)}


def _window(spec: TaskSpec) -> dict[str, Any]:
    if spec.window is None:
        return {}
    from datetime import UTC, datetime

    now = datetime.now(UTC)
    start = spec.window.next_start(now)
    return {} if start <= now else {"run_at": start}
