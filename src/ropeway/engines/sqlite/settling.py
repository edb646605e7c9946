"""Settling: outcomes under the fence, and notes of progress."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from ropeway.core.decide import JobFacts
from ropeway.core.errors import RopewayError
from ropeway.core.job import DEFAULT_TENANT, Progress
from ropeway.core.lease import LastTicket, Lease
from ropeway.core.states import Verb as JobVerb
from ropeway.engines import settling
from ropeway.engines.protocol import Settled, Settlement
from ropeway.engines.settling import Applied, Change, Completion
from ropeway.engines.sqlfile import statements
from ropeway.engines.sqlite.rows import micros, moment, packed, packed_ids, state_of, text
from ropeway.engines.sqlite.store import SqliteStore
from ropeway.engines.sqlite.transitions import Running, apply_transition, end_settled_grants
from ropeway.engines.sqlite.writer import Transaction, one_by_one
from ropeway.runtime.ids import uuid_from_bytes

SQL = statements("ropeway.engines.sqlite", "sql/settling.sql")


class SqliteSettling(SqliteStore):
    async def settle(
        self, settlements: Sequence[Settlement], *, tenant: str = DEFAULT_TENANT
    ) -> list[Settled | RopewayError]:
        return await settling.settle(self, tenant, settlements, self.rules)

    async def complete(self, tenant: str, completions: Sequence[Completion]) -> list[bool]:
        return await self.write(_complete_all, (tenant, completions), len(completions))

    async def facts(self, tenant: str, leases: Sequence[Lease]) -> list[JobFacts | None]:
        fence = {**packed(leases), "tenant": tenant}

        def ask(db: sqlite3.Connection) -> list[JobFacts | None]:
            running = current_jobs(db, fence)
            return [running[i].facts() if i in running else None for i in range(len(leases))]

        return await self.read(ask)

    async def apply(self, tenant: str, changes: Sequence[Change]) -> list[Applied | None]:
        fence = {**packed([change.lease for change in changes]), "tenant": tenant}
        return await self.write(_apply_each, (changes, fence), len(changes))

    async def last_tickets(self, tenant: str, ids: Sequence[UUID]) -> Mapping[UUID, LastTicket]:
        now = micros(self.clock.now())
        return await self.read(lambda db: last_tickets(db, tenant, ids, now))

    async def progress(
        self, updates: Sequence[tuple[Lease, Progress]], *, tenant: str = DEFAULT_TENANT
    ) -> list[RopewayError | None]:
        return await self.write(_progress_each, (tenant, updates), len(updates)) if updates else []


Completions = tuple[str, Sequence[Completion]]


def _complete_all(tx: Transaction, calls: Sequence[Completions]) -> list[list[bool]]:
    """The acks of all calls: neighbours of one tenant together, as long as no job is named twice."""
    answers: list[list[bool]] = []
    start = 0
    while start < len(calls):
        tenant, together, end = calls[start][0], list(calls[start][1]), start + 1
        named = {completion.lease.job_id for completion in together}
        while end < len(calls) and calls[end][0] == tenant:
            ids = {completion.lease.job_id for completion in calls[end][1]}
            if not named.isdisjoint(ids):
                break
            named |= ids
            together += calls[end][1]
            end += 1
        written = iter(_complete(tx, tenant, together))
        answers += [[next(written) for _ in completions] for _, completions in calls[start:end]]
        start = end
    return answers


def _complete(tx: Transaction, tenant: str, completions: Sequence[Completion]) -> list[bool]:
    """Acks: the fence first, then everything that passed it at once."""
    fence = {**packed([completion.lease for completion in completions]), "tenant": tenant}
    keys, places = tx.db.execute(SQL["current_places"], fence).fetchone()
    written = [False] * len(completions)
    positions: list[int] = msgspec.json.decode(keys)
    if not positions:
        return written
    for position in positions:
        written[position] = True
    tx.db.execute(SQL["complete"], {"now": tx.now, "places": places})
    tx.db.execute(SQL["log_completed"], {"places": places})
    results = [
        (place, result.data, result.sanitized, result.too_large)
        for position, place in zip(positions, msgspec.json.decode(places), strict=True)
        if (result := completions[position].result).data is not None or result.too_large
    ]
    if results:
        tx.db.executemany(SQL["insert_result"], results)
    end_settled_grants(tx, {completions[position].lease.token.bytes for position in positions})
    return written


def current_jobs(db: sqlite3.Connection, fence: dict[str, object]) -> dict[int, Running]:
    """The running jobs of those leases that are current, by position."""
    return {position: Running(*row) for position, *row in db.execute(SQL["current_jobs"], fence)}


def _apply(tx: Transaction, call: tuple[Sequence[Change], dict[str, object]]) -> list[Applied | None]:
    changes, fence = call
    running = current_jobs(tx.db, fence)
    applied = [
        apply_transition(tx, running[position], change.transition) if position in running else None
        for position, change in enumerate(changes)
    ]
    end_settled_grants(tx, {job.token for job in running.values()})
    return applied


_apply_each = one_by_one(_apply)


def _progress(tx: Transaction, call: tuple[str, Sequence[tuple[Lease, Progress]]]) -> list[RopewayError | None]:
    tenant, updates = call
    answers: list[RopewayError | None] = []
    for lease, progress in updates:
        note = {
            "progress": text(settling.clean_progress(progress, moment(tx.now))),
            "tenant": tenant,
            "id": lease.job_id.bytes,
            "token": lease.token.bytes,
            "attempt": lease.attempt,
        }
        current = tx.db.execute(SQL["set_progress"], note).rowcount
        answers.append(None if current else refusal(tx, tenant, lease))
    return answers


_progress_each = one_by_one(_progress)


def last_tickets(db: sqlite3.Connection, tenant: str, ids: Sequence[UUID], now: int) -> dict[UUID, LastTicket]:
    """The newest spent ticket of each job."""
    return {
        uuid_from_bytes(id): LastTicket(
            attempt,
            None if token is None else uuid_from_bytes(token),
            None if verb is None else JobVerb(verb),
            state_of(stage, blockers, run_at, failures, now),
        )
        for id, attempt, token, verb, stage, blockers, run_at, failures in db.execute(
            SQL["last_tickets"], {**packed_ids(ids), "tenant": tenant}
        )
    }


def refusal(tx: Transaction, tenant: str, lease: Lease) -> RopewayError:
    """What a ticket that is not current is told."""
    return settling.refusal(lease, last_tickets(tx.db, tenant, [lease.job_id], tx.now).get(lease.job_id))
