"""Scheduling: recurring work, each instant fired once by one conditional update."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from ropeway.core.errors import NotFound, Unavailable
from ropeway.core.job import DEFAULT_TENANT, NewJob
from ropeway.core.schedule import Fired, NewSchedule, Schedule, job_for
from ropeway.engines import firing
from ropeway.engines.firing import Complaints, Stored
from ropeway.engines.postgres.fields import Submission, insert_arrays
from ropeway.engines.postgres.submitting import PostgresSubmitting, in_flight, is_held, taken
from ropeway.engines.protocol import Enqueued
from ropeway.runtime.ids import uuid7s

_read_spec = msgspec.json.Decoder(NewSchedule).decode


class PostgresScheduling(PostgresSubmitting):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.complaints = Complaints()

    async def put_schedule(
        self, schedule: NewSchedule, *, replace: bool = True, tenant: str = DEFAULT_TENANT
    ) -> Schedule:
        now = await self.now()
        while True:
            async with self.acts.transaction() as connection:
                row = await connection.fetchrow(self._schedule_sql("lock_schedule"), tenant, schedule.name)
                if row is not None and not replace:
                    raise firing.name_taken(schedule.name)
                before = next(iter(firing.readable([] if row is None else [row], _stored, self.complaints)), None)
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
        return firing.readable(rows, _schedule, self.complaints)

    async def get_schedule(self, name: str, *, tenant: str = DEFAULT_TENANT) -> Schedule:
        rows = await self.reads.fetch(self._schedule_sql("find_schedule"), tenant, name, writes=False)
        return _the_schedule(rows[0] if rows else None, name)

    async def pause_schedule(self, name: str, paused: bool, *, tenant: str = DEFAULT_TENANT) -> Schedule:
        async with self.acts.transaction() as connection:
            row = await connection.fetchrow(self._schedule_sql("pause_schedule"), tenant, name, paused)
            return _the_schedule(row, name)

    async def delete_schedule(self, name: str, *, tenant: str = DEFAULT_TENANT) -> None:
        if not await self.acts.fetch(self._schedule_sql("delete_schedule"), tenant, name):
            raise NotFound("no such schedule")

    async def run_schedule(self, name: str, *, tenant: str = DEFAULT_TENANT) -> UUID:
        spec = (await self.get_schedule(name, tenant=tenant)).spec
        (answer,) = await self.enqueue([job_for(spec, None)], tenant=tenant)
        return answer.id

    async def fire_due(self, *, limit: int = 100) -> list[Fired]:
        return await firing.fire_due(self, limit)

    async def due_schedules(self, limit: int) -> list[tuple[str, Schedule]]:
        rows = await self.reads.fetch(self._schedule_sql("due_schedules"), limit, writes=False)
        return firing.readable(rows, lambda row: (row["tenant"], _schedule(row)), self.complaints)

    async def advance(
        self, tenant: str, name: str, due: datetime, next_at: datetime, jobs: Sequence[NewJob]
    ) -> list[Enqueued] | None:
        batch = [Submission(tenant, job, id) for job, id in zip(jobs, uuid7s(len(jobs)), strict=True)]

        async def run() -> list[Enqueued] | None:
            async with self.chores.transaction() as connection:
                moved = await connection.fetchval(self._schedule_sql("advance"), tenant, name, due, next_at)
                if moved is None:
                    return None
                if not batch:
                    return []
                answers = await self._insert_scheduled(connection, batch)
                await connection.execute(self._schedule_sql("note_run"), tenant, name, answers[-1].id)
                return answers

        try:
            answers = await self.with_retries(run)
        except Unavailable as error:
            if is_held(error):
                raise in_flight() from error
            raise
        if answers:
            self.wakeups.signal({(tenant, job.queue) for job in jobs})
        return answers

    async def _insert_scheduled(
        self, connection: asyncpg.Connection[asyncpg.Record], batch: Sequence[Submission]
    ) -> list[Enqueued]:
        """Store the jobs of one schedule's instants, in the caller's transaction."""
        if batch[0].job.unique is not None:
            return await self.insert_unique_in(connection, batch)
        (row,) = await connection.fetch(self.sql("submitting", "add_jobs"), *insert_arrays(batch), False)
        return taken(batch, row)

    def _schedule_sql(self, name: str) -> str:
        return self.sql("scheduling", name)


def _the_schedule(row: asyncpg.Record | None, name: str) -> Schedule:
    if row is None:
        raise NotFound("no such schedule")
    with firing.reading(name):
        return _schedule(row)


def _schedule(row: asyncpg.Record) -> Schedule:
    spec = msgspec.structs.replace(_read_spec(row["spec"]), paused=row["paused"])
    return Schedule(spec, row["next_run_at"], row["last_run_at"], row["last_job_id"])


def _stored(row: asyncpg.Record) -> Stored:
    return Stored(_schedule(row).spec, row["definition"])


def _write_spec(spec: NewSchedule) -> str:
    return msgspec.json.encode(spec).decode()
