"""Recurring work: a schedule is a cron expression, a time zone and the job it makes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from ropeway.core import cron, fields
from ropeway.core.errors import FieldError
from ropeway.core.job import (
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    DEFAULT_TIMEOUT,
    NewJob,
)
from ropeway.core.payload import check_payload
from ropeway.core.retry import RetryPolicy
from ropeway.core.unique import Unique

Missed = Literal["skip", "once", "all"]

#: How many missed instants of a `missed="all"` schedule are made up for in one go.
MAX_CATCH_UP = 100

_NO_HEADERS: Mapping[str, str] = {}
_ANY_INSTANT = datetime(2024, 1, 1, microsecond=1, tzinfo=UTC)


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a schedule's jobs are like beyond queue, priority and attempts: fields of a NewJob, with its rules.

    `unique` keeps an instant from making a job while an earlier one is still there. `expires_in` counts from the
    moment in which the job is made.
    """

    timeout: float = DEFAULT_TIMEOUT
    retry: RetryPolicy | None = None
    unique: Unique | None = None
    expires_in: float | None = None
    tags: tuple[str, ...] = ()
    headers: Mapping[str, str] = _NO_HEADERS


class NewSchedule(JobOptions, frozen=True):
    """A schedule as it is declared, in code or through an API. Creating one checks every field."""

    name: str
    cron: str
    type: str
    tz: str = "UTC"
    queue: str = DEFAULT_QUEUE
    payload: bytes = b"{}"
    priority: int = DEFAULT_PRIORITY
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    missed: Missed = "once"
    paused: bool = False
    source: Literal["code", "api"] = "api"

    def __post_init__(self) -> None:
        fields.check_name(self.name, "name")
        check_payload(self.payload)
        cron.check_cron(self.cron, self.tz)
        if self.missed not in ("skip", "once", "all"):
            raise FieldError("missed must be 'skip', 'once' or 'all'", pointer="/missed")
        fields.check_tags(self.tags)
        fields.check_headers(self.headers)
        # One form of each, so that what was stored and read again equals what was declared.
        msgspec.structs.force_setattr(self, "tags", tuple(self.tags))
        msgspec.structs.force_setattr(self, "headers", dict(self.headers))
        self._check_room_for_headers()
        # A job made now finds every wrong field at the declaration, not at the first instant.
        job_for(self, _ANY_INSTANT)

    def _check_room_for_headers(self) -> None:
        try:
            fields.check_headers(_headers(self, _ANY_INSTANT))
        except FieldError as error:
            raise FieldError(
                f"{error.message}, with the two that the schedule adds",
                pointer=error.pointer,
                hint="carry it in the payload",
            ) from None

    def options(self) -> JobOptions:
        """What its jobs are like, by itself."""
        return JobOptions(**{name: getattr(self, name) for name in OPTIONS})

    def definition(self) -> str:
        """What was declared, as text: tells whether code that declares a schedule has changed since.

        An option at its default is left out: a declaration without any reads as it did before there were some.
        """
        declared: list[Any] = [
            self.cron,
            self.tz,
            self.type,
            self.queue,
            self.payload.decode(),
            self.priority,
            self.max_attempts,
            self.missed,
        ]
        usual = JobOptions()
        special = {
            name: _plain(getattr(self, name)) for name in OPTIONS if getattr(self, name) != getattr(usual, name)
        }
        if special:
            declared.append(special)
        return msgspec.json.encode(declared, order="deterministic").decode()


#: The names of the fields of JobOptions.
OPTIONS = JobOptions.__struct_fields__


def _plain(value: object) -> object:
    """A value whose text depends on nothing but what it says: defaults written out, all numbers as floats."""
    if isinstance(value, RetryPolicy | Unique):
        return {name: _plain(each) for name, each in msgspec.structs.asdict(value).items()}
    return float(value) if isinstance(value, int) else value


class Schedule(msgspec.Struct, frozen=True):
    """A stored schedule."""

    spec: NewSchedule
    next_run_at: datetime
    last_run_at: datetime | None = None
    last_job_id: UUID | None = None

    @property
    def name(self) -> str:
        return self.spec.name


class Fired(msgspec.Struct, frozen=True):
    """One instant of a schedule that was fired, and the job it made. `deduplicated`: the schedule's `unique` rule
    has found an earlier job instead, and made none."""

    tenant: str
    name: str
    at: datetime
    job_id: UUID
    deduplicated: bool = False


def job_for(spec: NewSchedule, at: datetime | None) -> NewJob:
    """The job that a schedule makes for one instant (None: an operator asked for a run now)."""
    return NewJob(
        type=spec.type,
        payload=spec.payload,
        queue=spec.queue,
        priority=spec.priority,
        max_attempts=spec.max_attempts,
        timeout=spec.timeout,
        retry=spec.retry,
        unique=spec.unique,
        expires_in=spec.expires_in,
        tags=spec.tags,
        headers=_headers(spec, at),
    )


def _headers(spec: NewSchedule, at: datetime | None) -> dict[str, str]:
    headers = {**spec.headers, "ropeway-schedule": spec.name}
    if at is not None:
        headers["ropeway-scheduled-for"] = at.isoformat()
    return headers
