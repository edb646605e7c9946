"""Ropeway: durable background jobs. These are the promised names; everything else may move."""

from ropeway.core.decide import Rules
from ropeway.core.errors import (
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
    JobEnded,
    KeyInFlight,
    LeaseLost,
    NameTaken,
    NotFound,
    NotSupported,
    PayloadError,
    PositionExpired,
    RopewayError,
    Unavailable,
)
from ropeway.core.events import Attempt, Event, attempt_history
from ropeway.core.job import Job, NewJob, Progress
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

__all__ = [
    "Attempt",
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
    "JobEnded",
    "JobError",
    "JobFilter",
    "KeyInFlight",
    "Lease",
    "LeaseLost",
    "Leased",
    "Lost",
    "NameTaken",
    "NewJob",
    "NewSchedule",
    "NotFound",
    "NotSupported",
    "PayloadError",
    "PositionExpired",
    "Progress",
    "Released",
    "RetryPolicy",
    "RopewayError",
    "Rules",
    "Schedule",
    "Settings",
    "Settlement",
    "Snoozed",
    "State",
    "Unavailable",
    "Unique",
    "Weighted",
    "WorkerRef",
    "attempt_history",
    "engine_for",
    "retry_policy",
]
