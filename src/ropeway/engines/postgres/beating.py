"""Beating: heartbeats by grant, progress notes, and the end of an owner."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from uuid import UUID

import msgspec

from ropeway.core import fields
from ropeway.core.errors import RopewayError
from ropeway.core.job import DEFAULT_TENANT, Progress
from ropeway.core.lease import Lease
from ropeway.core.outcome import Lost
from ropeway.engines import settling
from ropeway.engines.postgres.outcomes import PostgresOutcomes, tickets_of
from ropeway.engines.postgres.takeback import take_back
from ropeway.engines.protocol import (
    Beat,
    Rescued,
)
from ropeway.runtime.faultpoints import fault


class PostgresBeating(PostgresOutcomes):
    async def progress(
        self, updates: Sequence[tuple[Lease, Progress]], *, tenant: str = DEFAULT_TENANT
    ) -> list[RopewayError | None]:
        if not updates:
            return []
        now = await self.now()
        notes = [msgspec.json.encode(settling.clean_progress(note, now)).decode() for _, note in updates]
        leases = [lease for lease, _ in updates]
        self.grants.moved(tenant, leases)
        arguments = tenant, *tickets_of(leases), notes
        rows = await self.with_retries(lambda: self.outcomes.fetch(self.sql("leasing", "progress"), *arguments))
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
        arguments = tenant, *tickets_of(leases), lease_seconds
        rows = await self.with_retries(lambda: self.beats.fetch(self.sql("leasing", "heartbeat"), *arguments))
        refused = [leases[row["item"] - 1].job_id for row in rows if row["expires_in"] is None]
        tickets = await self.last_tickets(tenant, refused) if refused else {}
        answers: list[Beat | RopewayError] = []
        for lease, row in zip(leases, rows, strict=True):
            if row["expires_in"] is None:
                answers.append(settling.refusal(lease, tickets.get(lease.job_id)))
            else:
                self.grants.told(lease.token, row["revoked"])
                answers.append(Beat(max(0.0, row["expires_in"]), tuple(row["revoked"])))
        return answers

    async def heartbeat_owner(self, owner: UUID, *, tenant: str = DEFAULT_TENANT) -> Beat | None:
        ended = self.grants.take_ended()
        try:
            rows = await self.with_retries(
                lambda: self.beats.fetch(self.sql("leasing", "heartbeat_owner"), tenant, owner, ended)
            )
        except RopewayError:
            self.grants.keep(ended)
            raise
        fault("beat.committed")
        if not rows:
            return None
        for row in rows:
            self.grants.told(row["token"], row["revoked"])
        working = [row for row in rows if not row["done"]] or rows
        return Beat(
            expires_in=max(0.0, min(row["expires_in"] for row in working)),
            revoked=tuple(id for row in rows for id in row["revoked"]),
        )

    async def other_grants(
        self, owner: UUID, known: Collection[UUID], *, tenant: str = DEFAULT_TENANT
    ) -> list[UUID]:
        others = await self.claims.fetch(
            self.sql("upkeeping", "other_grants"), tenant, owner, list(known), writes=False
        )
        if not others:
            return []
        # Most of them are merely not deleted yet.
        held = await self.claims.fetch(self.sql("upkeeping", "held_jobs"), [row["token"] for row in others])
        return list({row["lease_token"] for row in held})

    async def end_grants(
        self,
        owner: UUID,
        *,
        started: Collection[UUID] | None = None,
        lost: Lost = Lost(),
        only: Collection[UUID] | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Rescued]:
        grants = (tenant, owner, None if only is None else list(only))
        taken = await take_back(self, "owned_grants", grants, started, lost, sys.maxsize, channel=self.acts)
        fault("end.committed")
        return taken
