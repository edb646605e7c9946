"""The PostgreSQL engine's harness: one migrated schema, emptied between subjects, with a clock of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from ropeway.engines import sqlfile
from ropeway.engines.capabilities import Capability
from ropeway.engines.postgres import PostgresEngine
from ropeway.engines.postgres.connection import Address, connect
from ropeway.engines.protocol import Engine, EngineRules
from ropeway.runtime.clock import ManualClock
from ropeway.testing.conformance.subject import TEST_RULES

_MAKE_CLOCK = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.test_clock (one boolean PRIMARY KEY DEFAULT true CHECK (one), now timestamptz);
INSERT INTO {schema}.test_clock DEFAULT VALUES ON CONFLICT DO NOTHING;
CREATE OR REPLACE FUNCTION {schema}.test_now() RETURNS timestamptz LANGUAGE sql STABLE
AS 'SELECT now FROM {schema}.test_clock';
"""
_SET_CLOCK = "UPDATE {schema}.test_clock SET now = $1"
_SET_PACK_SIZE = """
CREATE OR REPLACE FUNCTION {schema}.pack_size() RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT ?'
"""
_EMPTY = """
DELETE FROM {schema}.jobs; DELETE FROM {schema}.archive; DELETE FROM {schema}.events; DELETE FROM {schema}.grants;
DELETE FROM {schema}.keys; DELETE FROM {schema}.queues; DELETE FROM {schema}.schedules;
DELETE FROM {schema}.workers; DELETE FROM {schema}.lines; DELETE FROM {schema}.event_packs;
DELETE FROM {schema}.api_keys; DELETE FROM {schema}.buckets; DELETE FROM {schema}.actions;
DELETE FROM {schema}.history;
DELETE FROM {schema}.tenants WHERE id <> 'default';
UPDATE {schema}.tenants SET name = id, email = NULL, is_active = true, limits = '{}', last_seen_at = NULL;
UPDATE {schema}.meta SET value = '0' WHERE name IN ('events_pruned_through', 'events_restored_through');
ALTER SEQUENCE {schema}.events_id_seq RESTART;
"""


class PostgresSubject:
    def __init__(
        self, harness: PostgresHarness, rules: EngineRules, control: asyncpg.Connection[asyncpg.Record]
    ) -> None:
        self._harness = harness
        self._rules = rules
        self._control = control
        self._others: list[PostgresEngine] = []
        self.clock = ManualClock()
        self.engine: Engine = harness.engine(rules)

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self._control.execute(self._harness.fill(_SET_CLOCK), self.clock.now())

    async def another(self) -> Engine:
        other = self._harness.engine(self._rules)
        self._others.append(other)
        await other.open()
        return other

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
        connection = await connect(Address.parse(self._harness.url))
        try:
            async with connection.transaction():
                yield connection
        finally:
            await connection.close()

    async def close(self) -> None:
        for engine in (self.engine, *self._others):
            await engine.close()


class PostgresHarness:
    """Give it the URL of a database it may use; it makes (once) and empties (each time) the schema."""

    name = "postgres"

    def __init__(
        self,
        url: str,
        *,
        schema: str = "ropeway_conformance",
        direct_url: str | None = None,
        pack_size: int | None = None,
    ) -> None:
        """`pack_size`: from how many jobs on a step is one row of the event log; None: as usual."""
        self.url = url
        self.schema = schema
        self._pack_size = pack_size
        #: Set when `url` leads through a transaction pooler: LISTEN and the clock then go straight to the server.
        self._direct_url = direct_url
        lacking = set() if direct_url is None else {Capability.TRANSACTIONAL_COMPLETION}
        self.capabilities: frozenset[Capability] = frozenset(Capability) - lacking
        self._migrated = False

    def engine(self, rules: EngineRules) -> PostgresEngine:
        return PostgresEngine(
            self.url,
            rules,
            schema=self.schema,
            listen_url=self._direct_url,
            test_clock=True,
            sweep_budget=0.0,
            days_ahead=1,
        )

    @asynccontextmanager
    async def subject(self, rules: EngineRules = TEST_RULES) -> AsyncIterator[PostgresSubject]:
        control = await connect(Address.parse(self._direct_url or self.url))
        try:
            subject = PostgresSubject(self, rules, control)
            if not self._migrated:
                await control.execute(self.fill(_MAKE_CLOCK))
                await subject.advance(0)
                await self._migrate(control)
            await control.execute(self.fill(_EMPTY))
            await subject.advance(0)
            try:
                await subject.engine.open()
                yield subject
            finally:
                await subject.close()
        finally:
            await control.close()

    def fill(self, text: str) -> str:
        return sqlfile.fill(text, {"schema": self.schema})

    async def _migrate(self, control: asyncpg.Connection[asyncpg.Record]) -> None:
        engine = self.engine(TEST_RULES)
        try:
            await engine.migrations.up()
        finally:
            await engine.close()
        if self._pack_size is not None:
            await control.execute(self.fill(_SET_PACK_SIZE).replace("?", str(self._pack_size)))
        self._migrated = True
