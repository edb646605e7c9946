"""docs/settings.md and the settings themselves say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ropeway.settings import default_of, describe, setting_names, variable_of

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"

ROW = re.compile(
    r"^\| `(?P<name>[a-z_]+)` \| `(?P<variable>\w+)` \| (?P<default>.*?) \| (?P<meaning>.*) \|$", re.MULTILINE
)


@pytest.fixture(scope="module")
def rows() -> dict[str, re.Match[str]]:
    return {row["name"]: row for row in ROW.finditer(PAGE.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("name", setting_names())
def test_a_setting_is_documented_as_it_is(name: str, rows: dict[str, re.Match[str]]) -> None:
    assert name in rows, f"docs/settings.md has no row for {name}"
    row = rows[name]
    assert row["variable"] == variable_of(name)
    assert row["meaning"] == describe(name)
    default = default_of(name)
    if default is None:
        assert row["default"] == "none"
    elif isinstance(default, str):
        assert row["default"] == f"`{default}`"
    else:
        assert float(row["default"].strip("`")) == default


def test_no_setting_is_documented_that_does_not_exist(rows: dict[str, re.Match[str]]) -> None:
    assert set(rows) == set(setting_names())
