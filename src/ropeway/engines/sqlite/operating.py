"""Operating: what a producer or an operator does to jobs and queues."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from msgspec.structs import asdict

from ropeway.core.errors import NotFound, RopewayError
from ropeway.core.fields import check_name
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.query import JobFilter, QueueSettings, RedriveReport
from ropeway.core.states import CancelReason, EventName, State, Verb
from ropeway.engines import operating
from ropeway.engines.protocol import Changed
from ropeway.engines.sqlfile import statements
from ropeway.engines.sqlite.finding import Question
from ropeway.engines.sqlite.rows import micros, seconds, state_of, text
from ropeway.engines.sqlite.store import SqliteStore
from ropeway.engines.sqlite.transitions import write_event
from ropeway.engines.sqlite.writer import Transaction, one_by_one
from ropeway.runtime.faultpoints import fault
from ropeway.runtime.ids import uuid_from_bytes

SQL = statements("ropeway.engines.sqlite", "sql/operating.sql")
GRANTS = statements("ropeway.engines.sqlite", "sql/leasing.sql")


class Target(NamedTuple):
    """A job that a verb is to be done to (the columns of `job`)."""

    place: int
    raw_id: bytes
    tenant: str
    queue: str
    stage: str
    blockers: int
    run_at: int
    failures: int
    priority: int
    token: bytes | None
    worker: str | None
    body: int

    @property
    def id(self) -> UUID:
        return uuid_from_bytes(self.raw_id)

    def state(self, now: int) -> State:
        return state_of(self.stage, self.blockers, self.run_at, self.failures, now)


#: A verb on one job in a state.
OnJob = Callable[[Transaction, Target, State], Changed | RopewayError]


class SqliteOperating(SqliteStore):
    async def cancel(self, ids: Sequence[UUID], *, tenant: str = DEFAULT_TENANT) -> list[Changed | RopewayError]:
        changed = await self._each(tenant, ids, _cancel)
        fault("cancel.committed")
        return changed

    async def redrive(
        self, ids: Sequence[UUID], *, by: str | None = None, tenant: str = DEFAULT_TENANT
    ) -> list[Changed | RopewayError]:
        def redrive(tx: Transaction, job: Target, before: State) -> Changed | RopewayError:
            if refused := operating.refusal(before, Verb.REDRIVE):
                return refused
            redrive_place(tx, job.place, by)
            return Changed(job.id, before, State.QUEUED)

        return await self._each(tenant, ids, redrive)

    async def redrive_where(
        self,
        where: JobFilter,
        *,
        limit: int = 10_000,
        dry_run: bool = False,
        by: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> RedriveReport:
        where = operating.redrivable(where)

        def redrive(tx: Transaction, _: None) -> RedriveReport:
            question = Question("places", tenant, tx.now)
            question.match(where)
            question.walk(tx.db, where)
            found = tx.db.execute(question.statement("ORDER BY j.id"), question.parameters).fetchall()
            if dry_run:
                return RedriveReport(len(found), [], dry_run=True)
            for place, _id in found[:limit]:
                redrive_place(tx, place, by)
            ids = [uuid_from_bytes(id) for _place, id in found[:limit]]
            return RedriveReport(len(found), ids, more=len(found) > limit)

        return await self.write(one_by_one(redrive), None, limit)

    async def reschedule(
        self,
        id: UUID,
        *,
        run_at: datetime | None = None,
        delay: float | None = None,
        priority: int | None = None,
        queue: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> Changed:
        operating.check_reschedule(run_at, delay, priority, queue, self.clock.now())

        def reschedule(tx: Transaction, _: None) -> Changed:
            job = _target(tx, tenant, id)
            if job is None:
                raise no_such_job()
            before = job.state(tx.now)
            if refused := operating.refusal(before, Verb.RESCHEDULE):
                raise refused
            moved = job._replace(priority=priority or job.priority, queue=queue or job.queue)
            if delay is not None:
                moved = moved._replace(run_at=tx.now + seconds(delay))
            elif run_at is not None:
                moved = moved._replace(run_at=max(micros(run_at), tx.now))
            tx.db.execute(SQL["reschedule"], {**moved._asdict(), "now": tx.now})
            write_event(tx, job.place, EventName.RESCHEDULED, run_at=moved.run_at, failed=job.failures > 0)
            tx.woken.add((tenant, moved.queue))
            return Changed(id, before, moved.state(tx.now))

        return await self.write(one_by_one(reschedule), None)

    async def delete(self, ids: Sequence[UUID], *, tenant: str = DEFAULT_TENANT) -> list[Changed | RopewayError]:
        return await self._each(tenant, ids, _delete)

    async def _each(self, tenant: str, ids: Sequence[UUID], verb: OnJob) -> list[Changed | RopewayError]:
        def every(tx: Transaction, _: None) -> list[Changed | RopewayError]:
            answers: list[Changed | RopewayError] = []
            for id in ids:
                job = _target(tx, tenant, id)
                answers.append(no_such_job() if job is None else verb(tx, job, job.state(tx.now)))
            return answers

        return await self.write(one_by_one(every), None, len(ids)) if ids else []

    async def pause(self, queue: str, *, tenant: str = DEFAULT_TENANT) -> None:
        asked = {"tenant": tenant, "queue": check_name(queue, "queue")}

        def pause(tx: Transaction, _: None) -> None:
            tx.db.execute(SQL["pause"], asked)

        await self.write(one_by_one(pause), None)

    async def resume(self, queue: str, *, tenant: str = DEFAULT_TENANT) -> None:
        asked = {"tenant": tenant, "queue": check_name(queue, "queue")}

        def resume(tx: Transaction, _: None) -> None:
            tx.db.execute(SQL["resume"], asked)
            tx.woken.add((tenant, queue))

        await self.write(one_by_one(resume), None)

    async def queue_settings(self, *, tenant: str = DEFAULT_TENANT) -> dict[str, QueueSettings]:
        return await self.read(lambda db: settings_of(db, tenant))

    async def set_queue(self, queue: str, settings: QueueSettings, *, tenant: str = DEFAULT_TENANT) -> None:
        asked = {"tenant": tenant, "queue": check_name(queue, "queue"), **asdict(settings)}
        # A queue that is set to the defaults is like any other queue again.
        statement = SQL["clear_settings" if settings == QueueSettings() else "keep_settings"]

        def keep(tx: Transaction, _: None) -> None:
            tx.db.execute(statement, asked)

        await self.write(one_by_one(keep), None)


def settings_of(db: sqlite3.Connection, tenant: str) -> dict[str, QueueSettings]:
    """The queues of a tenant that were given settings, by name."""
    rows = db.execute(SQL["settings"], {"tenant": tenant})
    return {
        queue: QueueSettings(depth_limit, bool(require_key), lease_seconds)
        for queue, depth_limit, require_key, lease_seconds in rows
    }


def _target(tx: Transaction, tenant: str, id: UUID) -> Target | None:
    row = tx.db.execute(SQL["job"], {"tenant": tenant, "id": id.bytes}).fetchone()
    return None if row is None else Target(*row)


def _cancel(tx: Transaction, job: Target, before: State) -> Changed | RopewayError:
    if refused := operating.refusal(before, Verb.CANCEL):
        return refused
    cancel_job(tx, job, CancelReason.REQUESTED)
    return Changed(job.id, before, State.CANCELLED)


def cancel_job(tx: Transaction, job: Target, reason: CancelReason) -> None:
    """End a live job, running or not, and revoke it from the worker that has it."""
    running = job.stage == "leased"
    if running:
        tx.db.execute(GRANTS["revoke"], {"id": job.raw_id, "token": job.token})
    tx.db.execute(SQL["cancel"], {"place": job.place, "reason": reason.value, "now": tx.now})
    worker = job.worker if running else None
    write_event(tx, job.place, EventName.CANCELLED, worker=worker, detail={"reason": reason.value})


def redrive_place(tx: Transaction, place: int, by: str | None) -> None:
    """An ended job runs again."""
    new_place, tenant, queue = tx.db.execute(SQL["redrive"], {"place": place, "now": tx.now}).fetchall()[0]
    write_event(tx, new_place, EventName.RETRIED, detail={"by": by} if by else None)
    tx.woken.add((tenant, queue))


def _delete(tx: Transaction, job: Target, before: State) -> Changed | RopewayError:
    if refused := operating.deletion_refusal(before):
        return refused
    if job.stage == "free":
        cancel_job(tx, job, CancelReason.REQUESTED)
    delete_places(tx, [job.place])
    return Changed(job.id, before, None)


def delete_places(tx: Transaction, places: Iterable[int]) -> None:
    """Remove jobs with all their rows; their events stay."""
    gone = {"places": text(list(places))}
    tx.db.execute(SQL["delete_lines"], gone)
    tx.db.execute(SQL["delete_bodies"], gone)
    tx.db.execute(SQL["delete_results"], gone)
    tx.db.execute(SQL["delete_jobs"], gone)


def no_such_job() -> NotFound:
    return NotFound("no such job")
