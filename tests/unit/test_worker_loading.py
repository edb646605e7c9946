"""From what a person types to an app; what does not work is told in one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropeway.core.errors import ConfigurationError
from ropeway.worker.loading import load_program

APP = "from ropeway import Ropeway\napp = Ropeway('memory://')\n@app.task\ndef hello() -> None: ...\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_a_file_a_module_and_an_attribute(folder: Path) -> None:
    (folder / "jobs_of_mine.py").write_text(APP)
    (folder / "pkg_of_mine").mkdir()
    (folder / "pkg_of_mine" / "tasks.py").write_text(APP.replace("app =", "other = app ="))
    for target in (
        "jobs_of_mine.py",
        str(folder / "jobs_of_mine.py"),
        "jobs_of_mine",
        "jobs_of_mine:app",
        "pkg_of_mine.tasks",
        "pkg_of_mine.tasks:other",
    ):
        assert "hello" in load_program(target).registry.names()


def test_a_file_is_imported_once(folder: Path) -> None:
    (folder / "jobs_of_mine.py").write_text(APP)
    assert load_program("jobs_of_mine.py").registry is load_program("jobs_of_mine.py").registry


def test_a_file_may_import_its_neighbours(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "neighbour_of_mine.py").write_text("value = 1")
    (folder / "sub" / "jobs_of_mine.py").write_text("import neighbour_of_mine\n" + APP)
    assert load_program("sub/jobs_of_mine.py").registry.names()


@pytest.mark.parametrize(
    ("text", "target", "told"),
    [
        (None, "jobs_of_mine.py", "there is no file"),
        (None, "no_such_package.tasks", "no_such_package"),
        ("x = 1", "jobs_of_mine.py", "has no Ropeway app"),
        (APP + "second = Ropeway('memory://')", "jobs_of_mine.py", "several apps: app, second"),
        (APP, "jobs_of_mine.py:ap", "did you mean jobs_of_mine.py:app"),
        (APP + "1 / 0", "jobs_of_mine.py", "ZeroDivisionError: division by zero, .*jobs_of_mine.py:5"),
        (APP + "import no_such_thing", "jobs_of_mine.py", "no_such_thing.*jobs_of_mine.py:5"),
        (APP + "def (", "jobs_of_mine.py", "SyntaxError.*jobs_of_mine.py:5"),
        (APP + "raise SystemExit(3)", "jobs_of_mine.py", "SystemExit: 3"),
    ],
)
def test_what_cannot_be_loaded(folder: Path, text: str | None, target: str, told: str) -> None:
    if text is not None:
        (folder / "jobs_of_mine.py").write_text(text)
    with pytest.raises(ConfigurationError, match=told) as caught:
        load_program(target)
    assert "\n" not in str(caught.value)


def test_a_module_that_failed_is_tried_again(folder: Path) -> None:
    (folder / "jobs_of_mine.py").write_text("1 / 0")
    with pytest.raises(ConfigurationError):
        load_program("jobs_of_mine.py")
    (folder / "jobs_of_mine.py").write_text(APP)
    assert load_program("jobs_of_mine.py").registry.names()
