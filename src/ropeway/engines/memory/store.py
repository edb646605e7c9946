"""The state that all parts of the memory engine share, and the few ways in which it changes."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from ropeway.core.access import ApiKey, Tenant
from ropeway.core.auditlog import Action
from ropeway.core.errors import NotFound
from ropeway.core.events import Event, event_data, event_state, milliseconds
from ropeway.core.fleet import WorkerInfo
from ropeway.core.history import Sample
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.limits import Bucket
from ropeway.core.payload import JobError
from ropeway.core.query import QueueSettings
from ropeway.core.states import CancelReason, EventName, State, Verb
from ropeway.engines.choosing import PriorityOrders
from ropeway.engines.memory.lanes import Lanes
from ropeway.engines.memory.rows import GrantRow, JobRow, KeyRow, ScheduleRow
from ropeway.engines.protocol import EngineRules
from ropeway.runtime.clock import Clock, SystemClock


class MemorySubscription:
    """One listener: remembers a signal until it is asked for."""

    def __init__(self, store: MemoryStore, lanes: frozenset[tuple[str, str]]) -> None:
        self._store = store
        self.lanes = lanes
        self.signalled = asyncio.Event()

    async def wait(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self.signalled.wait()
        except TimeoutError:
            return False
        self.signalled.clear()
        return True

    async def close(self) -> None:
        self._store.subscriptions.pop(self, None)


class MemoryStore:
    """All jobs, grants, keys, schedules and events of one memory engine."""

    def __init__(self, rules: EngineRules = EngineRules(), clock: Clock | None = None) -> None:
        self.rules = rules
        self.clock: Clock = clock or SystemClock()
        self.jobs: dict[UUID, JobRow] = {}
        self.samples: dict[tuple[str, int, datetime, str], Sample] = {}
        self.lanes = Lanes(self.jobs.get)
        self.grants: dict[UUID, GrantRow] = {}
        self.job_keys: dict[tuple[str, str, str], KeyRow] = {}
        self.stored_schedules: dict[tuple[str, str], ScheduleRow] = {}
        self.paused: set[tuple[str, str]] = set()
        self.settings_of: dict[tuple[str, str], QueueSettings] = {}
        self.attendance: dict[tuple[str, str], WorkerInfo] = {}
        self.stored_tenants = {DEFAULT_TENANT: Tenant(DEFAULT_TENANT, DEFAULT_TENANT, self.clock.now())}
        self.api_keys: dict[str, ApiKey] = {}
        self.buckets: dict[tuple[str, str], Bucket] = {}
        self.noted_actions: list[tuple[str, Action]] = []
        self.action_numbers = itertools.count(1)
        self.events: list[Event] = []
        #: How many events retention has removed: positions in the log count from the very first one.
        self.events_removed = 0
        self.places = itertools.count(1)
        self.orders = PriorityOrders(rules.ageing_seconds, rules.ageing_lookup_seconds)
        #: In the order in which they came, so that a run that is made again is the same.
        self.subscriptions: dict[MemorySubscription, None] = {}
        self._secret = secrets.token_bytes(32)

    async def now(self) -> datetime:
        return self.clock.now()

    async def secret(self) -> bytes:
        return self._secret

    async def subscribe(self, queues: Collection[str], *, tenant: str = DEFAULT_TENANT) -> MemorySubscription:
        subscription = MemorySubscription(self, frozenset((tenant, queue) for queue in queues))
        self.subscriptions[subscription] = None
        return subscription

    def signal(self, tenant: str, queue: str) -> None:
        """Tell listeners of a lane that there may be work."""
        for subscription in self.subscriptions:
            if (tenant, queue) in subscription.lanes:
                subscription.signalled.set()

    def row(self, tenant: str, id: UUID) -> JobRow | None:
        row = self.jobs.get(id)
        return row if row is not None and row.tenant == tenant else None

    def the_row(self, tenant: str, id: UUID) -> JobRow:
        row = self.row(tenant, id)
        if row is None:
            raise no_such_job()
        return row

    def locked_until(self, row: JobRow) -> datetime | None:
        grant = None if row.token is None else self.grants.get(row.token)
        return None if grant is None else grant.expires_at

    def queue_up(self, row: JobRow) -> None:
        """Put a free job into its lane and say so."""
        self.lanes.add(row)
        self.signal(row.tenant, row.queue)

    def drop_ticket(self, row: JobRow, *, spent_by: Verb | None) -> None:
        """Take the lease off a job. `spent_by` None: the worker did not do it, its ticket is simply void."""
        grant = None if row.token is None else self.grants.get(row.token)
        row.spent_token = row.token if spent_by is not None else None
        row.spent_verb = spent_by
        row.token = None
        row.worker = None
        if grant is not None:
            grant.open.discard(row.id)
            if not grant.open and not grant.revoked:
                del self.grants[grant.token]

    def end(
        self,
        row: JobRow,
        state: State,
        *,
        spent_by: Verb | None = None,
        cancel_reason: CancelReason | None = None,
    ) -> None:
        """Move a job to one of its ends. The caller writes the event."""
        row.ended = state
        row.finished_at = row.updated_at = self.clock.now()
        row.cancel_reason = cancel_reason
        row.progress = None
        self.drop_ticket(row, spent_by=spent_by)

    def cancel_row(self, row: JobRow, reason: CancelReason) -> None:
        """End a live job, running or not, and revoke it from the worker that has it."""
        worker = row.worker
        grant = None if row.token is None else self.grants.get(row.token)
        if grant is not None:
            grant.revoked.append(row.id)
        self.end(row, State.CANCELLED, cancel_reason=reason)
        self.write_event(row, EventName.CANCELLED, worker=worker, detail={"reason": reason.value})

    def write_event(
        self,
        row: JobRow,
        event: EventName,
        *,
        worker: str | None = None,
        run_at: datetime | None = None,
        seconds: float | None = None,
        error: JobError | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Append a job's next event."""
        at = self.clock.now()
        row.event_seq += 1
        self.events.append(
            Event(
                event=event,
                tenant=row.tenant,
                job_id=row.id,
                seq=row.event_seq,
                at=at,
                type=row.new.type,
                queue=row.queue,
                state=event_state(event, at=at, run_at=run_at, failed=row.failures > 0),
                attempt=row.attempt,
                worker_id=worker,
                data=event_data(
                    event,
                    run_at=run_at,
                    priority=row.priority if event is EventName.ENQUEUED else None,
                    millis=None if seconds is None else milliseconds(seconds),
                    error=error,
                    detail=detail or {},
                ),
            )
        )


def later(now: datetime, seconds: float) -> datetime:
    return now + timedelta(seconds=seconds)


def no_such_job() -> NotFound:
    return NotFound("no such job")
