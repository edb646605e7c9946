"""What the documents show works as it is written there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import ropeway
from ropeway.core import errors

ROOT = Path(__file__).resolve().parents[2]


def test_the_readmes_program_runs(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == 'email.send b\'{"to": "a@example.com"}\'\n'
    assert (tmp_path / "ropeway.db").exists()


def test_every_file_that_the_documents_link_to_is_there() -> None:
    for page in (
        ROOT / "README.md",
        ROOT / "ARCHITECTURE.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").glob("*.md"),
    ):
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_every_error_is_documented() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text()
    tree = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RopewayError)
    ]
    families = {errors.RopewayError, errors.InputError, errors.ConflictError, errors.EngineError}
    for kind in tree:
        if kind not in families:
            assert f"`{kind.__name__}`" in page, kind.__name__
            assert f"`{kind.code}`" in page, kind.code
        assert kind.__name__ in (errors.__doc__ or "")
        assert kind.__name__ in ropeway.__all__


def test_the_promised_names_are_pinned() -> None:
    assert sorted(ropeway.__all__) == ropeway.__all__
    assert all(hasattr(ropeway, name) for name in ropeway.__all__)
    assert len(ropeway.__all__) == 49, (
        "a promised name came or went: say so in CHANGELOG.md and change this number"
    )
