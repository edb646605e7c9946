"""Stores for the application: each test has an empty one of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.engines.pg_kit import migrated


@pytest.fixture(scope="session")
def make_migrated_store(make_postgres_database: Any) -> Callable[[], str]:
    """Copies of one migrated database."""
    template = urlsplit(migrated(make_postgres_database())).path.lstrip("/")
    return lambda: make_postgres_database(template=template)


@pytest.fixture
def postgres_store(make_migrated_store: Callable[[], str]) -> str:
    return make_migrated_store()


@pytest.fixture
def sqlite_store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
def memory_store() -> str:
    return "memory://"


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def any_store(request: pytest.FixtureRequest) -> str:
    """The test runs once on each engine."""
    store: str = request.getfixturevalue(f"{request.param}_store")
    return store
