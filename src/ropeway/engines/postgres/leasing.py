"""Leasing: claims from the cursor, outcomes under the fence, heartbeats by grant."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from ropeway.core import fields
from ropeway.core.ageing import PRIORITIES
from ropeway.core.decide import JobFacts
from ropeway.core.errors import InputError, LeaseLost, PayloadError, RopewayError
from ropeway.core.job import DEFAULT_TENANT, NewJob, Progress
from ropeway.core.lease import LastTicket, Lease
from ropeway.core.outcome import Failed, Lost
from ropeway.core.payload import JobError, check_payload, clean_result
from ropeway.core.states import DeadReason, State, Verb
from ropeway.engines import settling
from ropeway.engines.choosing import queue_order
from ropeway.engines.postgres import transactional
from ropeway.engines.postgres.cursors import START, Lane
from ropeway.engines.postgres.fields import folded
from ropeway.engines.postgres.rows import claimed_job, known_policy
from ropeway.engines.postgres.store import PostgresStore
from ropeway.engines.postgres.takeback import take_back
from ropeway.engines.postgres.transitions import apply_transitions
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

# Columns of `claim`, by position.
_ID, _QUEUE, _PRIORITY, _PAYLOAD, _ATTEMPT = 0, 2, 3, 4, 5
_RUN_AT, _SEQ, _STARTED_AT, _UNCHECKED = 8, 9, 11, 21
_place = itemgetter(_RUN_AT, _SEQ)


class PostgresLeasing(PostgresStore):
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
        await self._learn_waits(tenant, order)
        lanes = [(queue, priority) for queue in order for priority in self.orders.of(tenant, queue)]
        sweep = self.cursors.due(tenant, lanes, short=False)
        leases = await self._claim(tenant, lanes, sweep, count, worker, lease_seconds)
        if len(leases) < count:
            also = self.cursors.due(tenant, lanes, short=True) - sweep
            if also:
                rest = [lane for lane in lanes if lane in also]
                leases += await self._claim(tenant, rest, also, count - len(leases), worker, lease_seconds)
        if len(leases) == count:
            return LeaseBatch(leases, lease_seconds)
        return LeaseBatch(leases, lease_seconds, await self._next_due_in(tenant, order))

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
    ) -> list[Leased]:
        """One claim statement: lanes to sweep start at the very beginning, the others at their cursors."""
        starts = [START if lane in sweep else self.cursors.start(tenant, lane) for lane in lanes]
        token = ids.token()
        began = time.monotonic()
        rows = await self.with_partitions(
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
        stragglers = self._note_positions(tenant, rows)
        if sweep:
            reached = _reached(rows, lanes) if len(rows) == count else lanes
            swept = [lane for lane in reached if lane in sweep]
            self.cursors.swept(tenant, swept, took, again=stragglers)
        if not rows:
            return []
        self.grants.opened(token, tenant, {row[_ID]: row[_ATTEMPT] for row in rows})
        rows = _in_lane_order(rows, lanes)
        locked_until = rows[0][_STARTED_AT] + timedelta(seconds=lease_seconds)
        leased = []
        refused = []
        for row in rows:
            lease = Lease(row[_ID], row[_ATTEMPT], token)
            error = _unacceptable(row) if row[_UNCHECKED] else None
            if error is not None:
                refused.append(Settlement(lease, Failed(error, retry=False, reason=DeadReason.BAD_PAYLOAD)))
            else:
                leased.append(Leased(claimed_job(row, tenant, worker.id, locked_until), lease))
        if refused:
            await self.settle(refused, tenant=tenant)
        return leased

    def _note_positions(self, tenant: str, rows: Sequence[asyncpg.Record]) -> bool:
        """Move the cursors; True when any of the rows lay behind its cursor."""
        lowest: dict[tuple[str, int], tuple[datetime, int]] = {}
        highest: dict[tuple[str, int], tuple[datetime, int]] = {}
        for row in rows:
            lane = (row[_QUEUE], row[_PRIORITY])
            place = (row[_RUN_AT], row[_SEQ])
            if lane not in highest:
                lowest[lane] = highest[lane] = place
            elif place > highest[lane]:
                highest[lane] = place
            elif place < lowest[lane]:
                lowest[lane] = place
        stragglers = False
        for lane, place in lowest.items():
            stragglers |= self.cursors.claimed(tenant, lane, *place)
            self.cursors.claimed(tenant, lane, *highest[lane])
        return stragglers

    async def _next_due_in(self, tenant: str, queues: Sequence[str]) -> float | None:
        seconds: float | None = await self.claims.value(
            self.sql("leasing", "next_due"), tenant, queues, writes=False
        )
        return seconds

    async def settle(
        self, settlements: Sequence[Settlement], *, tenant: str = DEFAULT_TENANT
    ) -> list[Settled | RopewayError]:
        answers = await settling.settle(self, tenant, settlements, self.rules)
        for settlement, answer in zip(settlements, answers, strict=True):
            # An outcome that was refused for what it says is no answer: the job still runs under its grant.
            if not isinstance(answer, InputError):
                self.grants.answered(tenant, settlement.lease)
        return answers

    async def settle_in(
        self, connection: Any, lease: Lease, result: bytes | None = None, *, tenant: str = DEFAULT_TENANT
    ) -> Settled:
        cleaned = clean_result(result, max_bytes=self.rules.max_payload_bytes)
        text = None if cleaned.data is None else cleaned.data.decode()
        arguments = [
            tenant, str(lease.job_id), lease.attempt, str(lease.token), text, cleaned.sanitized, cleaned.too_large
        ]  # fmt: skip
        if not await transactional.complete(connection, self.schema, arguments):
            raise LeaseLost("this lease is not the job's current one", hint="roll the transaction back")
        return Settled(
            lease.job_id,
            State.SUCCEEDED,
            sanitized=cleaned.sanitized,
            result_too_large=cleaned.too_large,
        )

    async def complete(self, tenant: str, completions: Sequence[Completion]) -> list[bool]:
        ended = self.grants.take_ended()
        leases = [completion.lease for completion in completions]
        results = [completion.result for completion in completions]
        plain = all(result.data is None and not result.too_large for result in results)
        arguments = (
            tenant,
            [lease.job_id for lease in leases],
            folded([lease.attempt for lease in leases]),
            folded([lease.token for lease in leases]),
            list({lease.token for lease in leases}),
            [] if plain else [None if r.data is None else r.data.decode() for r in results],
            [] if plain else [r.sanitized for r in results],
            [] if plain else [r.too_large for r in results],
            ended,
        )
        try:
            done = await self.with_partitions(
                lambda: self.outcomes.value(self.sql("leasing", "complete"), *arguments)
            )
        except RopewayError:
            self.grants.keep(ended)
            raise
        if done is None:
            return [True] * len(leases)
        written = set(done)
        return [
            lease.job_id in written or await self._complete_one(tenant, completion)
            for lease, completion in zip(leases, completions, strict=True)
        ]

    async def _complete_one(self, tenant: str, completion: Completion) -> bool:
        """The last word on a ticket that the batch did not find: its row may have changed while it waited."""
        lease, result = completion.lease, completion.result
        written: bool = await self.with_partitions(
            lambda: self.outcomes.value(
                self.sql("leasing", "complete_one"),
                tenant,
                lease.job_id,
                lease.attempt,
                lease.token,
                None if result.data is None else result.data.decode(),
                result.sanitized,
                result.too_large,
            )
        )
        return written

    async def facts(self, tenant: str, leases: Sequence[Lease]) -> list[JobFacts | None]:
        rows = await self.outcomes.fetch(self.sql("leasing", "facts"), tenant, *_tickets(leases), writes=False)
        known = {
            row["id"]: JobFacts(
                row["attempts"],
                row["max_attempts"],
                row["failures"],
                row["lost"],
                known_policy(row["retry"]),
            )
            for row in rows
        }
        return [known.get(lease.job_id) for lease in leases]

    async def apply(self, tenant: str, changes: Sequence[Change]) -> list[Applied | None]:
        async def run() -> list[asyncpg.Record]:
            async with self.outcomes.transaction() as connection:
                return await apply_transitions(self, connection, [(tenant, change) for change in changes])

        rows = await self.with_partitions(run)
        free = {(tenant, row["queue"]) for row in rows if row["state"] not in (None, "dead")}
        for _, queue in free:
            self.cursors.disturb(tenant, queue)
        self.wakeups.signal(free)
        return [
            None if row["state"] is None else Applied(State(row["state"]), row["attempts"], row["run_at"])
            for row in rows
        ]

    async def last_tickets(self, tenant: str, ids: Sequence[UUID]) -> Mapping[UUID, LastTicket]:
        rows = await self.outcomes.fetch(self.sql("leasing", "last_tickets"), tenant, list(ids), writes=False)
        return {
            row["id"]: LastTicket(
                row["attempt"],
                row["spent_token"],
                None if row["spent_verb"] is None else Verb(row["spent_verb"]),
                State(row["state"]),
            )
            for row in rows
        }

    async def progress(
        self, updates: Sequence[tuple[Lease, Progress]], *, tenant: str = DEFAULT_TENANT
    ) -> list[RopewayError | None]:
        if not updates:
            return []
        now = await self.now()
        notes = [msgspec.json.encode(settling.clean_progress(note, now)).decode() for _, note in updates]
        leases = [lease for lease, _ in updates]
        rows = await self.outcomes.fetch(self.sql("leasing", "progress"), tenant, *_tickets(leases), notes)
        noted = {row["item"] for row in rows}
        refused = [lease.job_id for item, lease in enumerate(leases, 1) if item not in noted]
        tickets = await self.last_tickets(tenant, refused) if refused else {}
        return [
            None if item in noted else settling.refusal(lease, tickets.get(lease.job_id))
            for item, lease in enumerate(leases, 1)
        ]

    async def heartbeat(
        self,
        leases: Sequence[Lease],
        *,
        lease_seconds: float | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Beat | RopewayError]:
        if lease_seconds is not None:
            fields.check_seconds(lease_seconds, "lease_seconds", 1, fields.MAX_LEASE_SECONDS)
        rows = await self.beats.fetch(self.sql("leasing", "heartbeat"), tenant, *_tickets(leases), lease_seconds)
        refused = [leases[row["item"] - 1].job_id for row in rows if row["expires_in"] is None]
        tickets = await self.last_tickets(tenant, refused) if refused else {}
        answers: list[Beat | RopewayError] = []
        for lease, row in zip(leases, rows, strict=True):
            if row["expires_in"] is None:
                answers.append(settling.refusal(lease, tickets.get(lease.job_id)))
            else:
                self.grants.told(lease.token, row["revoked"])
                answers.append(Beat(row["expires_in"], tuple(row["revoked"])))
        return answers

    async def heartbeat_owner(self, owner: UUID, *, tenant: str = DEFAULT_TENANT) -> Beat | None:
        ended = self.grants.take_ended()
        try:
            rows = await self.beats.fetch(self.sql("leasing", "heartbeat_owner"), tenant, owner, ended)
        except RopewayError:
            self.grants.keep(ended)
            raise
        if not rows:
            return None
        for row in rows:
            self.grants.told(row["token"], row["revoked"])
        working = [row for row in rows if not row["done"]] or rows
        return Beat(
            expires_in=min(row["expires_in"] for row in working),
            revoked=tuple(id for row in rows for id in row["revoked"]),
        )

    async def end_grants(
        self,
        owner: UUID,
        *,
        started: Collection[UUID] | None = None,
        lost: Lost = Lost(),
        tenant: str = DEFAULT_TENANT,
    ) -> list[Rescued]:
        return await take_back(self, "owned_grants", (tenant, owner), started, lost)


def _tickets(leases: Sequence[Lease]) -> tuple[list[UUID], list[int], list[UUID]]:
    return (
        [lease.job_id for lease in leases],
        [lease.attempt for lease in leases],
        [lease.token for lease in leases],
    )


def _reached(rows: Sequence[asyncpg.Record], lanes: Sequence[Lane]) -> Sequence[Lane]:
    """The lanes that a claim which came back full has looked at: up to the last one that gave a job."""
    gave = {(row[_QUEUE], row[_PRIORITY]) for row in rows}
    return lanes[: max(place for place, lane in enumerate(lanes, 1) if lane in gave)]


def _in_lane_order(rows: list[asyncpg.Record], lanes: Sequence[tuple[str, int]]) -> list[asyncpg.Record]:
    """RETURNING comes in physical order; jobs are handed out in the order of their lanes, then of their places."""
    first = (rows[0][_QUEUE], rows[0][_PRIORITY])
    if all(row[_PRIORITY] == first[1] and row[_QUEUE] == first[0] for row in rows):
        return sorted(rows, key=_place)
    rank = {lane: number for number, lane in enumerate(lanes)}
    return sorted(rows, key=lambda row: (rank[row[_QUEUE], row[_PRIORITY]], row[_RUN_AT], row[_SEQ]))


def _unacceptable(row: asyncpg.Record) -> JobError | None:
    """Why a job that came through the SQL function cannot be run; None when Python finds nothing wrong."""
    try:
        check_payload(row[_PAYLOAD].encode())
        job = claimed_job(row, "", "", row[_STARTED_AT])
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
