"""The PostgreSQL engine: the sum of its parts, and the checks when it opens. No SQL here."""

from __future__ import annotations

from collections.abc import Collection
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ropeway.core.errors import ConfigurationError
from ropeway.core.job import DEFAULT_TENANT
from ropeway.engines.postgres.beating import PostgresBeating
from ropeway.engines.postgres.claiming import PostgresClaiming
from ropeway.engines.postgres.completing import PostgresCompleting
from ropeway.engines.postgres.durability import check_server
from ropeway.engines.postgres.inspecting import PostgresInspecting
from ropeway.engines.postgres.lines import PostgresLines
from ropeway.engines.postgres.migrating import PostgresMigrations
from ropeway.engines.postgres.operating import PostgresOperating
from ropeway.engines.postgres.scheduling import PostgresScheduling
from ropeway.engines.postgres.signalling import PostgresSubscription
from ropeway.engines.postgres.tailing import PostgresTailing
from ropeway.engines.postgres.tenancy import PostgresTenancy
from ropeway.engines.postgres.upkeeping import PostgresUpkeeping

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine


class PostgresEngine(
    PostgresScheduling,
    PostgresClaiming,
    PostgresBeating,
    PostgresLines,
    PostgresCompleting,
    PostgresOperating,
    PostgresInspecting,
    PostgresTailing,
    PostgresUpkeeping,
    PostgresTenancy,
):
    """`postgresql://`: for production and fleets. Works on PostgreSQL 15 to 18, in any schema."""

    name = "postgres"

    @property
    def migrations(self) -> PostgresMigrations:
        return PostgresMigrations(self)

    async def open(self) -> None:
        """Connect; check version, durability and schema; see that partitions are there and whose log this is."""
        await check_server(self.reads, relaxed=self.durability == "relaxed")
        status = await self.migrations.status()
        if status.pending:
            raise ConfigurationError(
                f"the schema {self.schema!r} lacks {len(status.pending)} migration(s)",
                hint="run: ropeway migrate up",
            )
        await self.ensure_partitions()
        # Before anything is written: what a copy brought with it must not be taken for new.
        await self.log_bounds()
        # A wake-up is sent after its enqueue has returned, which is the end of many a short program: it must not
        # find a connection half made.
        await self.signals.value("SELECT 1", writes=False)

    async def subscribe(self, queues: Collection[str], *, tenant: str = DEFAULT_TENANT) -> PostgresSubscription:
        return await self.wakeups.subscribe(tenant, queues)

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


if TYPE_CHECKING:
    _: Engine = PostgresEngine("")
