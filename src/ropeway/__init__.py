"""Ropeway: durable background jobs. These are the promised names; everything else may move."""

from ropeway.app import Ropeway
from ropeway.client.handles import JobHandle, SyncJobHandle
from ropeway.client.tasks import Task
from ropeway.core.decide import Rules
from ropeway.core.errors import (
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
    NameTaken,
    NotFound,
    NotSupported,
    PayloadError,
    PositionExpired,
    ResultUnavailable,
    RopewayError,
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

__all__ = [
    "Attempt",
    "BadArguments",
    "BadCursor",
    "BatchTooLarge",
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
    "LogLine",
    "Lost",
    "Middleware",
    "NameTaken",
    "NewJob",
    "NewSchedule",
    "NotFound",
    "NotSupported",
    "PayloadError",
    "PositionExpired",
    "Progress",
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
