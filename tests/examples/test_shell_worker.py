"""examples/shell/worker.sh does what a worker has to do."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from devtools.waiting import wait_until
from tests.examples.kit import ROOT, Fleet, WorkerTests

WORKER = ROOT / "examples" / "shell" / "worker.sh"

HANDLERS = r"""
handle_greet() {
  payload=$(cat)
  name=$(sed 's/.*"name": *"\(\([^"\\]\|\\.\)*\)".*/\1/' <<<"$payload")
  [ -n "$name" ] || { echo 'nobody to greet' >&2; return 65; }
  printf '{"hello":"%s"}\n' "$name"
}
handle_fail() { echo 'as asked' >&2; return 3; }
handle_hold() {
  file=$(sed 's/.*"file": *"\([^"]*\)".*/\1/')
  touch "$file.held"
  until [ -e "$file" ]; do sleep 0.05; done
  echo true
}
handle_babble() { echo 'this "is" not } JSON'; }
"""


@pytest.mark.limit(180)
class TestShellWorker(WorkerTests):
    @pytest.fixture
    def command(self, tmp_path: Path, curl: str) -> Sequence[str]:
        handlers = tmp_path / "handlers.sh"
        handlers.write_text(HANDLERS)
        return ["bash", str(WORKER), str(handlers)]

    def test_a_handler_that_prints_no_json_has_failed(self, fleet: Fleet) -> None:
        fleet.start()
        job = fleet.until_status(fleet.enqueue("babble", max_attempts=1), "dead")
        assert job["last_error"]["message"].startswith("the handler printed no JSON")

    def test_nobody_sees_the_key_on_a_command_line(self, fleet: Fleet) -> None:
        worker = fleet.start()

        def seen_polling() -> bool:
            group = subprocess.run(
                ["ps", "-eo", "sid,args"], capture_output=True, text=True, timeout=60, check=True
            ).stdout.splitlines()
            ours = [line for line in group if line.split()[0] == str(worker.process.pid)]
            assert not any("rw_" in line for line in ours)
            return any("curl" in line for line in ours)

        # Between two polls there is a moment without one.
        wait_until(seen_polling, within=30, what="a poll")


def test_it_is_bash_and_the_handlers_that_come_with_it_too() -> None:
    for file in (WORKER, WORKER.with_name("handlers.sh")):
        subprocess.run(["bash", "-n", str(file)], timeout=60, check=True)
    assert WORKER.stat().st_mode & 0o111, "it can be started by its name"


def test_it_needs_nothing_but_curl_and_awk() -> None:
    text = WORKER.read_text()
    assert "jq" not in text
    assert "python" not in text
    assert shutil.which("awk")
