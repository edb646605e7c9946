"""Scheduling: recurring work, each instant fired once by one conditional update."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from ropeway.core.errors import NotFound
from ropeway.core.job import DEFAULT_TENANT, NewJob
from ropeway.core.schedule import Fired, NewSchedule, Schedule, job_for
from ropeway.engines import firing
from ropeway.engines.firing import Stored
from ropeway.engines.postgres.submitting import PostgresSubmitting, Submission, insert_arrays
from ropeway.runtime.ids import uuid7s

_read_spec = msgspec.json.Decoder(NewSchedule).decode


class PostgresScheduling(PostgresSubmitting):
    async def put_schedule(
        self, schedule: NewSchedule, *, replace: bool = True, tenant: str = DEFAULT_TENANT
    ) -> Schedule:
        now = await self.now()
        while True:
            async with self.chores.transaction() as connection:
                row = await connection.fetchrow(self._schedule_sql("lock_schedule"), tenant, schedule.name)
                if row is not None and not replace:
                    raise firing.name_taken(schedule.name)
                before = next(iter(firing.readable([] if row is None else [row], _stored)), None)
                kept = firing.merged(schedule, before)
                next_run_at = firing.next_run_after_put(
                    kept, before, None if row is None else row["next_run_at"], now
                )
                verb = "insert_schedule" if row is None else "update_schedule"
                tag = await connection.execute(
                    self._schedule_sql(verb), tenant, schedule.name, _write_spec(kept.spec), kept.definition,
                    kept.spec.paused, next_run_at,
                )  # fmt: skip
                if tag != "INSERT 0 0":
                    last = (None, None) if row is None else (row["last_run_at"], row["last_job_id"])
                    return Schedule(kept.spec, next_run_at, *last)

    async def schedules(self, *, tenant: str = DEFAULT_TENANT) -> list[Schedule]:
        rows = await self.reads.fetch(self._schedule_sql("list_schedules"), tenant, writes=False)
        return firing.readable(rows, _schedule)

    async def pause_schedule(self, name: str, paused: bool, *, tenant: str = DEFAULT_TENANT) -> Schedule:
        rows = await self.chores.fetch(self._schedule_sql("pause_schedule"), tenant, name, paused)
        if not rows:
            raise NotFound("no such schedule")
        return _schedule(rows[0])

    async def delete_schedule(self, name: str, *, tenant: str = DEFAULT_TENANT) -> None:
        if not await self.chores.fetch(self._schedule_sql("delete_schedule"), tenant, name):
            raise NotFound("no such schedule")

    async def run_schedule(self, name: str, *, tenant: str = DEFAULT_TENANT) -> UUID:
        schedule = next((s for s in await self.schedules(tenant=tenant) if s.name == name), None)
        if schedule is None:
            raise NotFound("no such schedule")
        (answer,) = await self.enqueue([job_for(schedule.spec, None)], tenant=tenant)
        return answer.id

    async def fire_due(self, *, limit: int = 100) -> list[Fired]:
        return await firing.fire_due(self, limit)

    async def due_schedules(self, limit: int) -> list[tuple[str, Schedule]]:
        rows = await self.reads.fetch(self._schedule_sql("due_schedules"), limit, writes=False)
        return firing.readable(rows, lambda row: (row["tenant"], _schedule(row)))

    async def advance(
        self, tenant: str, name: str, due: datetime, next_at: datetime, jobs: Sequence[NewJob]
    ) -> list[UUID] | None:
        ids = uuid7s(len(jobs))
        batch = [Submission(tenant, job, id) for job, id in zip(jobs, ids, strict=True)]

        async def run() -> bool:
            async with self.chores.transaction() as connection:
                moved = await connection.fetchval(
                    self._schedule_sql("advance"), tenant, name, due, next_at, ids[-1] if ids else None
                )
                if moved is None:
                    return False
                if batch:
                    arrays: tuple[Any, ...] = insert_arrays(batch)
                    await connection.fetchval(self.sql("submitting", "insert_jobs"), *arrays, False)
                return True

        if not await self.with_partitions(run):
            return None
        self.wakeups.signal({(tenant, job.queue) for job in jobs})
        return ids

    def _schedule_sql(self, name: str) -> str:
        return self.sql("scheduling", name)


def _schedule(row: asyncpg.Record) -> Schedule:
    spec = msgspec.structs.replace(_read_spec(row["spec"]), paused=row["paused"])
    return Schedule(spec, row["next_run_at"], row["last_run_at"], row["last_job_id"])


def _stored(row: asyncpg.Record) -> Stored:
    return Stored(_schedule(row).spec, row["definition"])


def _write_spec(spec: NewSchedule) -> str:
    return msgspec.json.encode(spec).decode()
