"""Scheduling: recurring work, each instant fired once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from ropeway.core.errors import NotFound
from ropeway.core.job import DEFAULT_TENANT, NewJob
from ropeway.core.schedule import Fired, NewSchedule, Schedule, job_for
from ropeway.engines import firing
from ropeway.engines.firing import Complaints, Stored
from ropeway.engines.memory.rows import ScheduleRow
from ropeway.engines.memory.submitting import MemorySubmitting
from ropeway.engines.protocol import Enqueued


class MemoryScheduling(MemorySubmitting):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.complaints = Complaints()

    async def put_schedule(
        self, schedule: NewSchedule, *, replace: bool = True, tenant: str = DEFAULT_TENANT
    ) -> Schedule:
        row = self.stored_schedules.get((tenant, schedule.name))
        if row is not None and not replace:
            raise firing.name_taken(schedule.name)
        before = None if row is None else Stored(row.spec, row.definition)
        kept = firing.merged(schedule, before)
        next_run_at = firing.next_run_after_put(
            kept, before, None if row is None else row.next_run_at, self.clock.now()
        )
        if row is None:
            row = ScheduleRow(kept.spec, kept.definition, next_run_at)
            self.stored_schedules[tenant, schedule.name] = row
        else:
            row.spec, row.definition, row.next_run_at = kept.spec, kept.definition, next_run_at
        return row.schedule()

    async def schedules(self, *, tenant: str = DEFAULT_TENANT) -> list[Schedule]:
        rows = [row for (owner, _), row in self.stored_schedules.items() if owner == tenant]
        return sorted((row.schedule() for row in rows), key=lambda schedule: schedule.name)

    async def get_schedule(self, name: str, *, tenant: str = DEFAULT_TENANT) -> Schedule:
        return self._schedule(tenant, name).schedule()

    async def pause_schedule(self, name: str, paused: bool, *, tenant: str = DEFAULT_TENANT) -> Schedule:
        row = self._schedule(tenant, name)
        with firing.reading(name):
            row.spec = msgspec.structs.replace(row.spec, paused=paused)
        return row.schedule()

    async def delete_schedule(self, name: str, *, tenant: str = DEFAULT_TENANT) -> None:
        self._schedule(tenant, name)
        del self.stored_schedules[tenant, name]

    async def run_schedule(self, name: str, *, tenant: str = DEFAULT_TENANT) -> UUID:
        row = self._schedule(tenant, name)
        (answer,) = self.enqueue_all([job_for(row.spec, None)], tenant)
        return answer.id

    async def fire_due(self, *, limit: int = 100) -> list[Fired]:
        return await firing.fire_due(self, limit)

    async def due_schedules(self, limit: int) -> list[tuple[str, Schedule]]:
        now = self.clock.now()
        due = [
            (tenant, row.schedule())
            for (tenant, _), row in self.stored_schedules.items()
            if not row.spec.paused and row.next_run_at <= now
        ]
        return sorted(due, key=lambda pair: pair[1].next_run_at)[:limit]

    async def advance(
        self, tenant: str, name: str, due: datetime, next_at: datetime, jobs: Sequence[NewJob]
    ) -> list[Enqueued] | None:
        row = self.stored_schedules.get((tenant, name))
        if row is None or row.next_run_at != due or row.spec.paused:
            return None
        row.next_run_at = next_at
        answers = self.enqueue_all(jobs, tenant)
        if answers:
            row.last_run_at, row.last_job_id = self.clock.now(), answers[-1].id
        return answers

    def _schedule(self, tenant: str, name: str) -> ScheduleRow:
        row = self.stored_schedules.get((tenant, name))
        if row is None:
            raise NotFound("no such schedule")
        return row
