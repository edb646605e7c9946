"""Claiming: due jobs, from the cursor of each lane, under one new grant."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from itertools import chain
from operator import itemgetter
from uuid import UUID

import asyncpg
import msgspec

from ropeway.core.ageing import PRIORITIES
from ropeway.core.errors import EngineError, PayloadError, RopewayError
from ropeway.core.job import DEFAULT_TENANT, NewJob
from ropeway.core.lease import Lease
from ropeway.core.outcome import Failed
from ropeway.core.payload import JobError, check_payload
from ropeway.core.states import DeadReason
from ropeway.engines import settling
from ropeway.engines.choosing import queue_order
from ropeway.engines.postgres.cursors import START, Lane, Position
from ropeway.engines.postgres.outcomes import PostgresOutcomes
from ropeway.engines.postgres.rows import Holder, claimed_job, moment
from ropeway.engines.protocol import (
    LeaseBatch,
    Leased,
    Settlement,
    Weighted,
    WorkerRef,
)
from ropeway.runtime import ids
from ropeway.runtime.faultpoints import fault

# Columns of the statement `claim`, by position.
_ID, _QUEUE, _PRIORITY, _PAYLOAD, _ATTEMPT = 0, 2, 3, 4, 5
_RUN_AT, _SEQ, _STARTED_AT, _UNCHECKED, _SPOT = 8, 9, 11, 21, 22
_place = itemgetter(_RUN_AT, _SEQ)

#: Queues that one claim looks at: a worker of a thousand fills its batch from the first ones that have work, and
#: the arrays of all their lanes would cost more than the jobs.
QUEUES_AT_ONCE = 50


class PostgresClaiming(PostgresOutcomes):
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
        tokens: list[UUID] = []
        try:
            batch = await self._lease(tenant, order, count, worker, lease_seconds, tokens)
            fault("lease.committed")
        except BaseException:
            # Whatever these claims took, the caller will never know of it.
            self.give_back(tokens)
            raise
        return batch

    async def _lease(
        self,
        tenant: str,
        order: list[str],
        count: int,
        worker: WorkerRef,
        lease_seconds: float,
        tokens: list[UUID],
    ) -> LeaseBatch:
        """As many claims as it takes. `tokens` gets each claim's token before it is sent."""
        leases: list[Leased] = []
        if len(order) > QUEUES_AT_ONCE:
            # A worker of 1,000 queues with 60 jobs in each gets 18,000 of them a second, 1,500 without this.
            order = self.empty.last(tenant, order)
        for start in range(0, len(order), QUEUES_AT_ONCE):
            queues = order[start : start + QUEUES_AT_ONCE]
            missing = count - len(leases)
            leases += await self._lease_of(tenant, queues, missing, worker, lease_seconds, tokens)
            if len(leases) == count:
                return LeaseBatch(leases, lease_seconds)
            if len(order) > QUEUES_AT_ONCE:
                self.empty.note(tenant, queues)
        self.orders.emptied(tenant, order)
        return LeaseBatch(leases, lease_seconds, await self._next_due_in(tenant, order))

    async def _lease_of(
        self,
        tenant: str,
        queues: list[str],
        count: int,
        worker: WorkerRef,
        lease_seconds: float,
        tokens: list[UUID],
    ) -> list[Leased]:
        """One claim, and a sweep of what may hold stragglers if it brought too little."""
        await self._learn_waits(tenant, queues)
        lanes = [(queue, priority) for queue in queues for priority in self.orders.of(tenant, queue)]
        sweep = self.cursors.due(tenant, lanes, short=False)
        leases = await self._claim(tenant, lanes, sweep, count, worker, lease_seconds, tokens)
        if len(leases) < count:
            also = self.cursors.due(tenant, lanes, short=True) - sweep
            if also:
                rest = [lane for lane in lanes if lane in also]
                missing = count - len(leases)
                leases += await self._claim(tenant, rest, also, missing, worker, lease_seconds, tokens)
        return leases

    async def _learn_waits(self, tenant: str, queues: Sequence[str]) -> None:
        """Look up, at most once a second per lane, how long each priority's oldest due job has waited."""
        stale = self.orders.stale(tenant, queues)
        if not stale:
            return
        # A job that came back to its old place waits behind the cursor: where a sweep may be, look from the start.
        lanes = [(queue, priority) for queue in stale for priority in PRIORITIES]
        sweep = self.cursors.due(tenant, lanes, short=True)
        starts = [START if lane in sweep else self.cursors.start(tenant, lane) for lane in lanes]
        rows = await self.claims.fetch(
            self.sql("leasing", "waits"),
            tenant,
            [queue for queue, _ in lanes],
            [priority for _, priority in lanes],
            [at for at, _ in starts],
            [seq for _, seq in starts],
            writes=False,
        )
        for queue in stale:
            waited = {row["priority"]: row["waited"] for row in rows if row["queue"] == queue}
            self.orders.learn(tenant, queue, waited)

    async def _claim(
        self,
        tenant: str,
        lanes: Sequence[Lane],
        sweep: Collection[Lane],
        count: int,
        worker: WorkerRef,
        lease_seconds: float,
        tokens: list[UUID],
    ) -> list[Leased]:
        """One claim statement: lanes to sweep start at the very beginning, the others at their cursors."""
        starts = [START if lane in sweep else self.cursors.start(tenant, lane) for lane in lanes]
        token = ids.token()
        tokens.append(token)
        began = time.monotonic()
        rows = await self.with_retries(
            lambda: self.claims.fetch(
                self.sql("leasing", "claim"),
                tenant,
                [queue for queue, _ in lanes],
                [priority for _, priority in lanes],
                [at for at, _ in starts],
                [seq for _, seq in starts],
                count,
                token,
                worker.owner,
                worker.id,
                lease_seconds,
            )
        )
        took = time.monotonic() - began
        by_lane = _by_lane(rows, lanes)
        stragglers = self._note_positions(tenant, by_lane)
        if sweep:
            # One that came back full has looked as far as the last lane that gave a job.
            reached = lanes[: lanes.index(list(by_lane)[-1]) + 1] if len(rows) == count else lanes
            swept = [lane for lane in reached if lane in sweep]
            self.cursors.swept(tenant, swept, took, again=stragglers)
        if not rows:
            return []
        self.grants.opened(token, tenant, {row[_ID]: (row[_ATTEMPT], row[_SPOT]) for row in rows})
        started_at = moment(rows[0][_STARTED_AT])
        holder = Holder(tenant, worker.id, started_at, started_at + timedelta(seconds=lease_seconds))
        leased = []
        refused = []
        for row in chain.from_iterable(by_lane.values()):
            lease = Lease(row[_ID], row[_ATTEMPT], token)
            error = _unacceptable(row, self.rules.max_payload_bytes) if row[_UNCHECKED] else None
            if error is not None:
                refused.append(Settlement(lease, Failed(error, retry=False, reason=DeadReason.BAD_PAYLOAD)))
            else:
                leased.append(Leased(claimed_job(row, holder), lease))
        if refused:
            await self.settle(refused, tenant=tenant)
        return leased

    def _note_positions(self, tenant: str, by_lane: Mapping[Lane, Sequence[asyncpg.Record]]) -> bool:
        """Move the cursors; True when any of the jobs lay behind its cursor."""
        stragglers = False
        for lane, rows in by_lane.items():
            now = moment(rows[0][_STARTED_AT])
            stragglers |= self.cursors.claimed(tenant, lane, *_position(rows[0]), now)
            self.cursors.claimed(tenant, lane, *_position(rows[-1]), now)
        return stragglers

    async def _next_due_in(self, tenant: str, queues: Sequence[str]) -> float | None:
        """A hint: a store that is away just now does not undo the claims that came before."""
        with contextlib.suppress(EngineError):
            seconds: float | None = await self.claims.value(
                self.sql("leasing", "next_due"), tenant, queues, writes=False
            )
            return seconds
        return None


def _by_lane(rows: Sequence[asyncpg.Record], lanes: Sequence[Lane]) -> dict[Lane, list[asyncpg.Record]]:
    """RETURNING comes in physical order; jobs are handed out in the order of their lanes, then of their places."""
    found: dict[Lane, list[asyncpg.Record]] = {}
    for row in rows:
        lane = row[_QUEUE], row[_PRIORITY]
        if lane in found:
            found[lane].append(row)
        else:
            found[lane] = [row]
    for of_lane in found.values():
        of_lane.sort(key=_place)
    return found if len(found) <= 1 else {lane: found[lane] for lane in lanes if lane in found}


def _position(row: asyncpg.Record) -> Position:
    return moment(row[_RUN_AT]), row[_SEQ]


def _unacceptable(row: asyncpg.Record, max_bytes: int) -> JobError | None:
    """Why a job that came through the SQL function cannot be run; None when Python finds nothing wrong."""
    try:
        check_payload(row[_PAYLOAD].encode(), max_bytes=max_bytes)
        at = moment(row[_STARTED_AT])
        job = claimed_job(row, Holder("", "", at, at))
        # Creating one checks every field.
        NewJob(
            job.type,
            timeout=job.timeout,
            tags=job.tags,
            headers=job.headers,
            idempotency_key=job.idempotency_key,
        )
    except PayloadError as error:
        return JobError("PayloadError", f"{error.code}: {error.message}")
    except (RopewayError, msgspec.MsgspecError) as error:
        return JobError(type(error).__name__, f"a stored option cannot be read: {error}")
    return None
