"""Ropeway: durable background jobs. These are the promised names; everything else may move."""

from typing import TYPE_CHECKING

from ropeway.app import Ropeway
from ropeway.client.handles import JobHandle, SyncJobHandle
from ropeway.client.tasks import Task
from ropeway.core.decide import Rules
from ropeway.core.errors import (
    AccessError,
    BadArguments,
    BadCursor,
    BatchTooLarge,
    ConfigurationError,
    ConflictError,
    EngineError,
    FieldError,
    IdempotencyMismatch,
    Indeterminate,
    InputError,
    InvalidState,
    JobCancelled,
    JobEnded,
    JobFailed,
    KeyInFlight,
    LeaseLost,
    LimitError,
    MissingScope,
    NameTaken,
    NotFound,
    NotSupported,
    PayloadError,
    PositionExpired,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    ResultUnavailable,
    RopewayError,
    Unauthenticated,
    Unavailable,
    UnknownTask,
    UsageError,
)
from ropeway.core.events import Attempt, Event, attempt_history
from ropeway.core.fleet import WorkerInfo
from ropeway.core.job import Job, NewJob, Progress
from ropeway.core.joblog import LogLine
from ropeway.core.lease import Lease
from ropeway.core.outcome import Done, Failed, Lost, Released, Snoozed
from ropeway.core.payload import JobError
from ropeway.core.query import JobFilter
from ropeway.core.retry import RetryPolicy, retry_policy
from ropeway.core.schedule import NewSchedule, Schedule
from ropeway.core.states import State
from ropeway.core.unique import Unique
from ropeway.engines.open import engine_for
from ropeway.engines.protocol import Engine, EngineRules, Leased, Settlement, Weighted, WorkerRef
from ropeway.settings import Settings
from ropeway.task.context import JobContext
from ropeway.task.middleware import Middleware

if TYPE_CHECKING:
    from ropeway.sdk import AsyncClient, Client

__all__ = [
    "AccessError",
    "AsyncClient",
    "Attempt",
    "BadArguments",
    "BadCursor",
    "BatchTooLarge",
    "Client",
    "ConfigurationError",
    "ConflictError",
    "Done",
    "Engine",
    "EngineError",
    "EngineRules",
    "Event",
    "Failed",
    "FieldError",
    "IdempotencyMismatch",
    "Indeterminate",
    "InputError",
    "InvalidState",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobEnded",
    "JobError",
    "JobFailed",
    "JobFilter",
    "JobHandle",
    "KeyInFlight",
    "Lease",
    "LeaseLost",
    "Leased",
    "LimitError",
    "LogLine",
    "Lost",
    "Middleware",
    "MissingScope",
    "NameTaken",
    "NewJob",
    "NewSchedule",
    "NotFound",
    "NotSupported",
    "PayloadError",
    "PositionExpired",
    "Progress",
    "QueueFull",
    "QuotaExceeded",
    "RateLimited",
    "Released",
    "ResultUnavailable",
    "RetryPolicy",
    "Ropeway",
    "RopewayError",
    "Rules",
    "Schedule",
    "Settings",
    "Settlement",
    "Snoozed",
    "State",
    "SyncJobHandle",
    "Task",
    "Unauthenticated",
    "Unavailable",
    "Unique",
    "UnknownTask",
    "UsageError",
    "Weighted",
    "WorkerInfo",
    "WorkerRef",
    "attempt_history",
    "engine_for",
    "retry_policy",
]


def __getattr__(name: str) -> object:
    # The HTTP client takes longer to import than all the rest, and a program with an engine has no use for it.
    if name in ("AsyncClient", "Client"):
        from ropeway import sdk

        return getattr(sdk, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
