"""Leasing: claims, outcomes under the fence, heartbeats by grant."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from ropeway.core import fields
from ropeway.core.ageing import PRIORITIES
from ropeway.core.decide import JobFacts, Transition, decide
from ropeway.core.errors import RopewayError
from ropeway.core.job import DEFAULT_TENANT, Progress
from ropeway.core.joblog import LogLine
from ropeway.core.lease import LastTicket, Lease
from ropeway.core.outcome import Lost, Released
from ropeway.core.states import EventName, State, Verb
from ropeway.engines import settling
from ropeway.engines.choosing import queue_order
from ropeway.engines.memory.rows import GrantRow, JobRow
from ropeway.engines.memory.store import MemoryStore, later
from ropeway.engines.protocol import (
    Beat,
    LeaseBatch,
    Leased,
    Rescued,
    Settled,
    Settlement,
    Weighted,
    WorkerRef,
)
from ropeway.engines.settling import Applied, Change, Completion
from ropeway.runtime import ids


class MemoryLeasing(MemoryStore):
    async def lease(
        self,
        queues: Sequence[str | Weighted],
        count: int,
        worker: WorkerRef,
        *,
        lease_seconds: float = 30.0,
        tenant: str = DEFAULT_TENANT,
    ) -> LeaseBatch:
        settling.check_lease_call(count, worker, lease_seconds)
        order = queue_order(queues)
        rows = self._claim(tenant, order, count)
        if not rows:
            return LeaseBatch([], lease_seconds, self._next_due_in(tenant, order))
        now = self.clock.now()
        grant = GrantRow(
            token=ids.token(),
            tenant=tenant,
            owner=worker.owner,
            expires_at=later(now, lease_seconds),
            lease_seconds=lease_seconds,
            open={row.id for row in rows},
        )
        self.grants[grant.token] = grant
        leases = [self._start(row, worker.id, grant) for row in rows]
        next_due_in = self._next_due_in(tenant, order) if len(rows) < count else None
        return LeaseBatch(leases, lease_seconds, next_due_in)

    def _claim(self, tenant: str, queues: Sequence[str], count: int) -> list[JobRow]:
        now = self.clock.now()
        for queue in self.orders.stale(tenant, queues):
            waited = {
                priority: (now - due).total_seconds()
                for priority in PRIORITIES
                if (due := self.lanes.oldest_due(tenant, queue, priority, now)) is not None
            }
            self.orders.learn(tenant, queue, waited)
        rows: list[JobRow] = []
        for queue in queues:
            if (tenant, queue) in self.paused:
                continue
            for priority in self.orders.of(tenant, queue):
                if len(rows) == count:
                    return rows
                for row in self.lanes.take(tenant, queue, priority, now):
                    rows.append(row)
                    if len(rows) == count:
                        break
        return rows

    def _start(self, row: JobRow, worker: str, grant: GrantRow) -> Leased:
        now = self.clock.now()
        row.attempt += 1
        row.attempts += 1
        row.token = grant.token
        row.worker = worker
        row.spent_token = row.spent_verb = None
        row.started_at = row.updated_at = now
        row.progress = None
        self.write_event(row, EventName.STARTED, worker=worker)
        return Leased(row.job(now, grant.expires_at), Lease(row.id, row.attempt, grant.token))

    def _next_due_in(self, tenant: str, queues: Sequence[str]) -> float | None:
        now = self.clock.now()
        due = [
            at
            for queue in queues
            if (tenant, queue) not in self.paused
            for priority in PRIORITIES
            if (at := self.lanes.next_due(tenant, queue, priority)) is not None
        ]
        return max(0.0, (min(due) - now).total_seconds()) if due else None

    async def settle(
        self, settlements: Sequence[Settlement], *, tenant: str = DEFAULT_TENANT
    ) -> list[Settled | RopewayError]:
        return await settling.settle(self, tenant, settlements, self.rules)

    def _current(self, tenant: str, lease: Lease) -> JobRow | None:
        """The fence: the job, if this is its current ticket."""
        row = self.row(tenant, lease.job_id)
        if row is None or row.token != lease.token or row.attempt != lease.attempt:
            return None
        return row

    async def complete(self, tenant: str, completions: Sequence[Completion]) -> list[bool]:
        written = []
        for completion in completions:
            row = self._current(tenant, completion.lease)
            written.append(row is not None)
            if row is None or row.started_at is None:
                continue
            worker = row.worker
            row.result = completion.result.data
            row.result_sanitized = completion.result.sanitized
            row.result_too_large = completion.result.too_large
            self.end(row, State.SUCCEEDED, spent_by=Verb.ACK)
            duration = (self.clock.now() - row.started_at).total_seconds()
            self.write_event(row, EventName.COMPLETED, worker=worker, seconds=duration)
        return written

    async def facts(self, tenant: str, leases: Sequence[Lease]) -> list[JobFacts | None]:
        rows = [self._current(tenant, lease) for lease in leases]
        return [None if row is None else row.facts() for row in rows]

    async def apply(self, tenant: str, changes: Sequence[Change]) -> list[Applied | None]:
        return [
            None if (row := self._current(tenant, change.lease)) is None else self.change(row, change.transition)
            for change in changes
        ]

    async def last_tickets(self, tenant: str, ids: Sequence[UUID]) -> Mapping[UUID, LastTicket]:
        now = self.clock.now()
        return {id: row.last_ticket(now) for id in ids if (row := self.row(tenant, id)) is not None}

    def change(self, row: JobRow, transition: Transition) -> Applied:
        """Write one decided transition other than an ack to a running job."""
        now = self.clock.now()
        worker = row.worker
        row.attempts -= transition.refund
        row.failures += transition.failed
        row.lost += transition.lost
        row.updated_at = now
        if transition.error is not None:
            row.last_error = transition.error
        if transition.target is State.DEAD:
            row.dead_reason = transition.dead_reason
            self.end(row, State.DEAD, spent_by=transition.verb)
        else:
            if transition.delay is not None:
                row.run_at = later(now, transition.delay)
            elif transition.run_at is not None:
                row.run_at = max(transition.run_at, now)
            row.progress = None
            self.drop_ticket(row, spent_by=transition.verb)
            self.queue_up(row)
        self.write_event(
            row,
            transition.event,
            worker=worker,
            run_at=row.run_at if transition.event is EventName.SNOOZED else None,
            seconds=transition.delay if transition.event is EventName.FAILED else None,
            error=transition.error,
            detail=transition.detail(),
        )
        return Applied(transition.target, row.attempts, row.run_at)

    async def progress(
        self, updates: Sequence[tuple[Lease, Progress]], *, tenant: str = DEFAULT_TENANT
    ) -> list[RopewayError | None]:
        answers: list[RopewayError | None] = []
        for lease, progress in updates:
            row = self._current(tenant, lease)
            if row is None:
                answers.append(self._refusal(tenant, lease))
                continue
            row.progress = settling.clean_progress(progress, self.clock.now())
            answers.append(None)
        return answers

    async def log(
        self, lines: Sequence[tuple[Lease, LogLine]], *, tenant: str = DEFAULT_TENANT
    ) -> list[RopewayError | None]:
        answers: list[RopewayError | None] = []
        for lease, line in lines:
            row = self._current(tenant, lease)
            if row is not None:
                row.append_line(line, self.clock.now())
            answers.append(None if row is not None else self._refusal(tenant, lease))
        return answers

    def _refusal(self, tenant: str, lease: Lease) -> RopewayError:
        row = self.row(tenant, lease.job_id)
        ticket = None if row is None else row.last_ticket(self.clock.now())
        return settling.refusal(lease, ticket)

    async def heartbeat(
        self,
        leases: Sequence[Lease],
        *,
        lease_seconds: float | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Beat | RopewayError]:
        if lease_seconds is not None:
            fields.check_seconds(lease_seconds, "lease_seconds", 1, fields.MAX_LEASE_SECONDS)
        answers: list[Beat | RopewayError] = []
        for lease in leases:
            row = self._current(tenant, lease)
            grant = self.grants.get(lease.token)
            if row is None or grant is None or row.started_at is None:
                answers.append(self._refusal(tenant, lease))
                continue
            now = self.clock.now()
            until = later(now, grant.lease_seconds if lease_seconds is None else lease_seconds)
            if row.new.timeout > 0:
                until = min(until, later(row.started_at, row.new.timeout))
            grant.expires_at = max(grant.expires_at, until)
            answers.append(self._beat([grant]))
        return answers

    def _beat(self, grants: Sequence[GrantRow]) -> Beat:
        now = self.clock.now()
        until = min(grant.expires_at for grant in [g for g in grants if g.open] or grants)
        return Beat(
            expires_in=max(0.0, (until - now).total_seconds()),
            revoked=tuple(id for grant in grants for id in grant.revoked),
        )

    async def heartbeat_owner(self, owner: UUID, *, tenant: str = DEFAULT_TENANT) -> Beat | None:
        now = self.clock.now()
        held = [g for g in self.grants.values() if g.owner == owner and g.tenant == tenant]
        for grant in held:
            # One that only has revoked jobs to tell of ends with its time, or it would be told of for ever.
            if grant.open:
                grant.expires_at = max(grant.expires_at, later(now, grant.lease_seconds))
        return self._beat(held) if held else None

    async def other_grants(
        self, owner: UUID, known: Collection[UUID], *, tenant: str = DEFAULT_TENANT
    ) -> list[UUID]:
        held = [g.token for g in self.grants.values() if g.owner == owner and g.tenant == tenant and g.open]
        return [token for token in held if token not in known]

    async def end_grants(
        self,
        owner: UUID,
        *,
        started: Collection[UUID] | None = None,
        lost: Lost = Lost(),
        only: Collection[UUID] | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Rescued]:
        rescued: list[Rescued] = []
        for grant in [g for g in self.grants.values() if g.owner == owner and g.tenant == tenant]:
            if only is None or grant.token in only:
                rescued += self.take_back(grant, started, lost)
        return rescued

    def take_back(self, grant: GrantRow, started: Collection[UUID] | None, lost: Lost) -> list[Rescued]:
        """End a grant: its started jobs are lost, the others released."""
        rescued = []
        for id in sorted(grant.open, key=lambda id: self.jobs[id].place):
            row = self.jobs[id]
            outcome = lost if started is None or id in started else Released()
            transition = decide(row.facts(), outcome, 0.0, self.rules.decisions)
            rescued.append(Rescued(row.tenant, id, self.change(row, transition).state))
        self.grants.pop(grant.token, None)
        return rescued
