"""Recurring schedules, the same for every engine: core plans the instants, one conditional write fires them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import UUID

import msgspec

from ropeway.core import cron
from ropeway.core.errors import EngineError, NameTaken
from ropeway.core.job import NewJob
from ropeway.core.schedule import MAX_CATCH_UP, Fired, NewSchedule, Schedule, job_for

log = logging.getLogger("ropeway.schedules")

Row = TypeVar("Row", bound="NamedColumns")
Read = TypeVar("Read")


class NamedColumns(Protocol):
    """A row whose columns have names, of any driver."""

    def __getitem__(self, column: str, /) -> Any: ...


class FiringStore(Protocol):
    """What firing needs of an engine."""

    async def now(self) -> datetime: ...

    async def due_schedules(self, limit: int) -> list[tuple[str, Schedule]]:
        """Schedules that are due and not paused, with their tenants."""
        ...

    async def advance(
        self, tenant: str, name: str, due: datetime, next_at: datetime, jobs: Sequence[NewJob]
    ) -> list[UUID] | None:
        """In one transaction: move `next_at` on, if it still is `due`, and enqueue `jobs`. None: someone else
        fired it."""
        ...


async def fire_due(store: FiringStore, limit: int) -> list[Fired]:
    """Fire every schedule that is due. Any number of callers fire an instant once."""
    now = await store.now()
    fired: list[Fired] = []
    for tenant, schedule in await store.due_schedules(limit):
        try:
            fired += await _fire(store, tenant, schedule, now)
        except EngineError:
            raise
        except Exception:
            # One that cannot be planned (its time zone is not on this host, say) must not stop the others.
            log.exception("schedule %s of tenant %s cannot be fired", schedule.name, tenant)
    return fired


async def _fire(store: FiringStore, tenant: str, schedule: Schedule, now: datetime) -> list[Fired]:
    spec = schedule.spec
    plan = cron.missed_fires(spec.cron, spec.tz, schedule.next_run_at, now, spec.missed, MAX_CATCH_UP)
    jobs = [job_for(spec, at) for at in plan.fires]
    ids = await store.advance(tenant, spec.name, schedule.next_run_at, plan.next_at, jobs)
    if ids is None:
        return []
    return [Fired(tenant, spec.name, at, id) for at, id in zip(plan.fires, ids, strict=True)]


def readable(rows: Iterable[Row], read: Callable[[Row], Read]) -> list[Read]:
    """What `read` makes of stored schedules (rows with `tenant` and `name`), without those it cannot read."""
    found = []
    for row in rows:
        try:
            found.append(read(row))
        except Exception:
            # Its time zone is not on this host, or another version wrote it: that must not hide the others.
            log.exception("schedule %s of tenant %s cannot be read", row["name"], row["tenant"])
    return found


class Stored(NamedTuple):
    """What is kept of a schedule besides its times: the spec in force and what code last declared."""

    spec: NewSchedule
    definition: str | None


def merged(spec: NewSchedule, stored: Stored | None) -> Stored:
    """What to keep when `spec` is put over what is `stored`.

    A declaration in code that has not changed since it was written leaves an operator's changes alone; an
    operator's change to a schedule declared in code does not make it forget that declaration.
    """
    definition = spec.definition() if spec.source == "code" else None
    if stored is None:
        return Stored(spec, definition)
    if spec.source == "api":
        return Stored(msgspec.structs.replace(spec, source=stored.spec.source), stored.definition)
    if stored.definition == definition:
        return stored
    return Stored(spec, definition)


def next_run_after_put(
    kept: Stored, before: Stored | None, next_run_at: datetime | None, now: datetime
) -> datetime:
    """The next instant of a schedule that was just put: the one it had, unless its times changed."""
    unchanged = before is not None and (before.spec.cron, before.spec.tz) == (kept.spec.cron, kept.spec.tz)
    if unchanged and next_run_at is not None:
        return next_run_at
    return cron.next_fire(kept.spec.cron, kept.spec.tz, now)


def name_taken(name: str) -> NameTaken:
    """The refusal of a new schedule whose name exists."""
    return NameTaken(f"there is a schedule named {name!r} already", hint="choose another name, or replace it")
