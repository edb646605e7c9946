"""An app of its own for each test, whose real store must never come into being."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ropeway import Ropeway


@pytest.fixture
def real_store(tmp_path: Path) -> Path:
    return tmp_path / "real.db"


@pytest.fixture
def app(real_store: Path) -> Iterator[Ropeway]:
    yield Ropeway(f"sqlite:///{real_store}")
    assert not real_store.exists(), "a test of the kit has reached the real store"


@pytest.fixture
def ropeway_app(app: Ropeway) -> Ropeway:
    return app
