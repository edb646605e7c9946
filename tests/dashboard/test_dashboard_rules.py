"""What the code of the dashboard keeps to, whatever it does."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ropeway import dashboard

FILES = sorted(Path(dashboard.__file__).parent.glob("*.py"))


def calls_of_the_engine(source: str) -> list[str]:
    """Every call of something that is called an engine."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value)
            if owner.rpartition(".")[2].lstrip("_") == "engine":
                found.append(f"{owner}.{node.func.attr}")
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_dashboard_asks_services_and_never_the_engine(file: Path) -> None:
    assert calls_of_the_engine(file.read_text()) == []


def test_a_call_of_the_engine_would_be_seen() -> None:
    assert calls_of_the_engine("visit.engine.now(); self._engine.get(x); Jobs(visit.engine).get(y)") == [
        "visit.engine.now",
        "self._engine.get",
    ]
