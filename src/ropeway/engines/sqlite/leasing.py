"""Leasing: claims under grants, heartbeats, and the end of an owner."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from ropeway.core import fields
from ropeway.core.errors import Indeterminate, RopewayError, Unavailable
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.lease import Lease
from ropeway.core.outcome import Lost
from ropeway.engines import settling
from ropeway.engines.choosing import PriorityOrders, queue_order
from ropeway.engines.protocol import Beat, LeaseBatch, Leased, Rescued, Weighted, WorkerRef
from ropeway.engines.sqlfile import statements
from ropeway.engines.sqlite.rows import leased_job, moment, seconds, text
from ropeway.engines.sqlite.settling import SqliteSettling, refusal
from ropeway.engines.sqlite.transitions import take_back
from ropeway.engines.sqlite.writer import Transaction, one_by_one
from ropeway.runtime import ids
from ropeway.runtime.faultpoints import fault
from ropeway.runtime.ids import uuid_from_bytes

SQL = statements("ropeway.engines.sqlite", "sql/leasing.sql")


class LeaseCall(NamedTuple):
    tenant: str
    queues: Sequence[str]
    wanted: int
    worker: WorkerRef
    lease_seconds: float
    token: UUID
    orders: PriorityOrders


class Claimed(NamedTuple):
    """What a lease call got, as rows: the caller makes records of them while the writer goes on."""

    rows: list[Sequence[Any]]
    now: int
    next_due: int | None


class SqliteLeasing(SqliteSettling):
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
        token = ids.token()
        call = LeaseCall(tenant, queue_order(queues), count, worker, lease_seconds, token, self.orders)
        claim = self.write(_lease_each, call, count)
        try:
            rows, at, next_due = await asyncio.shield(claim)
            fault("lease.committed")
        except (asyncio.CancelledError, Indeterminate):
            claim.add_done_callback(lambda claim: self._give_back(claim, token))
            raise
        now, until = moment(at), moment(at + seconds(lease_seconds))
        leases = []
        for row in rows:
            job = leased_job(row, tenant, worker.id, now, until)
            leases.append(Leased(job, Lease(job.id, job.attempt, token)))
        next_due_in = None if next_due is None else max(0, next_due - at) / 1_000_000
        return LeaseBatch(leases, lease_seconds, next_due_in)

    def _give_back(self, claim: asyncio.Future[Claimed], token: UUID) -> None:
        """The caller went away while its jobs were claimed: nobody will run them, so they are released."""
        if claim.cancelled() or claim.exception() is not None or not claim.result().rows:
            return

        def release(tx: Transaction, _: None) -> None:
            take_back(tx, token.bytes, (), Lost(), self.rules.decisions)

        with contextlib.suppress(Unavailable):
            self.write(one_by_one(release), None).add_done_callback(asyncio.Future.exception)

    async def heartbeat(
        self,
        leases: Sequence[Lease],
        *,
        lease_seconds: float | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Beat | RopewayError]:
        if lease_seconds is not None:
            fields.check_seconds(lease_seconds, "lease_seconds", 1, fields.MAX_LEASE_SECONDS)
        return await self.write(_beat_each, (tenant, leases, lease_seconds), len(leases)) if leases else []

    async def heartbeat_owner(self, owner: UUID, *, tenant: str = DEFAULT_TENANT) -> Beat | None:
        beat = await self.write(_beat_owner, (tenant, owner))
        fault("beat.committed")
        return beat

    async def other_grants(
        self, owner: UUID, known: Collection[UUID], *, tenant: str = DEFAULT_TENANT
    ) -> list[UUID]:
        def ask(db: sqlite3.Connection) -> list[UUID]:
            held = db.execute(SQL["owned_grants"], {"owner": owner.bytes, "tenant": tenant})
            return [uuid_from_bytes(token) for token, *_, is_open in held if is_open]

        return [token for token in await self.read(ask) if token not in known]

    async def end_grants(
        self,
        owner: UUID,
        *,
        started: Collection[UUID] | None = None,
        lost: Lost = Lost(),
        only: Collection[UUID] | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Rescued]:
        wanted = None if only is None else {token.bytes for token in only}

        def end(tx: Transaction, _: None) -> list[Rescued]:
            held = tx.db.execute(SQL["owned_grants"], {"owner": owner.bytes, "tenant": tenant}).fetchall()
            return [
                rescued
                for token, *_ in held
                if wanted is None or token in wanted
                for rescued in take_back(tx, token, started, lost, self.rules.decisions)
            ]

        taken = await self.write(one_by_one(end), None)
        fault("end.committed")
        return taken


def _lease(tx: Transaction, call: LeaseCall) -> Claimed:
    """Claim, start and grant."""
    lanes = [(queue, priority) for queue in call.queues for priority in _priorities(tx, call, queue)]
    claim = {"lanes": text(lanes), "tenant": call.tenant, "now": tx.now, "count": call.wanted}
    rows = tx.db.execute(SQL["claim"], claim).fetchall()
    if rows:
        places = text([row[0] for row in rows])
        token = call.token.bytes
        tx.db.execute(SQL["start"], {"token": token, "worker": call.worker.id, "now": tx.now, "places": places})
        tx.db.execute(SQL["log_started"], {"places": places})
        tx.db.execute(
            SQL["insert_grant"],
            {
                "token": token,
                "tenant": call.tenant,
                "owner": call.worker.owner.bytes,
                "expires_at": tx.now + seconds(call.lease_seconds),
                "lease_seconds": call.lease_seconds,
            },
        )
    return Claimed(rows, tx.now, _next_due(tx, call) if len(rows) < call.wanted else None)


_lease_each = one_by_one(_lease)


def _priorities(tx: Transaction, call: LeaseCall, queue: str) -> tuple[int, ...]:
    """The order in which to walk the priorities of a queue."""
    if call.orders.stale(call.tenant, [queue]):
        rows = tx.db.execute(SQL["oldest_due"], {"tenant": call.tenant, "queue": queue, "now": tx.now})
        waited = {priority: (tx.now - due) / 1_000_000 for priority, due in rows if due is not None}
        call.orders.learn(call.tenant, queue, waited)
    return call.orders.of(call.tenant, queue)


def _next_due(tx: Transaction, call: LeaseCall) -> int | None:
    lanes = text([(call.tenant, queue) for queue in call.queues])
    rows = tx.db.execute(SQL["next_due"], {"lanes": lanes, "now": tx.now})
    return min((due for _, due in rows if due is not None), default=None)


Beats = tuple[str, Sequence[Lease], float | None]


def _beats(tx: Transaction, call: Beats) -> list[Beat | RopewayError]:
    tenant, leases, lease_seconds = call
    return [_beat(tx, tenant, lease, lease_seconds) for lease in leases]


_beat_each = one_by_one(_beats)


def _beat(tx: Transaction, tenant: str, lease: Lease, lease_seconds: float | None) -> Beat | RopewayError:
    token = lease.token.bytes
    fence = {"tenant": tenant, "id": lease.job_id.bytes, "token": token, "attempt": lease.attempt}
    held = tx.db.execute(SQL["held_grant"], fence).fetchone()
    if held is None:
        return refusal(tx, tenant, lease)
    expires_at, granted_seconds, revoked, started_at, timeout = held
    until = tx.now + seconds(granted_seconds if lease_seconds is None else lease_seconds)
    if timeout > 0:
        # A heartbeat of one job does not carry its grant beyond that job's own timeout.
        until = min(until, started_at + seconds(timeout))
    tx.db.execute(SQL["extend_grant"], {"until": until, "token": token})
    return Beat(max(0, max(expires_at, until) - tx.now) / 1_000_000, _ids(revoked))


def _beat_all(tx: Transaction, call: tuple[str, UUID]) -> Beat | None:
    tenant, owner = call
    held = tx.db.execute(SQL["owned_grants"], {"owner": owner.bytes, "tenant": tenant}).fetchall()
    if not held:
        return None
    ends = []
    # A grant that only has revoked jobs to tell of ends with its time, or it would be told of for ever.
    for token, expires_at, lease_seconds, _, is_open in held:
        if is_open:
            until = tx.now + seconds(lease_seconds)
            tx.db.execute(SQL["extend_grant"], {"until": until, "token": token})
            ends.append(max(expires_at, until))
    end = min(ends or [row[1] for row in held])
    return Beat(max(0, end - tx.now) / 1_000_000, tuple(id for row in held for id in _ids(row[3])))


_beat_owner = one_by_one(_beat_all)


def _ids(end_to_end: bytes | None) -> tuple[UUID, ...]:
    raw = end_to_end or b""
    return tuple(uuid_from_bytes(raw[at : at + 16]) for at in range(0, len(raw), 16))
