"""Operating: what a producer or an operator does to jobs and queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from uuid import UUID

from ropeway.core import query
from ropeway.core.errors import RopewayError
from ropeway.core.fields import check_name
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.query import JobFilter, QueueSettings, RedriveReport
from ropeway.core.states import CancelReason, EventName, State, Verb
from ropeway.engines import operating
from ropeway.engines.memory.rows import JobRow
from ropeway.engines.memory.store import MemoryStore, later, no_such_job
from ropeway.engines.protocol import Changed


class MemoryOperating(MemoryStore):
    async def cancel(self, ids: Sequence[UUID], *, tenant: str = DEFAULT_TENANT) -> list[Changed | RopewayError]:
        def cancel(row: JobRow, before: State) -> Changed | RopewayError:
            if refused := operating.refusal(before, Verb.CANCEL):
                return refused
            self.cancel_row(row, CancelReason.REQUESTED)
            return Changed(row.id, before, State.CANCELLED)

        return self._each(tenant, ids, cancel)

    async def redrive(
        self, ids: Sequence[UUID], *, by: str | None = None, tenant: str = DEFAULT_TENANT
    ) -> list[Changed | RopewayError]:
        def redrive(row: JobRow, before: State) -> Changed | RopewayError:
            if refused := operating.refusal(before, Verb.REDRIVE):
                return refused
            self._redrive(row, by)
            return Changed(row.id, before, State.QUEUED)

        return self._each(tenant, ids, redrive)

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
        now = self.clock.now()
        found = sorted(
            row.id
            for row in self.jobs.values()
            if row.tenant == tenant and query.matches(row.job(now, None), where)
        )
        if dry_run:
            return RedriveReport(len(found), [], dry_run=True)
        for id in found[:limit]:
            self._redrive(self.jobs[id], by)
        return RedriveReport(len(found), found[:limit], more=len(found) > limit)

    def _redrive(self, row: JobRow, by: str | None) -> None:
        now = self.clock.now()
        row.ended = row.finished_at = row.dead_reason = row.cancel_reason = None
        row.result = None
        row.attempts = row.failures = row.lost = 0
        row.expires_at = None
        row.run_at = row.updated_at = now
        row.place = next(self.places)
        row.spent_token = row.spent_verb = None
        self.write_event(row, EventName.RETRIED, detail={"by": by} if by else None)
        self.queue_up(row)

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
        now = self.clock.now()
        operating.check_reschedule(run_at, delay, priority, queue, now)
        row = self.the_row(tenant, id)
        before = row.state(now)
        if refused := operating.refusal(before, Verb.RESCHEDULE):
            raise refused
        if delay is not None:
            row.run_at = later(now, delay)
        elif run_at is not None:
            row.run_at = max(run_at, now)
        row.priority = priority or row.priority
        row.queue = queue or row.queue
        row.updated_at = now
        self.write_event(row, EventName.RESCHEDULED, run_at=row.run_at)
        self.queue_up(row)
        return Changed(id, before, row.state(now))

    async def delete(self, ids: Sequence[UUID], *, tenant: str = DEFAULT_TENANT) -> list[Changed | RopewayError]:
        def delete(row: JobRow, before: State) -> Changed | RopewayError:
            if refused := operating.deletion_refusal(before):
                return refused
            if row.ended is None:
                self.cancel_row(row, CancelReason.REQUESTED)
            del self.jobs[row.id]
            return Changed(row.id, before, None)

        return self._each(tenant, ids, delete)

    def _each(
        self,
        tenant: str,
        ids: Sequence[UUID],
        apply: Callable[[JobRow, State], Changed | RopewayError],
    ) -> list[Changed | RopewayError]:
        answers: list[Changed | RopewayError] = []
        for id in ids:
            row = self.row(tenant, id)
            answers.append(no_such_job() if row is None else apply(row, row.state(self.clock.now())))
        return answers

    async def pause(self, queue: str, *, tenant: str = DEFAULT_TENANT) -> None:
        self.paused.add((tenant, check_name(queue, "queue")))

    async def resume(self, queue: str, *, tenant: str = DEFAULT_TENANT) -> None:
        self.paused.discard((tenant, check_name(queue, "queue")))
        self.signal(tenant, queue)

    async def queue_settings(self, *, tenant: str = DEFAULT_TENANT) -> dict[str, QueueSettings]:
        return {
            queue: settings for (owner, queue), settings in sorted(self.settings_of.items()) if owner == tenant
        }

    async def set_queue(self, queue: str, settings: QueueSettings, *, tenant: str = DEFAULT_TENANT) -> None:
        self.settings_of.pop((tenant, check_name(queue, "queue")), None)
        # A queue that is set to the defaults is like any other queue again.
        if settings != QueueSettings():
            self.settings_of[tenant, queue] = settings
