"""The PostgreSQL engine's harness: one migrated schema, emptied between subjects, with a clock of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

import asyncpg

from ropeway.engines import sqlfile
from ropeway.engines.capabilities import Capability
from ropeway.engines.postgres import PostgresEngine
from ropeway.engines.postgres.connection import Address, connect
from ropeway.engines.protocol import Engine, EngineRules
from ropeway.runtime.clock import ManualClock
from ropeway.testing.conformance.subject import TEST_RULES

_CLOCK = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.test_clock (now timestamptz NOT NULL);
CREATE OR REPLACE FUNCTION {schema}.test_now() RETURNS timestamptz LANGUAGE sql STABLE
AS 'SELECT now FROM {schema}.test_clock';
"""
_EMPTY = """
DELETE FROM {schema}.jobs; DELETE FROM {schema}.archive; DELETE FROM {schema}.events; DELETE FROM {schema}.grants;
DELETE FROM {schema}.keys; DELETE FROM {schema}.queues; DELETE FROM {schema}.schedules;
UPDATE {schema}.meta SET value = '0' WHERE name = 'events_pruned_through';
ALTER SEQUENCE {schema}.events_id_seq RESTART;
DELETE FROM {schema}.test_clock;
"""
_SET_CLOCK = "UPDATE {schema}.test_clock SET now = $1"


class PostgresSubject:
    def __init__(self, harness: PostgresHarness, rules: EngineRules) -> None:
        self._harness = harness
        self._rules = rules
        self._others: list[PostgresEngine] = []
        self.clock = ManualClock()
        self.engine: Engine = harness.engine(rules)

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self._harness.set_clock(self.clock.now())

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
    capabilities: frozenset[Capability] = PostgresEngine.capabilities

    def __init__(self, url: str, *, schema: str = "ropeway_conformance", direct_url: str | None = None) -> None:
        self.url = url
        self.schema = schema
        #: Set when `url` leads through a transaction pooler: LISTEN and the clock then go straight to the server.
        self._direct_url = direct_url
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
        subject = PostgresSubject(self, rules)
        try:
            if not self._migrated:
                await self._execute(_CLOCK)
            await self._empty(subject.clock.now(), first=not self._migrated, engine=self.engine(rules))
            await subject.engine.open()
            yield subject
        finally:
            await subject.close()

    async def set_clock(self, now: datetime) -> None:
        connection = await connect(Address.parse(self._direct_url or self.url))
        try:
            await connection.execute(sqlfile.fill(_SET_CLOCK, {"schema": self.schema}), now)
        finally:
            await connection.close()

    async def _empty(self, now: datetime, *, first: bool, engine: PostgresEngine) -> None:
        if first:
            await self._execute(f"INSERT INTO {self.schema}.test_clock VALUES ('{now.isoformat()}')")
            try:
                await engine.migrations.up()
            finally:
                await engine.close()
            self._migrated = True
        await self._execute(_EMPTY + f"INSERT INTO {{schema}}.test_clock VALUES ('{now.isoformat()}');")

    async def _execute(self, text: str) -> None:
        connection = await connect(Address.parse(self._direct_url or self.url))
        try:
            await connection.execute(sqlfile.fill(text, {"schema": self.schema}))
        finally:
            await connection.close()
