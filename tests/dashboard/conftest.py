"""Stores for the dashboard: those of the API's tests, each empty and of one test alone."""

from __future__ import annotations

import pytest

from tests.api.conftest import make_migrated_store, memory_store, postgres_store, sqlite_store

__all__ = ["any_store", "local_store", "make_migrated_store", "memory_store", "postgres_store", "sqlite_store"]


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def any_store(request: pytest.FixtureRequest) -> str:
    """The test runs once on each engine."""
    store: str = request.getfixturevalue(f"{request.param}_store")
    return store


@pytest.fixture(params=["memory", "sqlite"])
def local_store(request: pytest.FixtureRequest) -> str:
    """The test runs once on each engine that needs no server."""
    store: str = request.getfixturevalue(f"{request.param}_store")
    return store
