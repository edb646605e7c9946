"""Recurring work: a schedule is a cron expression, a time zone and the job it makes."""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from ropeway.core import cron, fields
from ropeway.core.errors import FieldError
from ropeway.core.job import (
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    NewJob,
)
from ropeway.core.payload import check_payload

Missed = Literal["skip", "once", "all"]

#: How many missed instants of a `missed="all"` schedule are made up for in one go.
MAX_CATCH_UP = 100


class NewSchedule(msgspec.Struct, frozen=True):
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
        fields.check_name(self.type, "type")
        fields.check_name(self.queue, "queue")
        fields.check_integer(self.priority, "priority", 1, 9)
        fields.check_integer(self.max_attempts, "max_attempts", 1, fields.MAX_ATTEMPTS_LIMIT)
        check_payload(self.payload)
        cron.check_cron(self.cron, self.tz)
        if self.missed not in ("skip", "once", "all"):
            raise FieldError("missed must be 'skip', 'once' or 'all'", pointer="/missed")

    def definition(self) -> str:
        """What was declared, as text: tells whether code that declares a schedule has changed since."""
        return msgspec.json.encode(
            [
                self.cron,
                self.tz,
                self.type,
                self.queue,
                self.payload.decode(),
                self.priority,
                self.max_attempts,
                self.missed,
            ]
        ).decode()


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
    """One instant of a schedule that was fired, and the job it made."""

    tenant: str
    name: str
    at: datetime
    job_id: UUID


def job_for(spec: NewSchedule, at: datetime | None) -> NewJob:
    """The job that a schedule makes for one instant (None: an operator asked for a run now)."""
    headers = {"ropeway-schedule": spec.name}
    if at is not None:
        headers["ropeway-scheduled-for"] = at.isoformat()
    return NewJob(
        type=spec.type,
        payload=spec.payload,
        queue=spec.queue,
        priority=spec.priority,
        max_attempts=spec.max_attempts,
        headers=headers,
    )
