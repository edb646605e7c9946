"""What a run says of what it measured."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench.peers import machine


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit."""
    _git(tmp_path, "init", "--quiet")
    _git(tmp_path, "config", "user.name", "somebody")
    _git(tmp_path, "config", "user.email", "somebody@example.org")
    _write(tmp_path / "src" / "engine.py", "fast")
    _committed(tmp_path)
    return tmp_path


def test_results_and_documents_do_not_change_what_was_measured(repository: Path) -> None:
    before = list(machine.commit(repository))
    assert before == [f"commit {_git(repository, 'rev-parse', '--short', 'HEAD')}"]
    _write(repository / "bench" / "results.json", "{}")
    assert list(machine.commit(repository)) == before
    _committed(repository)
    assert list(machine.commit(repository)) == before


def test_a_change_of_what_is_measured_is_told(repository: Path) -> None:
    (before,) = machine.commit(repository)
    _write(repository / "bench" / "peers" / "runs.py", "another way")
    assert list(machine.commit(repository)) == [f"{before}-dirty"]
    _committed(repository)
    assert list(machine.commit(repository)) == [f"commit {_git(repository, 'rev-parse', '--short', 'HEAD')}"]


def test_where_there_is_no_repository_nothing_is_told(tmp_path: Path) -> None:
    assert list(machine.commit(tmp_path)) == []


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _committed(root: Path) -> None:
    _git(root, "add", "--all")
    _git(root, "commit", "--quiet", "--message", "a change")


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.strip()
