"""PostgreSQL databases that are migrated already: a copy takes 60 ms, the migrations themselves a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from ropeway.engines.postgres import PostgresEngine

MakeDatabase = Callable[..., str]


@pytest.fixture(scope="session")
def migrated_template(make_postgres_database: Any) -> str:
    """Name of a database with Ropeway's schema; nobody stays connected to it."""
    url = make_postgres_database()

    async def migrate() -> None:
        engine = PostgresEngine(url, days_ahead=1)
        try:
            await engine.migrations.up()
        finally:
            await engine.close()

    asyncio.run(migrate())
    return urlsplit(url).path.lstrip("/")


@pytest.fixture
def database(make_postgres_database: Any, migrated_template: str) -> str:
    """URL of a migrated database of this test's own."""
    return str(make_postgres_database(template=migrated_template))


@pytest.fixture(scope="module")
def module_database(make_postgres_database: Any, migrated_template: str) -> str:
    """URL of a migrated database that only this module uses."""
    return str(make_postgres_database(template=migrated_template))
