"""`ropeway settings`, as a person and as a program run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ropeway.settings import describe, setting_names, variable_of

RUN = [sys.executable, "-c", "from ropeway.cli.main import main; main()", "settings"]


def settings(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("ROPEWAY_", "COLUMNS"))}
    environment = {**clean, **{f"ROPEWAY_{name.upper()}": text for name, text in environ.items()}}
    command = [*RUN, *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_every_setting_is_shown_with_value_source_and_meaning(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.ropeway]\nconcurrency = 7\n")
    done = settings(cwd=tmp_path, reaper="0", lease_seconds="45")
    assert (done.returncode, done.stderr) == (0, "")
    for name in setting_names():
        assert f"{name} = " in done.stdout
        assert describe(name) in done.stdout
    assert "concurrency = 7  (pyproject.toml [tool.ropeway] concurrency)" in done.stdout
    assert "reaper = false  (ROPEWAY_REAPER)" in done.stdout
    assert "lease_seconds = 45  (ROPEWAY_LEASE_SECONDS)" in done.stdout
    assert "metrics_port = none  (default)" in done.stdout
    assert "\x1b" not in done.stdout


def test_programs_get_json(tmp_path: Path) -> None:
    done = settings("--json", cwd=tmp_path, reaper="0")
    listed = {each["name"]: each for each in json.loads(done.stdout)["settings"]}
    assert tuple(listed) == setting_names()
    assert listed["reaper"] == {
        "name": "reaper",
        "variable": variable_of("reaper"),
        "value": False,
        "source": "ROPEWAY_REAPER",
        "default": True,
        "secret": False,
        "meaning": describe("reaper"),
    }


def test_no_password_is_shown(tmp_path: Path) -> None:
    url = "postgresql://bob:hunter2@db/app?sslpassword=hunter2"
    for arguments in ([], ["--json"]):
        done = settings(*arguments, cwd=tmp_path, url=url, listen_url=url)
        assert done.returncode == 0
        assert "postgresql://bob:***@db/app?sslpassword=***" in done.stdout
        assert "hunter2" not in done.stdout + done.stderr


def test_a_value_that_cannot_be_used_is_told_in_one_line(tmp_path: Path) -> None:
    done = settings(cwd=tmp_path, log_level="loud")
    assert (done.returncode, done.stdout) == (2, "")
    assert "log_level: 'loud' from ROPEWAY_LOG_LEVEL" in done.stderr
    assert len(done.stderr.splitlines()) == 1
