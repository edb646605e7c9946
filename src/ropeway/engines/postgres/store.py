"""What all parts of the PostgreSQL engine share: its channels, its statements, its memory of hints."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar

import asyncpg

from ropeway.core.errors import ConfigurationError, NotSupported, Unavailable
from ropeway.engines import sqlfile
from ropeway.engines.capabilities import Capability
from ropeway.engines.choosing import EmptyQueues, PriorityOrders
from ropeway.engines.postgres.connection import Address, Bounds, Channel
from ropeway.engines.postgres.cursors import BUDGET, LaneCursors
from ropeway.engines.postgres.grants import GrantBook
from ropeway.engines.postgres.pool import Pool
from ropeway.engines.postgres.signalling import Wakeups
from ropeway.engines.protocol import EngineRules

T = TypeVar("T")

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}\Z")

#: The engine's clock. In tests it is a function over a one-row table, so statements and plans stay the same.
REAL_CLOCK = "clock_timestamp()"
TEST_CLOCK = "{schema}.test_now()"

#: Times further ahead than this are checked against the engine's own clock, at the price of one more question.
NEAR_HORIZON = timedelta(days=365 * 9)

#: How often the victim of a deadlock tries again.
DEADLOCK_TRIES = 3

#: How many days ahead partitions are made.
DAYS_AHEAD = 14

#: Seconds for which partitions that were seen to be there are relied on.
PARTITIONS_KNOWN = 43_200.0


class PostgresStore:
    """Connections by kind of work, and the named statements of `sql/`, ready for one schema."""

    capabilities = frozenset(Capability)

    def __init__(
        self,
        url: str,
        rules: EngineRules = EngineRules(),
        *,
        schema: str = "ropeway",
        listen_url: str | None = None,
        durability: Literal["full", "relaxed"] = "full",
        bounds: Bounds | None = None,
        test_clock: bool = False,
        sweep_budget: float = BUDGET,
        days_ahead: int = DAYS_AHEAD,
    ) -> None:
        if not _SCHEMA.match(schema):
            raise ConfigurationError(
                f"{schema!r} cannot be a schema name", hint="use lower-case letters, digits and _"
            )
        self.rules = rules
        self.schema = schema
        self.durability: Literal["full", "relaxed", "none"] = durability
        self.address = Address.parse(url)
        if self.address.pooled:
            # A handler's transaction would keep a backend of the pool for as long as the handler takes.
            self.capabilities = self.capabilities - {Capability.TRANSACTIONAL_COMPLETION}
        self.days_ahead = days_ahead
        clock = sqlfile.fill(TEST_CLOCK, {"schema": schema}) if test_clock else REAL_CLOCK
        self.holes = {"schema": schema, "now": clock}
        self.bounds = bounds
        #: One connection each, made when first used: a claim never waits behind a report, a heartbeat never behind
        #: a chore, a job without a key never behind a held key, an operator never behind upkeep, a request's
        #: admission never behind any of them.
        self.claims = Channel(self.address, bounds)
        self.outcomes = Channel(self.address, bounds)
        self.inserts = Channel(self.address, bounds)
        self.keyed = Channel(self.address, bounds)
        self.beats = Channel(self.address, bounds)
        self.signals = Channel(self.address, bounds)
        self.notes = Channel(self.address, bounds)
        self.acts = Channel(self.address, bounds, carries=True)
        self.reads = Channel(self.address, bounds)
        self.access = Channel(self.address, bounds)
        #: Upkeep and migrations take the time they take.
        self.chores = Channel(self.address)
        #: What handlers write in transactions of their own, for as long as each takes.
        self.handlers = Pool(self.address)
        self.cursors = LaneCursors(sweep_budget)
        self.orders = PriorityOrders(rules.ageing_seconds, rules.ageing_lookup_seconds)
        self.empty = EmptyQueues()
        self.grants = GrantBook()
        listen = self.address if listen_url is None else Address.parse(listen_url)
        self.wakeups = Wakeups(schema, self.signals, listen, pooled=self.address.pooled and listen_url is None)
        #: Tenants and queues whose counts stop early, as of the last look at them.
        self.long_lines: set[tuple[str, str]] = set()
        self._partitions = asyncio.Lock()
        self._partitions_seen = time.monotonic()
        self._secrets: dict[str, str] = {}
        self._background: set[asyncio.Task[None]] = set()

    def require(self, capability: Capability) -> None:
        """Refuse what this engine declares it lacks."""
        if capability not in self.capabilities:
            raise NotSupported(
                f"there is no {capability.value.replace('_', ' ')} behind a connection pooler",
                hint="give the engine a direct URL, without ?pooled=1",
            )

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` beside the calls; what is left of it ends with the engine."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def sql(self, file: str, name: str) -> str:
        """A named statement of `sql/<file>.sql` with its holes filled."""
        return _filled(file, name, self.schema, self.holes["now"])

    async def now(self) -> datetime:
        now: datetime = await self.reads.value(sqlfile.fill("SELECT {now}", self.holes), writes=False)
        return now

    async def secret(self) -> bytes:
        return bytes.fromhex(await self.stored_secret("secret"))

    async def stored_secret(self, name: str) -> str:
        """A secret that was made with the store, read once."""
        if name not in self._secrets:
            self._secrets[name] = await self.reads.value(self.sql("inspecting", "secret"), name, writes=False)
        return self._secrets[name]

    async def clock_for(self, *times: datetime | None) -> datetime:
        """A clock to check the horizon of `times` with: the host's, unless one of them comes near the horizon."""
        host = datetime.now(UTC)
        near = any(time is not None and time - host > NEAR_HORIZON for time in times)
        return await self.now() if near else host

    async def with_retries(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run `call`, which is one transaction; again when a partition is missing (it is attached first), or when
        it was the victim of a deadlock: then nothing of it was stored."""
        for attempt in range(DEADLOCK_TRIES):
            try:
                return await call()
            except asyncpg.CheckViolationError as error:
                # Only a row without a partition breaks a check that has no name; messages may be in any language.
                if error.constraint_name is not None or attempt:
                    raise
                await self.ensure_partitions()
            except Unavailable as error:
                if not isinstance(error.__cause__, asyncpg.DeadlockDetectedError):
                    raise
        return await call()

    async def ensure_partitions(self) -> int:
        """Make the daily partitions for today and the days ahead; answers how many were missing."""
        async with self._partitions:
            today = (await self.now()).date()
            made: int = await self.chores.value(
                sqlfile.fill("SELECT {schema}.ensure_partitions($1, $2)", self.holes),
                today - timedelta(days=1),
                today + timedelta(days=self.days_ahead),
            )
            self._partitions_seen = time.monotonic()
            return made

    async def expect_partitions(self) -> None:
        """Before a statement of someone else's transaction, which a missing partition would break: nothing of it
        can be repeated here. So they are looked at again long before those made ahead run out."""
        if time.monotonic() - self._partitions_seen > PARTITIONS_KNOWN:
            await self.ensure_partitions()

    async def close(self) -> None:
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background)
        await self.wakeups.close()
        for channel in (
            self.claims,
            self.outcomes,
            self.inserts,
            self.keyed,
            self.beats,
            self.signals,
            self.notes,
            self.acts,
            self.reads,
            self.access,
            self.chores,
        ):
            await channel.close()
        await self.handlers.close()


_statements: dict[tuple[str, str, str, str], str] = {}


def _filled(file: str, name: str, schema: str, now: str) -> str:
    known = (file, name, schema, now)
    if known not in _statements:
        text = sqlfile.statements("ropeway.engines.postgres", f"sql/{file}.sql")[name]
        _statements[known] = sqlfile.fill(text, {"schema": schema, "now": now})
    return _statements[known]
