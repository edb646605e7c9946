"""Fault points: nothing unless they are switched on, and then what was asked for, written down first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ropeway.core.errors import ConfigurationError, Indeterminate
from ropeway.runtime import faultpoints
from ropeway.runtime.faultpoints import POINTS, armed


def test_they_are_off() -> None:
    assert "ROPEWAY_FAULTS" not in os.environ
    for point in POINTS:
        faultpoints.fault(point)


def test_the_point_that_is_named_does_what_was_asked_and_no_other(tmp_path: Path) -> None:
    log = tmp_path / "log"
    fault = armed("enqueue.committed=raise", str(log))
    fault("settle.committed")
    with pytest.raises(Indeterminate, match=r"enqueue\.committed"):
        fault("enqueue.committed")
    (line,) = log.read_text().splitlines()
    assert json.loads(line)["point"] == "enqueue.committed"


def test_as_often_as_asked() -> None:
    never = armed("enqueue.committed=raise:0")
    for _ in range(100):
        never("enqueue.committed")


def test_sleep_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    armed("lease.committed=sleep2.5")("lease.committed")
    assert slept == [2.5]


def test_what_is_healed_does_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    (tmp_path / "log.healed").touch()
    armed("enqueue.committed=raise", str(log))("enqueue.committed")
    assert not log.exists()


def test_kill_is_a_kill_of_this_very_process(tmp_path: Path) -> None:
    program = "from ropeway.runtime.faultpoints import fault; fault('settle.before'); print('lives')"
    env = {**os.environ, "ROPEWAY_FAULTS": "settle.before=kill", "ROPEWAY_FAULTS_LOG": str(tmp_path / "log")}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == b""
    assert json.loads((tmp_path / "log").read_text())["kind"] == "kill"


@pytest.mark.parametrize("asked", ["nowhere=kill", "settle.before", "settle.before=explode:1"])
def test_what_makes_no_sense_is_refused(asked: str) -> None:
    with pytest.raises(ConfigurationError, match="ROPEWAY_FAULTS"):
        armed(asked)


def test_every_point_is_somewhere_in_the_code() -> None:
    source = Path(faultpoints.__file__).parents[1]
    text = "".join(path.read_text() for path in source.rglob("*.py") if path.name != "faultpoints.py")
    assert {point for point in POINTS if f'fault("{point}")' not in text} == set()
