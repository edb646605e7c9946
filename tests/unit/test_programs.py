"""Programs that tests need: found, too old, broken, or not to be had, each told as what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from devtools.private import NotAvailable
from devtools.programs import obtain_program


def put(folder: Path, name: str, answer: str) -> Path:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)
    return program


def test_a_program_on_the_path_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = put(tmp_path, "node", "echo v20.1.0")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert obtain_program("node") == str(program)


def test_one_that_is_too_old_is_told_with_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "node", "echo v18.9.1")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotAvailable, match=r"version 18\.9, and 18\.17 is the oldest"):
        obtain_program("node")


def test_one_that_does_not_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "curl", "exit 3")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotAvailable, match="does not run"):
        obtain_program("curl")


def test_one_that_cannot_be_installed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotAvailable, match="nodejs is missing and this machine has no apt-get"):
        obtain_program("node")
