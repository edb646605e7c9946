"""The figures of an upgrade: calls and their times, several stores as one. And the list of experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chaos.calls import TimedCall, failed_share, longest_between, timed_calls
from chaos.experiments import EXPERIMENTS
from chaos.snapshot import together

FAULTS = Path(__file__).resolve().parents[2] / "docs" / "faults.md"


def _line(t: float, n: int, phase: str, **more: Any) -> dict[str, Any]:
    return {"t": t, "process": "p", "pid": 1, "op": "enqueue", "phase": phase, "n": n, **more}


def test_calls_are_paired_with_their_answers() -> None:
    start = {"t": 0.5, "process": "p", "pid": 1, "op": "start", "phase": "ok", "job": "j", "attempt": 1}
    lines = [
        start,
        _line(1.0, 1, "invoke"),
        _line(2.0, 2, "invoke"),
        _line(2.5, 2, "fail", error="Unavailable"),
        _line(3.0, 1, "ok"),
        _line(4.0, 3, "invoke"),
    ]
    assert timed_calls(lines) == [
        TimedCall("enqueue", 1.0, 3.0, "ok"),
        TimedCall("enqueue", 2.0, 2.5, "fail", "Unavailable"),
        TimedCall("enqueue", 4.0, None, "info"),
    ]


@pytest.mark.parametrize(
    ("phase", "error", "failed"),
    [
        ("ok", "", False),
        ("fail", "Unavailable", True),
        ("info", "Indeterminate", True),
        ("info", "", True),
        ("info", "CancelledError", False),
    ],
)
def test_a_call_failed_when_its_caller_got_no_answer(phase: str, error: str, failed: bool) -> None:
    call = TimedCall("lease", 1.0, 2.0, phase, error)
    assert call.failed is failed
    assert failed_share([call, TimedCall("lease", 1.0, 1.1, "ok")]) == (0.5 if failed else 0.0)


def test_only_calls_under_way_count() -> None:
    calls = [
        TimedCall("settle", 0.0, 5.0, "ok"),
        TimedCall("settle", 5.5, 6.5, "ok"),
        TimedCall("settle", 9.0, 19.0, "ok"),
        TimedCall("settle", 6.0, None, "info"),
    ]
    assert longest_between(calls, 6.0, 8.0) == 1.0
    assert longest_between(calls, 20.0, 21.0) == 0.0


def test_several_stores_are_one() -> None:
    one = {"jobs": [1], "events": [2], "counts": {"dead": 1, "succeeded": 2}, "effects": {"a": 1}, "seen": None}
    other = {"jobs": [3], "events": [], "counts": {"succeeded": 5}, "effects": {"b": 1}, "seen": None}
    assert together([one]) == one
    assert together([one, other]) == {
        "jobs": [1, 3],
        "events": [2],
        "counts": {"dead": 1, "succeeded": 7},
        "effects": {"a": 1, "b": 1},
        "seen": None,
    }


def test_every_experiment_is_documented() -> None:
    cells = [line.split("|")[1].split() for line in FAULTS.read_text().splitlines() if line.startswith("| E")]
    assert sorted(id for cell in cells for id in cell) == sorted(EXPERIMENTS)
