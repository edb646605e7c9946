"""Taking jobs back from owners that are gone: grants first, under their lock, then the jobs that still carry them.

While the grants are locked no heartbeat can extend them, and a job that was settled meanwhile no longer carries
the token: state, token and expiry are all checked by the statements that write.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg

from ropeway.core.decide import JobFacts, decide
from ropeway.core.lease import Lease
from ropeway.core.outcome import Lost, Released
from ropeway.core.states import State
from ropeway.engines.postgres.rows import known_policy
from ropeway.engines.postgres.transitions import apply_transitions
from ropeway.engines.protocol import Rescued
from ropeway.engines.settling import Change, after_write

if TYPE_CHECKING:
    from ropeway.engines.postgres.connection import Channel
    from ropeway.engines.postgres.store import PostgresStore


#: Jobs taken back per transaction, about: short enough for any statement timeout, however much there is to do.
STEP = 1_000


async def take_back(
    store: PostgresStore,
    grants: str,
    arguments: tuple[Any, ...],
    started: Collection[UUID] | None,
    lost: Lost,
    limit: int,
    *,
    channel: Channel | None = None,
) -> list[Rescued]:
    """End grants that the statement `grants` locks, until about `limit` jobs were taken back: started jobs (None:
    all) are lost, the rest released. A chore, unless somebody waits for it on another `channel`."""
    rescued: list[Rescued] = []
    while len(rescued) < limit:
        step = min(STEP, limit - len(rescued))
        taking = _step(store, channel or store.chores, grants, arguments, started, lost, step)
        ended, taken = await (after_write(taking) if rescued else taking)
        rescued += taken
        if not ended:
            break
    return rescued


async def _step(
    store: PostgresStore,
    channel: Channel,
    grants: str,
    arguments: tuple[Any, ...],
    started: Collection[UUID] | None,
    lost: Lost,
    limit: int,
) -> tuple[int, list[Rescued]]:
    """One transaction of it: how many grants are gone, and the jobs that were taken back."""

    async def run() -> tuple[int, list[tuple[asyncpg.Record, asyncpg.Record]]]:
        async with channel.transaction() as connection:
            tokens: list[UUID] = []
            jobs = 0
            for row in await connection.fetch(store.sql("upkeeping", grants), *arguments):
                if jobs >= limit:
                    break
                tokens.append(row["token"])
                jobs += row["jobs"]
            if not tokens:
                return 0, []
            held = await connection.fetch(store.sql("upkeeping", "held_jobs"), tokens)
            changes = [(row["tenant"], change_for(store, row, started, lost)) for row in held]
            written = await apply_transitions(store, connection, changes) if changes else []
            ended: int = await connection.fetchval(store.sql("upkeeping", "delete_grants"), tokens)
            return ended, list(zip(held, written, strict=True))

    ended, taken = await store.with_retries(run)
    return ended, announce(store, taken)


def announce(store: PostgresStore, taken: list[tuple[asyncpg.Record, asyncpg.Record]]) -> list[Rescued]:
    """Say which lanes have work again, and answer what became of each job."""
    lanes = {(row["tenant"], applied["queue"]) for row, applied in taken if applied["state"] == State.QUEUED}
    for tenant, queue in lanes:
        store.cursors.disturb(tenant, queue)
    store.wakeups.signal(lanes)
    return [
        Rescued(row["tenant"], row["id"], State(applied["state"]))
        for row, applied in taken
        if applied["state"] is not None
    ]


def change_for(store: PostgresStore, row: asyncpg.Record, started: Collection[UUID] | None, lost: Lost) -> Change:
    facts = JobFacts(
        row["attempts"],
        row["max_attempts"],
        row["failures"],
        row["lost"],
        known_policy(row["retry"]),
    )
    outcome = lost if started is None or row["id"] in started else Released()
    lease = Lease(row["id"], row["attempt"], row["lease_token"])
    return Change(lease, decide(facts, outcome, 0.0, store.rules.decisions))
