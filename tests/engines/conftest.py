"""PostgreSQL databases that are migrated already. To empty one takes 3 ms, to make one 200."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from tests.engines.pg_kit import migrated

_EMPTY = """
DELETE FROM ropeway.jobs; DELETE FROM ropeway.archive; DELETE FROM ropeway.events; DELETE FROM ropeway.grants;
DELETE FROM ropeway.keys; DELETE FROM ropeway.queues; DELETE FROM ropeway.schedules;
DELETE FROM ropeway.workers; DELETE FROM ropeway.lines; DELETE FROM ropeway.event_packs;
DELETE FROM ropeway.api_keys; DELETE FROM ropeway.buckets; DELETE FROM ropeway.actions;
DELETE FROM ropeway.tenants WHERE id <> 'default';
UPDATE ropeway.tenants SET name = id, email = NULL, is_active = true, limits = '{}', last_seen_at = NULL;
UPDATE ropeway.meta SET value = '0' WHERE name IN ('events_pruned_through', 'events_restored_through');
DROP SCHEMA public CASCADE; CREATE SCHEMA public;
"""


@pytest.fixture(scope="session")
def _shared_database(make_postgres_database: Any) -> str:
    return migrated(make_postgres_database())


@pytest.fixture
def database(_shared_database: str) -> str:
    """URL of a migrated database without jobs. Whoever changes the schema or its settings takes a fresh one."""

    async def empty() -> None:
        connection = await asyncpg.connect(_shared_database)
        try:
            # A transaction that an earlier test left open ends with its connection, a moment after that.
            await connection.execute(_EMPTY)
        finally:
            await connection.close()

    asyncio.run(empty())
    return _shared_database


@pytest.fixture
def fresh_database(make_postgres_database: Any) -> str:
    """URL of a migrated database of this test's own, to be spoiled."""
    return migrated(make_postgres_database())
