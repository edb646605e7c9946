"""Completing: a handler's own writes and the end of its job, in one transaction (G4)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import asyncpg
from asyncpg.transaction import Transaction

from ropeway.core.errors import LeaseLost, Unavailable
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.lease import Lease
from ropeway.engines.capabilities import Capability
from ropeway.engines.postgres.connection import BROKEN, Explained, standby_confirms
from ropeway.engines.postgres.outcomes import PostgresOutcomes
from ropeway.engines.postgres.pool import Connection


class PostgresCompleting(PostgresOutcomes):
    def transaction(
        self, lease: Lease, result: Callable[[], bytes | None], *, tenant: str = DEFAULT_TENANT
    ) -> AbstractAsyncContextManager[Any]:
        self.require(Capability.TRANSACTIONAL_COMPLETION)
        return self._handlers_transaction(lease, result, tenant)

    @asynccontextmanager
    async def _handlers_transaction(
        self, lease: Lease, result: Callable[[], bytes | None], tenant: str
    ) -> AsyncIterator[Connection]:
        async with self.handlers.begun() as (connection, transaction):
            try:
                yield connection
                await self._complete_in(connection, lease, result(), tenant)
            except BaseException:
                with suppress(*BROKEN, asyncpg.PostgresError):
                    await transaction.rollback()
                raise
            await _commit(connection, transaction)
        self.grants.answered(tenant, [lease])

    async def _complete_in(self, connection: Connection, lease: Lease, result: bytes | None, tenant: str) -> None:
        """The last statement. Nothing is committed yet, so whatever goes wrong here, nothing was stored."""
        try:
            with Explained(writes=False):
                await self.settle_in(connection, lease, result, tenant=tenant)
        except LeaseLost:
            self.grants.answered(tenant, [lease])
            raise
        except asyncpg.CheckViolationError as error:
            # Only a row without a partition breaks a check that has no name.
            if error.constraint_name is not None:
                raise
            await self.ensure_partitions()
            raise Unavailable("a partition of today was missing", hint="it is there now; try again") from error


async def _commit(connection: Connection, transaction: Transaction) -> None:
    """Commit; Indeterminate when its answer, or its standby's, was lost."""
    with standby_confirms(connection), Explained(writes=True):
        await transaction.commit()
