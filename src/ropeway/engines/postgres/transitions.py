"""Decided transitions, written by one function under the fence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import asyncpg
import msgspec

from ropeway.engines.settling import Change

if TYPE_CHECKING:
    from ropeway.engines.postgres.store import PostgresStore


async def apply_transitions(
    store: PostgresStore,
    connection: asyncpg.Connection[asyncpg.Record],
    changes: Sequence[tuple[str, Change]],
) -> list[asyncpg.Record]:
    """Write `(tenant, change)` pairs in the open transaction; a row per pair, its state NULL if fenced off."""
    leases = [change.lease for _, change in changes]
    moves = [change.transition for _, change in changes]
    details = [move.detail() for move in moves]
    return await connection.fetch(
        store.sql("leasing", "apply_transitions"),
        [tenant for tenant, _ in changes],
        [lease.job_id for lease in leases],
        [lease.attempt for lease in leases],
        [lease.token for lease in leases],
        [move.verb.value for move in moves],
        [move.target.value for move in moves],
        [move.event.value for move in moves],
        [move.delay for move in moves],
        [move.run_at for move in moves],
        [move.refund for move in moves],
        [move.failed for move in moves],
        [move.lost for move in moves],
        [None if move.dead_reason is None else move.dead_reason.value for move in moves],
        [None if move.error is None else msgspec.json.encode(move.error).decode() for move in moves],
        [msgspec.json.encode(detail).decode() if detail else None for detail in details],
    )
