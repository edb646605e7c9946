"""Scheduling: recurring work, each instant fired once."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from ropeway.core.errors import NotFound, RopewayError
from ropeway.core.job import DEFAULT_TENANT, NewJob
from ropeway.core.schedule import OPTIONS, Fired, JobOptions, NewSchedule, Schedule, job_for
from ropeway.engines import firing
from ropeway.engines.firing import Complaints, Stored
from ropeway.engines.protocol import Enqueued
from ropeway.engines.sqlfile import statements
from ropeway.engines.sqlite.rows import micros, moment, named, optional_moment
from ropeway.engines.sqlite.submitting import SqliteSubmitting, enqueue_all, submission
from ropeway.engines.sqlite.writer import Transaction, one_by_one
from ropeway.runtime.ids import uuid_from_bytes

SQL = statements("ropeway.engines.sqlite", "sql/scheduling.sql")

_COLUMNS = [field for field in NewSchedule.__struct_fields__ if field not in OPTIONS]
_read_options = msgspec.json.Decoder(JobOptions).decode


class SqliteScheduling(SqliteSubmitting):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.complaints = Complaints()

    async def put_schedule(
        self, schedule: NewSchedule, *, replace: bool = True, tenant: str = DEFAULT_TENANT
    ) -> Schedule:
        def put(tx: Transaction, _: None) -> Schedule:
            row = _row(tx.db, tenant, schedule.name)
            if row is not None and not replace:
                raise firing.name_taken(schedule.name)
            before = next(iter(firing.readable([] if row is None else [row], _stored, self.complaints)), None)
            kept = firing.merged(schedule, before)
            next_run_at = firing.next_run_after_put(
                kept, before, None if row is None else moment(row["next_run_at"]), moment(tx.now)
            )
            tx.db.execute(
                SQL["put_schedule"],
                {
                    **{column: getattr(kept.spec, column) for column in _COLUMNS},
                    "options": msgspec.json.encode(kept.spec.options()).decode(),
                    "tenant": tenant,
                    "definition": kept.definition,
                    "next_run_at": micros(next_run_at),
                },
            )
            return _the_schedule(tx.db, tenant, schedule.name)

        return await self.write(one_by_one(put), None)

    async def schedules(self, *, tenant: str = DEFAULT_TENANT) -> list[Schedule]:
        return await self.read(
            lambda db: firing.readable(named(db, SQL["schedules"], {"tenant": tenant}), _schedule, self.complaints)
        )

    async def get_schedule(self, name: str, *, tenant: str = DEFAULT_TENANT) -> Schedule:
        return await self.read(lambda db: _the_schedule(db, tenant, name))

    async def pause_schedule(self, name: str, paused: bool, *, tenant: str = DEFAULT_TENANT) -> Schedule:
        def pause(tx: Transaction, _: None) -> Schedule:
            # Read first: what is refused here undoes nothing of what other calls wrote in this transaction.
            schedule = _the_schedule(tx.db, tenant, name)
            tx.db.execute(SQL["pause_schedule"], {"tenant": tenant, "name": name, "paused": paused})
            return msgspec.structs.replace(schedule, spec=msgspec.structs.replace(schedule.spec, paused=paused))

        return await self.write(one_by_one(pause), None)

    async def delete_schedule(self, name: str, *, tenant: str = DEFAULT_TENANT) -> None:
        def delete(tx: Transaction, _: None) -> None:
            if not tx.db.execute(SQL["delete_schedule"], {"tenant": tenant, "name": name}).rowcount:
                raise _no_such_schedule()

        await self.write(one_by_one(delete), None)

    async def run_schedule(self, name: str, *, tenant: str = DEFAULT_TENANT) -> UUID:
        def run(tx: Transaction, _: None) -> UUID:
            spec = _the_schedule(tx.db, tenant, name).spec
            return self._enqueue(tx, tenant, [job_for(spec, None)])[0].id

        return await self.write(one_by_one(run), None)

    async def fire_due(self, *, limit: int = 100) -> list[Fired]:
        return await firing.fire_due(self, limit)

    async def due_schedules(self, limit: int) -> list[tuple[str, Schedule]]:
        asked = {"now": micros(self.clock.now()), "limit": limit}
        return await self.read(
            lambda db: firing.readable(
                named(db, SQL["due_schedules"], asked),
                lambda row: (row["tenant"], _schedule(row)),
                self.complaints,
            )
        )

    async def advance(
        self, tenant: str, name: str, due: datetime, next_at: datetime, jobs: Sequence[NewJob]
    ) -> list[Enqueued] | None:
        which = {"tenant": tenant, "name": name}

        def advance(tx: Transaction, _: None) -> list[Enqueued] | None:
            moved = {**which, "due": micros(due), "next_at": micros(next_at)}
            if not tx.db.execute(SQL["advance"], moved).rowcount:
                return None
            answers = self._enqueue(tx, tenant, jobs)
            if answers:
                tx.db.execute(SQL["note_run"], {**which, "now": tx.now, "job_id": answers[-1].id.bytes})
            return answers

        return await self.write(one_by_one(advance), None, len(jobs) + 1)

    def _enqueue(self, tx: Transaction, tenant: str, jobs: Sequence[NewJob]) -> list[Enqueued]:
        (answers,) = enqueue_all(tx, [submission(tenant, jobs, self.rules.idempotency_window)])
        if isinstance(answers, RopewayError):
            raise answers
        return answers


def _row(db: sqlite3.Connection, tenant: str, name: str) -> sqlite3.Row | None:
    rows = named(db, SQL["schedule"], {"tenant": tenant, "name": name})
    return rows[0] if rows else None


def _the_schedule(db: sqlite3.Connection, tenant: str, name: str) -> Schedule:
    row = _row(db, tenant, name)
    if row is None:
        raise _no_such_schedule()
    with firing.reading(name):
        return _schedule(row)


def _schedule(row: sqlite3.Row) -> Schedule:
    job_id = row["last_job_id"]
    return Schedule(
        _spec(row),
        moment(row["next_run_at"]),
        optional_moment(row["last_run_at"]),
        None if job_id is None else uuid_from_bytes(job_id),
    )


def _stored(row: sqlite3.Row) -> Stored:
    return Stored(_spec(row), row["definition"])


def _spec(row: sqlite3.Row) -> NewSchedule:
    options = msgspec.structs.asdict(_read_options(row["options"]))
    return NewSchedule(
        **{**{column: row[column] for column in _COLUMNS}, "paused": bool(row["paused"]), **options}
    )


def _no_such_schedule() -> NotFound:
    return NotFound("no such schedule")
