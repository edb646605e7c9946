"""The commands, as a person runs them: real processes, real stores, what they print and how they exit."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from devtools.private import free_port

RUN = [sys.executable, "-c", "from ropeway.cli.main import main; main()"]


def ropeway(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RUN, *arguments], cwd=cwd, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.slow
def test_a_schema_is_made_looked_at_and_used(postgres_database: str, tmp_path: Path) -> None:
    at = ("--url", postgres_database)
    missing = ropeway("migrate", "status", *at, cwd=tmp_path)
    assert missing.returncode == 1
    assert "missing  0001_create_tables" in missing.stdout
    refused = ropeway("demo", *at, cwd=tmp_path)
    assert refused.returncode == 2
    assert "ropeway migrate up" in refused.stderr
    made = ropeway("migrate", "up", *at, cwd=tmp_path)
    assert (made.returncode, made.stderr) == (0, "")
    assert "applying 0001_create_tables" in made.stdout
    again = ropeway("migrate", "up", *at, cwd=tmp_path)
    assert (again.returncode, again.stdout) == (0, "Nothing to do: the schema is up to date.\n")
    assert ropeway("migrate", "status", *at, cwd=tmp_path).returncode == 0
    shown = ropeway("demo", "--once", *at, cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")


def test_the_sql_of_the_migrations_can_be_printed(postgres_database: str, tmp_path: Path) -> None:
    done = ropeway("migrate", "sql", "--url", postgres_database, "--schema", "elsewhere", cwd=tmp_path)
    assert done.returncode == 0
    assert "CREATE TABLE elsewhere.jobs" in done.stdout
    assert not re.search(r"\{[a-z_]+\}", done.stdout), "a hole was not filled"


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["migrate", "up", "--url", "memory://"], 2, "needs no migrations"),
        (["migrate", "up", "--url", "mysql://localhost/x"], 2, "mysql"),
        (["demo", "--url", "sqlite://host/file.db"], 2, "three slashes"),
        (["demo", "--url", "sqlite:///missing/folder/file.db"], 2, "missing"),
        (["migrate", "up", "--url", "postgresql://localhost/x", "--schema", "Not a name"], 2, "schema"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(arguments: list[str], code: int, told: str, tmp_path: Path) -> None:
    done = ropeway(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    if arguments != ["nonsense"]:
        assert len(done.stderr.splitlines()) == 1


def test_a_store_that_is_away_is_told_without_its_password(tmp_path: Path) -> None:
    url = f"postgresql://someone:s3cret@127.0.0.1:{free_port()}/x"
    done = ropeway("migrate", "status", "--url", url, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert "127.0.0.1" in done.stderr
    assert "s3cret" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
