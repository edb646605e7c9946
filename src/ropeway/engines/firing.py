"""Recurring schedules, the same for every engine: core plans the instants, one conditional write fires them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from ropeway.core import cron
from ropeway.core.errors import ConfigurationError, EngineError, KeyInFlight, NameTaken, RopewayError
from ropeway.core.job import NewJob
from ropeway.core.schedule import MAX_CATCH_UP, Fired, NewSchedule, Schedule, job_for
from ropeway.engines.protocol import Enqueued

log = logging.getLogger("ropeway.schedules")

Row = TypeVar("Row", bound="NamedColumns")
Read = TypeVar("Read")

#: Seconds after which a schedule that still cannot be fired is told of again.
TOLD_AGAIN_AFTER = 3_600.0
#: How many complaints are remembered; beyond that the oldest are forgotten, and told again.
MOST_TOLD = 1_000


class NamedColumns(Protocol):
    """A row whose columns have names, of any driver."""

    def __getitem__(self, column: str, /) -> Any: ...


class Complaints:
    """Tells of schedules that cannot be read or fired: once for each schedule and reason, then once an hour.

    Schedules are looked at every second, by threads as well.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[tuple[str, str, str], float] = {}
        self._lock = threading.Lock()

    def tell(self, tenant: str, name: str, error: Exception) -> None:
        """Log why this schedule makes no jobs here, unless that was said not long ago."""
        reason = _reason(error)
        if self._is_new((tenant, name, reason)):
            log.error(
                "schedule %s of tenant %s makes no jobs here: %s (%s)", name, tenant, reason, _what_to_do(error)
            )

    def _is_new(self, complaint: tuple[str, str, str]) -> bool:
        now = self._clock()
        with self._lock:
            told = self._told.get(complaint)
            if told is not None and now - told < TOLD_AGAIN_AFTER:
                return False
            self._told.pop(complaint, None)
            self._told[complaint] = now
            if len(self._told) > MOST_TOLD:
                del self._told[next(iter(self._told))]
            return True


def _reason(error: Exception) -> str:
    """An error as one short line, without advice for whoever would put the schedule."""
    text = error.message if isinstance(error, RopewayError) else f"{type(error).__name__}: {error}".rstrip(": ")
    return " ".join(text.split())[:300]


def _what_to_do(error: Exception) -> str:
    if getattr(error, "pointer", None) == "/tz":
        return "install the time zone database here, the package tzdata; or replace or delete the schedule"
    return "replace or delete it; it is tried again until then"


class FiringStore(Protocol):
    """What firing needs of an engine."""

    @property
    def complaints(self) -> Complaints: ...

    async def now(self) -> datetime: ...

    async def due_schedules(self, limit: int) -> list[tuple[str, Schedule]]:
        """Schedules that are due and not paused, with their tenants."""
        ...

    async def advance(
        self, tenant: str, name: str, due: datetime, next_at: datetime, jobs: Sequence[NewJob]
    ) -> list[Enqueued] | None:
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
        except KeyInFlight:
            # Someone's open transaction holds the key of its unique job: it stays due, the next look fires it.
            continue
        except Exception as error:  # noqa: BLE001 - told; one that cannot be planned must not stop the others
            store.complaints.tell(tenant, schedule.name, error)
    return fired


async def _fire(store: FiringStore, tenant: str, schedule: Schedule, now: datetime) -> list[Fired]:
    spec = schedule.spec
    plan = cron.missed_fires(spec.cron, spec.tz, schedule.next_run_at, now, spec.missed, MAX_CATCH_UP)
    jobs = [job_for(spec, at) for at in plan.fires]
    answers = await store.advance(tenant, spec.name, schedule.next_run_at, plan.next_at, jobs)
    if answers is None:
        return []
    return [
        Fired(tenant, spec.name, at, answer.id, answer.deduplicated)
        for at, answer in zip(plan.fires, answers, strict=True)
    ]


def readable(rows: Iterable[Row], read: Callable[[Row], Read], complaints: Complaints) -> list[Read]:
    """What `read` makes of stored schedules (rows with `tenant` and `name`), without those it cannot read."""
    found = []
    for row in rows:
        try:
            found.append(read(row))
        except Exception as error:  # noqa: BLE001 - told; its zone is not on this host, or another version wrote it
            complaints.tell(row["tenant"], row["name"], error)
    return found


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Round the reading of the one schedule that was asked for: what cannot be read is a ConfigurationError."""
    try:
        yield
    except EngineError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"the schedule {name!r} cannot be read here: {_reason(error)}", hint=_what_to_do(error)
        ) from error


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
