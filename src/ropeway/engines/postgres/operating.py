"""Operating: what a producer or an operator does to jobs and queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from ropeway.core.errors import NotFound, RopewayError
from ropeway.core.fields import check_name, check_time
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.query import JobFilter, QueueSettings, RedriveReport
from ropeway.core.states import CancelReason, State, Verb
from ropeway.engines import operating
from ropeway.engines.postgres.filters import Conditions, ended_conditions
from ropeway.engines.postgres.rows import stored_settings
from ropeway.engines.postgres.store import PostgresStore
from ropeway.engines.protocol import Changed
from ropeway.engines.settling import after_write
from ropeway.runtime.faultpoints import fault

#: Jobs redriven per transaction: a long redrive is many short transactions, so a kill in the middle loses none.
REDRIVE_STEP = 500


class PostgresOperating(PostgresStore):
    async def cancel(self, ids: Sequence[UUID], *, tenant: str = DEFAULT_TENANT) -> list[Changed | RopewayError]:
        rows = await self.with_retries(
            lambda: self.acts.fetch(self.sql("operating", "cancel_jobs"), *_cancel_arguments(ids, tenant, False))
        )
        fault("cancel.committed")
        unchanged = [id for id, row in zip(ids, rows, strict=True) if not row["before"]]
        states = await after_write(self._states(tenant, unchanged))
        return [
            Changed(id, State(row["before"]), State.CANCELLED)
            if row["before"]
            else _refused(states.get(id), Verb.CANCEL)
            for id, row in zip(ids, rows, strict=True)
        ]

    async def redrive(
        self, ids: Sequence[UUID], *, by: str | None = None, tenant: str = DEFAULT_TENANT
    ) -> list[Changed | RopewayError]:
        rows = await self._redrive(ids, by, tenant)
        unchanged = [id for id, row in zip(ids, rows, strict=True) if not row["before"]]
        states = await after_write(self._states(tenant, unchanged))
        return [
            Changed(id, State(row["before"]), State.QUEUED)
            if row["before"]
            else _refused(states.get(id), Verb.REDRIVE)
            for id, row in zip(ids, rows, strict=True)
        ]

    async def _redrive(self, ids: Sequence[UUID], by: str | None, tenant: str) -> list[asyncpg.Record]:
        detail = None if by is None else msgspec.json.encode({"by": by}).decode()
        rows = await self.with_retries(
            lambda: self.acts.fetch(self.sql("operating", "redrive_jobs"), tenant, list(ids), detail)
        )
        self.wakeups.signal({(tenant, row["queue"]) for row in rows if row["before"]})
        return rows

    async def redrive_where(
        self,
        where: JobFilter,
        *,
        limit: int = 10_000,
        dry_run: bool = False,
        by: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> RedriveReport:
        conditions = Conditions()
        if not ended_conditions(conditions, operating.redrivable(where), tenant):
            return RedriveReport(0, [], dry_run=dry_run)
        table = f"FROM {self.schema}.archive j{conditions.where()}"
        matched: int = await self.reads.value(f"SELECT count(*) {table}", *conditions.parameters, writes=False)
        if dry_run:
            return RedriveReport(matched, [], dry_run=True)
        rows = await self.reads.fetch(
            f"SELECT j.id {table} ORDER BY j.id LIMIT {conditions.mark(limit)}",
            *conditions.parameters,
            writes=False,
        )
        retried: list[UUID] = []
        for start in range(0, len(rows), REDRIVE_STEP):
            step = [row["id"] for row in rows[start : start + REDRIVE_STEP]]
            redriving = self._redrive(step, by, tenant)
            done = await (after_write(redriving) if retried else redriving)
            retried += [id for id, row in zip(step, done, strict=True) if row["before"]]
            fault("redrive.between")
        return RedriveReport(matched, retried, more=matched > limit)

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
        if run_at is not None:
            run_at = check_time(run_at, "run_at")
        operating.check_reschedule(run_at, delay, priority, queue, await self.clock_for(run_at))
        rows = await self.with_retries(
            lambda: self.acts.fetch(
                self.sql("operating", "reschedule_job"), tenant, id, run_at, delay, priority, queue
            )
        )
        if not rows:
            states = await self._states(tenant, [id])
            raise _refused(states.get(id), Verb.RESCHEDULE)
        self.cursors.disturb(tenant, rows[0]["queue"])
        self.wakeups.signal({(tenant, rows[0]["queue"])})
        return Changed(id, State(rows[0]["before"]), State(rows[0]["state"]))

    async def delete(self, ids: Sequence[UUID], *, tenant: str = DEFAULT_TENANT) -> list[Changed | RopewayError]:
        async def run() -> dict[UUID, State]:
            async with self.acts.transaction() as connection:
                cancelled = await connection.fetch(
                    self.sql("operating", "cancel_jobs"), *_cancel_arguments(ids, tenant, True)
                )
                before = {id: row["before"] for id, row in zip(ids, cancelled, strict=True) if row["before"]}
                rows = await connection.fetch(self.sql("operating", "delete_ended"), tenant, list(ids))
                removed = [row["id"] for row in rows]
                await connection.fetchval(self.sql("lines", "delete_lines"), [tenant] * len(removed), removed)
                return {row["id"]: State(before.get(row["id"], row["state"])) for row in rows}

        gone = await self.with_retries(run)
        states = await after_write(self._states(tenant, [id for id in ids if id not in gone]))
        answers: list[Changed | RopewayError] = []
        for id in ids:
            # An id that is named twice is gone the second time.
            before_it = gone.pop(id, None)
            answers.append(Changed(id, before_it, None) if before_it else _deletion_refused(states.get(id)))
        return answers

    async def _states(self, tenant: str, ids: Sequence[UUID]) -> Mapping[UUID, State | None]:
        if not ids:
            return {}
        rows = await self.reads.fetch(self.sql("operating", "states"), tenant, list(ids), writes=False)
        return {row["id"]: None if row["state"] is None else State(row["state"]) for row in rows}

    async def pause(self, queue: str, *, tenant: str = DEFAULT_TENANT) -> None:
        await self._set_paused(tenant, queue, True)

    async def resume(self, queue: str, *, tenant: str = DEFAULT_TENANT) -> None:
        await self._set_paused(tenant, queue, False)
        # Sweeps of a paused queue found nothing in it, whatever had come back to it meanwhile.
        self.cursors.disturb(tenant, queue)
        self.wakeups.signal({(tenant, queue)})

    async def _set_paused(self, tenant: str, queue: str, paused: bool) -> None:
        arguments: tuple[Any, ...] = (tenant, check_name(queue, "queue"), paused)
        await self.acts.fetch(self.sql("operating", "pause"), *arguments)

    async def queue_settings(self, *, tenant: str = DEFAULT_TENANT) -> dict[str, QueueSettings]:
        rows = await self.access.fetch(self.sql("operating", "queue_settings"), tenant, writes=False)
        return {row["queue"]: stored_settings(row) for row in rows}

    async def set_queue(self, queue: str, settings: QueueSettings, *, tenant: str = DEFAULT_TENANT) -> None:
        check_name(queue, "queue")
        await self.acts.fetch(
            self.sql("operating", "set_queue"),
            tenant, queue, settings.depth_limit, settings.require_key, settings.lease_seconds,
        )  # fmt: skip


def _cancel_arguments(ids: Sequence[UUID], tenant: str, spare_running: bool) -> tuple[Any, ...]:
    return ([tenant] * len(ids), list(ids), CancelReason.REQUESTED.value, False, spare_running)


def _refused(state: State | None, verb: Verb) -> RopewayError:
    """Why nothing changed: there is no such job, or its state forbids it."""
    if state is None:
        return NotFound("no such job")
    # A job that got into a fitting state after the statement looked: the caller may simply try again.
    return operating.refusal(state, verb) or NotFound("no such job")


def _deletion_refused(state: State | None) -> RopewayError:
    return NotFound("no such job") if state is None else operating.running_not_deleted()
