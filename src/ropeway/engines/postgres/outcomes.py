"""Outcomes: acks in one statement, everything else row by row, all under the fence."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import asyncpg

from ropeway.core.decide import JobFacts
from ropeway.core.errors import EngineError, InputError, LeaseLost, RopewayError
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.lease import LastTicket, Lease
from ropeway.core.outcome import Lost
from ropeway.core.payload import clean_result
from ropeway.core.states import State, Verb
from ropeway.engines import settling
from ropeway.engines.capabilities import Capability
from ropeway.engines.postgres import transactional
from ropeway.engines.postgres.fields import folded
from ropeway.engines.postgres.grants import Spot
from ropeway.engines.postgres.rows import known_policy
from ropeway.engines.postgres.store import PostgresStore
from ropeway.engines.postgres.takeback import take_back
from ropeway.engines.postgres.transitions import apply_transitions
from ropeway.engines.protocol import (
    Settled,
    Settlement,
)
from ropeway.engines.settling import Applied, Change, Completion
from ropeway.runtime.backoff import Backoff

#: Seconds after which a claim whose answer was lost is looked for, again and again: its statement may still be
#: under way when the first look finds nothing.
LOOK_FOR_LOST = (0.0, 0.5, 2.0, 10.0, 30.0)

#: The state of `complete_jobs` when a row that is none of the tickets' lies at one of their spots.
STRANGER = "RW409"


class PostgresOutcomes(PostgresStore):
    def give_back(self, tokens: Sequence[UUID]) -> None:
        """Release, soon, whatever was claimed under these grants: their caller never heard of them.

        Owner heartbeats would keep such a grant alive for ever, so waiting for it to expire is not enough.
        """
        if tokens:
            self.in_background(self._give_back(list(tokens)))

    async def _give_back(self, tokens: list[UUID]) -> None:
        for pause in LOOK_FOR_LOST:
            await asyncio.sleep(pause)
            await self._taken_back(tokens)

    async def _taken_back(self, tokens: list[UUID]) -> None:
        """One look that counts: while the store is away nothing was looked at."""
        backoff = Backoff(0.5, 10.0)
        while True:
            try:
                await take_back(self, "given_grants", (tokens,), frozenset(), Lost(), sys.maxsize)
            except EngineError:
                await asyncio.sleep(backoff.next())
            else:
                return

    async def settle(
        self, settlements: Sequence[Settlement], *, tenant: str = DEFAULT_TENANT
    ) -> list[Settled | RopewayError]:
        answers = await settling.settle(self, tenant, settlements, self.rules)
        told = zip(settlements, answers, strict=True)
        # An outcome that was refused for what it says is no answer: the job still runs under its grant.
        self.grants.answered(tenant, [done.lease for done, answer in told if not isinstance(answer, InputError)])
        return answers

    async def settle_in(
        self, connection: Any, lease: Lease, result: bytes | None = None, *, tenant: str = DEFAULT_TENANT
    ) -> Settled:
        self.require(Capability.TRANSACTIONAL_COMPLETION)
        cleaned = clean_result(result, max_bytes=self.rules.max_payload_bytes)
        text = None if cleaned.data is None else cleaned.data.decode()
        arguments = [
            tenant, str(lease.job_id), lease.attempt, str(lease.token), text, cleaned.sanitized, cleaned.too_large
        ]  # fmt: skip
        await self.expect_partitions()
        if not await transactional.complete(connection, self.schema, arguments):
            raise LeaseLost("this lease is not the job's current one", hint="roll the transaction back")
        return Settled(
            lease.job_id,
            State.SUCCEEDED,
            sanitized=cleaned.sanitized,
            result_too_large=cleaned.too_large,
        )

    async def complete(self, tenant: str, completions: Sequence[Completion]) -> list[bool]:
        spots = self.grants.spots(tenant, [completion.lease for completion in completions])
        written = await self._complete_many(tenant, completions, spots)
        moved = [i for i, done in enumerate(written) if not done and spots[i] is not None]
        if moved:
            # Another process has changed these rows while the jobs ran: they lie elsewhere.
            again = self._complete_many(tenant, [completions[i] for i in moved], [])
            for i, done in zip(moved, await (settling.after_write(again) if any(written) else again), strict=True):
                written[i] = done
        for i, done in enumerate(written):
            if not done:
                alone = self._complete_one(tenant, completions[i])
                written[i] = await (settling.after_write(alone) if any(written) else alone)
        return written

    async def _complete_many(
        self, tenant: str, completions: Sequence[Completion], spots: Sequence[Spot | None]
    ) -> list[bool]:
        """One statement; False for each ticket whose row it did not find. Without `spots` it looks by key."""
        ended = self.grants.take_ended()
        leases = [completion.lease for completion in completions]
        results = [completion.result for completion in completions]
        plain = all(result.data is None and not result.too_large for result in results)
        tokens = folded([lease.token for lease in leases])
        arguments = (
            tenant,
            [lease.job_id for lease in leases],
            spots,
            folded([lease.attempt for lease in leases]),
            tokens,
            list(set(tokens)),
            [] if plain else [None if r.data is None else r.data.decode() for r in results],
            [] if plain else [r.sanitized for r in results],
            [] if plain else [r.too_large for r in results],
            ended,
        )
        try:
            done = await self.with_retries(
                lambda: self.outcomes.value(self.sql("leasing", "complete"), *arguments)
            )
        except RopewayError:
            self.grants.keep(ended)
            raise
        except asyncpg.PostgresError as error:
            self.grants.keep(ended)
            if error.sqlstate != STRANGER:
                raise
            return await self._complete_many(tenant, completions, [])
        if done is None:
            return [True] * len(leases)
        written = set(done)
        return [lease.job_id in written for lease in leases]

    async def _complete_one(self, tenant: str, completion: Completion) -> bool:
        """The last word on a ticket that the batch did not find: its row may have changed while it waited."""
        lease, result = completion.lease, completion.result
        written: bool = await self.with_retries(
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
        rows = await self.outcomes.fetch(self.sql("leasing", "facts"), tenant, *tickets_of(leases), writes=False)
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
        ended = self.grants.take_ended()

        async def run() -> list[asyncpg.Record]:
            async with self.outcomes.transaction() as connection:
                written = await apply_transitions(self, connection, [(tenant, change) for change in changes])
                if ended:
                    await connection.fetchval(self.sql("upkeeping", "delete_grants"), ended)
                return written

        try:
            rows = await self.with_retries(run)
        except RopewayError:
            self.grants.keep(ended)
            raise
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


def tickets_of(leases: Sequence[Lease]) -> tuple[list[UUID], list[int], list[UUID]]:
    """Tickets as the arrays that functions take."""
    return (
        [lease.job_id for lease in leases],
        [lease.attempt for lease in leases],
        [lease.token for lease in leases],
    )
