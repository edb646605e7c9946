"""An experiment whose tool is missing says so: it is not run, and never passed."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos import earlier
from chaos.experiments import pooling
from chaos.stage import RunBroken, Stage


async def test_without_pgbouncer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling, "find_pgbouncer", lambda: None)
    stage = Stage("postgres", tmp_path, 1, lease_seconds=3.0)
    with pytest.raises(RunBroken, match="PgBouncer is not installed"):
        async with pooling.behind_a_pooler(stage):
            pass
    stage.nemesis.close()


def test_without_a_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(RunBroken, match="git log failed"):
        earlier.version_before(tmp_path)
