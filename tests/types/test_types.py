"""What a type checker says about programs with tasks: nothing if they are right, the right thing if not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def mypy(program: str, cache: Path) -> tuple[int, str]:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--show-error-codes",
            "--no-error-summary",
            "--hide-error-context",
        ]
        + ["--cache-dir", str(cache), str(HERE / program)],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mypy")


@pytest.mark.limit(300)
def test_right_programs_pass(cache: Path) -> None:
    code, said = mypy("right.py", cache)
    assert code == 0, said


@pytest.mark.limit(300)
def test_every_wrong_line_is_refused_for_the_right_reason(cache: Path) -> None:
    lines = (HERE / "wrong.py").read_text().splitlines()
    expected = {
        (number, code.strip())
        for number, line in enumerate(lines, 1)
        if (mark := re.search(r"# wrong: (.+)", line))
        for code in mark[1].split(",")
    }
    assert expected, "no line is marked"
    _, said = mypy("wrong.py", cache)
    found = {(int(number), code) for number, code in re.findall(r"wrong\.py:(\d+): error: .*\[([\w-]+)\]", said)}
    assert found == expected, said
