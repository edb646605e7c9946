"""`python -m bench peers`: samples, what is written, and the exit codes."""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from peer_kit import TINY, fake

from bench.peers import command
from bench.peers.catalogue import Peer
from bench.peers.failing import PeerFailed
from bench.peers.measures import Measure
from bench.peers.measuring import Figure, Subject


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The fake peer alone, tiny sizes, and the test's own way to end a process."""
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(command, "chosen", lambda names, stores: (fake(), fake(name="other")))
    monkeypatch.setattr(command, "QUICK", TINY)
    monkeypatch.setattr(command.machine, "describe", lambda: {"cores": "2"})
    monkeypatch.setattr(command, "misses", lambda results: [])
    yield
    signal.signal(signal.SIGTERM, handler)


def call(tmp_path: Path, *words: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(["--results", str(tmp_path / "results.json"), *words]))


def samples(tmp_path: Path) -> list[dict[str, Any]]:
    held: list[dict[str, Any]] = json.loads((tmp_path / "results.json").read_text())["samples"]
    return held


def counting(monkeypatch: pytest.MonkeyPatch, *, fails: str = "", interrupted_at: int = 0) -> list[str]:
    """A measure that notes whom it was asked of."""
    asked: list[str] = []

    def take(subject: Subject) -> Figure:
        asked.append(subject.peer.name)
        if len(asked) == interrupted_at:
            raise KeyboardInterrupt
        if subject.peer.name == fails:
            raise PeerFailed("it would not")
        return Figure(float(len(asked)), "jobs/s")

    measure = Measure(name="drain1", take=take, seconds=lambda _peer, _scale: 0.0)
    monkeypatch.setattr(command, "named", lambda names: (measure,))
    return asked


def test_one_real_sample_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(tmp_path, "--quick", "--only", "single", "--repeats", "1") == 0
    said = capsys.readouterr()
    assert "[1/2" in said.err
    assert "Fake" in said.out
    held = samples(tmp_path)
    assert [sample["peer"] for sample in held] == ["fake", "other"]
    assert all(sample["value"] > 0 and sample["versions"]["sqlite"] for sample in held)


def test_a_run_goes_on_with_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = counting(monkeypatch)
    assert call(tmp_path, "--quick", "--repeats", "1") == 0
    assert call(tmp_path, "--quick", "--repeats", "2", "--resume") == 0
    assert asked == ["fake", "other", "other", "fake"]
    assert [sample["repeat"] for sample in samples(tmp_path)] == [1, 1, 2, 2]
    assert call(tmp_path, "--quick", "--repeats", "1") == 0
    assert [sample["value"] for sample in samples(tmp_path)] == [5.0, 6.0]


def test_what_is_measured_anew_leaves_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting(monkeypatch)
    assert call(tmp_path, "--quick", "--repeats", "2") == 0
    held = json.loads((tmp_path / "results.json").read_text())
    held["samples"] += [{**sample, "measure": "bulk"} for sample in held["samples"]]
    (tmp_path / "results.json").write_text(json.dumps(held))
    assert call(tmp_path, "--quick", "--repeats", "1", "--anew") == 0
    values = [(sample["measure"], sample["value"]) for sample in samples(tmp_path)]
    assert values == [*(("bulk", float(n)) for n in (1, 2, 3, 4)), ("drain1", 5.0), ("drain1", 6.0)]


def test_a_peer_that_fails_does_not_stop_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counting(monkeypatch, fails="fake")
    assert call(tmp_path, "--quick", "--repeats", "1") == 0
    assert "failed: it would not" in capsys.readouterr().err
    first, second = samples(tmp_path)
    assert (first["status"], first["reason"], first["value"]) == ("failed", "it would not", None)
    assert second["value"] == 2.0


def test_a_peer_without_an_environment_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counting(monkeypatch)
    lacking = Peer(
        name="lost", label="Lost", store="sqlite", program="no_such.py", rate=1, enqueue_rate=1, bulk_rate=None
    )
    monkeypatch.setattr(command, "chosen", lambda names, stores: (lacking, fake()))
    assert call(tmp_path, "--quick", "--repeats", "1") == 0
    assert "without lost: there is no program no_such.py" in capsys.readouterr().err
    assert json.loads((tmp_path / "results.json").read_text())["peers"]["lost"]["absent"]
    assert [sample["peer"] for sample in samples(tmp_path)] == ["fake"]


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting(monkeypatch, interrupted_at=2)
    assert call(tmp_path, "--quick", "--repeats", "1") == 130
    assert [sample["peer"] for sample in samples(tmp_path)] == ["fake"]


def test_a_missed_target_is_an_exit_code_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting(monkeypatch)
    monkeypatch.setattr(command, "misses", lambda results: ["missed: drain"])
    assert call(tmp_path, "--quick", "--repeats", "1") == 0
    assert call(tmp_path, "--quick", "--repeats", "1", "--check") == 1


def test_wrong_words_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(tmp_path, "--only", "speed") == 2
    assert "no measure is called speed" in capsys.readouterr().err


def test_a_full_run_writes_its_report_beside_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting(monkeypatch)
    assert call(tmp_path, "--repeats", "1", "--json") == 0
    assert (tmp_path / "RESULTS.md").exists()


def test_a_new_run_keeps_what_other_commands_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = counting(monkeypatch)
    others = [
        {
            "measure": "growth_queues",
            "peer": "fake",
            "repeat": 0,
            "value": 1.0,
            "unit": "jobs/s",
            "extra": {"x": 1},
        }
    ]
    (tmp_path / "results.json").write_text(json.dumps({"samples": others}))
    assert call(tmp_path, "--quick", "--repeats", "1") == 0
    assert [sample["measure"] for sample in samples(tmp_path)] == ["growth_queues", "drain1", "drain1"]
    assert call(tmp_path, "--report") == 0
    assert len(asked) == 2
    assert (tmp_path / "RESULTS.md").exists()


def test_a_quick_run_ends_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = counting(monkeypatch)
    monkeypatch.setattr(command, "QUICK_SECONDS", 0.0)
    assert call(tmp_path, "--quick", "--repeats", "1") == 0
    assert asked == []
    assert "2 further samples would have taken too long" in capsys.readouterr().err


def test_no_minutes_are_no_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = counting(monkeypatch)
    assert call(tmp_path, "--minutes", "0") == 0
    assert asked == []
