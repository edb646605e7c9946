"""`ropeway dev`: the worker starts anew when the file changes, and waits for a fix when it cannot be imported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.waiting import wait_until

TASKS = """
from ropeway import Ropeway

app = Ropeway()


@app.task
async def version() -> str:
    return "{}"
"""


class Dev:
    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.log = folder / "dev.log"
        clean = {name: text for name, text in os.environ.items() if not name.startswith("ROPEWAY_")}
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ropeway", "dev", *(arguments or ("--port", "-1"))],
                cwd=folder,
                env=clean,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def write(self, text: str) -> None:
        (self.folder / "tasks.py").write_text(text)

    def answer(self) -> str:
        """What the task returns now."""
        done = subprocess.run(
            [sys.executable, "-m", "ropeway", "enqueue", "version", "--wait", "40"],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout

    def says(self, text: str) -> bool:
        return text in self.log.read_text()


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    (tmp_path / "tasks.py").write_text(TASKS.format("one"))
    running = Dev(tmp_path)
    yield running
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(30) == 0


def test_a_change_is_taken_over_and_a_mistake_is_told_and_waited_out(dev: Dev) -> None:
    wait_until(lambda: dev.says("worker started"), within=40)
    assert "one" in dev.answer()
    dev.write(TASKS.format("two"))
    wait_until(lambda: "two" in dev.answer(), within=40)
    dev.write("this is no Python")
    wait_until(lambda: dev.says("cannot be imported: SyntaxError"), within=40)
    assert dev.process.poll() is None, "it waits for the fix"
    dev.write(TASKS.format("three"))
    assert "three" in dev.answer()
    assert "Traceback" not in dev.log.read_text()


def test_the_api_is_served_beside_the_worker(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS.format("one"))
    dev = Dev(tmp_path, "--port", "0")
    try:
        wait_until(lambda: dev.says("serves http://"), within=40)
        url = dev.log.read_text().partition("serves ")[2].split()[0]
        token = (tmp_path / "ropeway.db.token").read_text().strip()
        job = _call(url, token, "POST", "/v1/jobs", {"type": "version"})
        path = f"/v1/jobs/{job['id']}"
        wait_until(lambda: _call(url, token, "GET", path)["status"] == "succeeded", within=40)
        assert _call(url, token, "GET", path)["result"] == "one"
        assert token not in dev.log.read_text()
    finally:
        dev.process.send_signal(signal.SIGINT)
        assert dev.process.wait(30) == 0


def _call(url: str, token: str, method: str, path: str, body: Any = None) -> Any:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.loads(reply.read())
