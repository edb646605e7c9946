"""docs/errors.md has one entry for every code of the HTTP API, with its status and title, and no other."""

from __future__ import annotations

import re

import pytest

from ropeway.wire.problems import CODES
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
ENTRIES = dict(re.findall(r"^### `(\w+)`\n\n(.*?)(?=\n\n##|\Z)", PAGE, re.MULTILINE | re.DOTALL))


def test_every_code_has_its_entry_and_every_entry_its_code() -> None:
    assert sorted(ENTRIES) == sorted(CODES)
    assert PAGE.count("\n### ") == len(CODES)


@pytest.mark.parametrize("code", sorted(CODES))
def test_an_entry_says_what_it_is_and_what_to_do(code: str) -> None:
    status, title, _ = CODES[code]
    entry = ENTRIES[code]
    head = f"**{status} {title}.**"
    assert entry.startswith(head)
    assert len(entry) - len(head) > 60, "it says what happened, why, and what to do"


def test_entries_stand_under_their_status() -> None:
    for heading, body in re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL):
        numbers = [int(word) for word in re.findall(r"\d{3}", heading)]
        for status in map(int, re.findall(r"^\*\*(\d{3}) ", body, re.MULTILINE)):
            if "5xx" in heading:
                assert status >= 500
            elif " to " in heading.partition(":")[0]:
                assert numbers[0] <= status <= numbers[1], heading
            else:
                assert status in numbers, heading
