"""`ropeway demo` as a person meets it: real processes, in an empty folder, with and without a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devtools.waiting import wait_until
from ropeway import JobFilter, Settings, State, engine_for
from ropeway.cli.demo.acts import ACTS
from ropeway.core.states import LIVE_STATES

DEMO = [sys.executable, "-m", "ropeway", "demo"]
#: What `--once` promises.
PROMISED = 60.0


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DEMO, *arguments], cwd=cwd, capture_output=True, text=True, timeout=PROMISED, check=False
    )


class Running:
    """A demo whose output can be read while it runs."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self._output = output

    def said(self) -> str:
        return self._output.read_text(encoding="utf-8", errors="replace")

    def says(self, what: Callable[[str], object]) -> None:
        def told() -> object:
            assert self.process.poll() is None, self.said()
            return what(self.said())

        wait_until(told, within=PROMISED, what=f"the right words in:\n{self.said()}")

    def interrupted(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PROMISED)


@contextmanager
def started(*arguments: str, cwd: Path) -> Iterator[Running]:
    output = cwd / "output.txt"
    with (
        output.open("wb") as file,
        subprocess.Popen([*DEMO, *arguments], cwd=cwd, stdout=file, stderr=file) as process,
    ):
        try:
            yield Running(process, output)
        finally:
            process.kill()


def end_of(title: str, output: str) -> str:
    """The status of an act in the table at the end."""
    (line,) = [line for line in output.splitlines() if line.startswith(title)]
    return line.removeprefix(title).split()[0]


@pytest.mark.parametrize(
    "url", [None, *(pytest.param(u, marks=pytest.mark.slow) for u in ("memory://", "sqlite:///demo.db"))]
)
def test_once_every_job_reaches_its_end(url: str | None, tmp_path: Path) -> None:
    done = run("--once", "--port", "0", *(["--url", url] if url else []), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for act in ACTS:
        assert end_of(act.title, done.stdout) == act.ends.value
    assert {act.ends for act in ACTS} == {State.SUCCEEDED, State.DEAD, State.CANCELLED}
    assert "\x1b" not in done.stdout
    assert "Nothing was lost" in done.stdout
    if url is None:
        assert list(tmp_path.iterdir()) == []


async def test_it_leaves_nothing_at_work_in_a_store_of_others(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'theirs.db'}"
    with started("--port", "0", "--url", url, cwd=tmp_path) as demo:
        demo.says(lambda said: "waits for its time" in said)
        assert demo.interrupted() == 0
    async with engine_for(Settings.load({"url": url}, environ={})) as engine:
        assert await engine.schedules() == []
        now = await engine.now()
        assert not any(key.good(now) for key in await engine.keys())
        assert (await engine.find(JobFilter(states=LIVE_STATES))).jobs == []
        assert (await engine.find(JobFilter(type="demo.later"))).jobs[0].state is State.CANCELLED


@pytest.mark.slow
def test_on_a_terminal_the_table_moves(tmp_path: Path) -> None:
    code, said = in_a_terminal([*DEMO, "--once", "--port", "0"], cwd=tmp_path)
    assert code == 0
    assert "\x1b[" in said
    assert "━" in said, "no progress bar was drawn"
    last = without_codes(said).rpartition("JOB")[2]
    for act in ACTS:
        assert end_of(act.title, last) == act.ends.value


def test_it_goes_on_until_ctrl_c_and_serves_its_figures(tmp_path: Path) -> None:
    with started("--port", "0", cwd=tmp_path) as demo:
        again = re.compile(rf"enqueued +{ACTS[0].title}\b")
        demo.says(lambda said: len(again.findall(said)) >= 2)
        line = re.search(r"curl .*\$\(cat (\S+)\)\" (http://\S+)(/v1/jobs)", demo.said())
        assert line is not None
        file, base, path = line.groups()
        assert stat.S_IMODE(Path(file).stat().st_mode) == 0o600
        assert json.loads(get(f"{base}/health"))["engine"] == "sqlite"
        token = Path(file).read_text()
        assert token not in demo.said()
        assert json.loads(get(f"{base}{path}", token))["jobs"]
        assert re.search(r"^ropeway_jobs_dead_total\{.*\} [1-9]", get(f"{base}/metrics", token), re.MULTILINE)
        assert demo.interrupted() == 0
        assert demo.said().rstrip().endswith("Stopped.")
        assert "Traceback" not in demo.said()


def test_once_interrupted_is_not_the_end_that_was_asked_for(tmp_path: Path) -> None:
    with started("--once", "--port", "-1", cwd=tmp_path) as demo:
        demo.says(lambda said: "enqueued" in said)
        assert demo.interrupted() == 130
        assert "Nothing was lost" not in demo.said()


@pytest.mark.slow
async def test_a_job_that_ends_otherwise_is_named_and_the_exit_code_is_1(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'demo.db'}"
    with started("--once", "--port", "-1", "--url", url, cwd=tmp_path) as demo:
        demo.says(lambda said: "waits for its time" in said)
        async with engine_for(Settings.load({"url": url}, environ={})) as engine:
            (waiting,) = (await engine.find(JobFilter(type="demo.later"))).jobs
            await engine.cancel([waiting.id])
        assert demo.process.wait(PROMISED) == 1
        said = demo.said()
        assert "not as promised: waits for its time (it is cancelled, not succeeded)" in said
        assert said.count("NOT AS PROMISED") == 1


def get(url: str, token: str | None = None) -> str:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def without_codes(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "")


def in_a_terminal(command: list[str], cwd: Path) -> tuple[int, str]:
    """The exit code and everything that was written to the terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(
        command, cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        said = b""
        deadline = time.monotonic() + PROMISED
        try:
            while time.monotonic() < deadline:
                if select.select([ours], [], [], 0.1)[0]:
                    said += os.read(ours, 65_536)
        except OSError:  # the other end is closed: Linux says it so
            pass
        finally:
            os.close(ours)
            if process.poll() is None and time.monotonic() >= deadline:
                process.kill()
    return process.returncode, said.decode(errors="replace")
