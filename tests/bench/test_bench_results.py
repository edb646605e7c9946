"""Samples: kept, replaced, and turned into medians and ratios."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from bench.peers.columns import number, times
from bench.peers.results import FAILED, NEVER, UNSUPPORTED, Results, belongs, is_ours
from tests.bench.results_kit import made


def test_a_figure_is_the_median_with_the_lowest_and_the_highest() -> None:
    figure = made(drain1={"pgqueuer": [90.0, 100.0, 140.0, 80.0, 110.0]}).figure("drain1", "pgqueuer")
    assert figure is not None
    assert figure == (100.0, 80.0, 140.0, 5, "jobs/s")


def test_a_ratio_is_taken_within_each_repeat() -> None:
    # The machine became ten times slower after the first repeat: the ratio is 2 all the same.
    results = made(drain1={"ropeway-postgres": [2_000.0, 200.0], "pgqueuer": [1_000.0, 100.0]})
    ratio = results.ratio("drain1", "ropeway-postgres", "pgqueuer")
    assert ratio is not None
    assert (ratio.median, ratio.low, ratio.high) == (2.0, 2.0, 2.0)


def test_without_a_common_repeat_the_medians_are_divided() -> None:
    results = made(drain1={"ropeway-postgres": [300.0]})
    results.add("drain1", "pgqueuer", 4, 100.0, "jobs/s")
    ratio = results.ratio("drain1", "ropeway-postgres", "pgqueuer")
    assert ratio is not None
    assert ratio.median == 3.0


def test_figures_of_different_processors_are_not_compared() -> None:
    results = made(drain1={"ropeway-postgres": [200.0], "pgqueuer": [100.0]})
    results.go_on({"processor": "another processor"})
    assert results.ratio("drain1", "ropeway-postgres", "pgqueuer") is not None, "both were taken before"
    results.add("drain1", "ropeway-postgres", 0, 400.0, "jobs/s")
    assert results.ratio("drain1", "ropeway-postgres", "pgqueuer") is None
    results.add("drain1", "pgqueuer", 0, 100.0, "jobs/s")
    ratio = results.ratio("drain1", "ropeway-postgres", "pgqueuer")
    assert ratio is not None
    assert ratio.median == 4.0


def test_a_run_that_went_on_elsewhere_is_compared_repeat_by_repeat() -> None:
    results = made(drain1={"ropeway-postgres": [200.0, 300.0], "pgqueuer": [100.0, 100.0]})
    results.go_on({"processor": "another processor"})
    results.add("drain1", "ropeway-postgres", 1, 4_000.0, "jobs/s")
    results.add("drain1", "ropeway-postgres", 2, 6_000.0, "jobs/s")
    results.add("drain1", "pgqueuer", 2, 1_000.0, "jobs/s")
    ratio = results.ratio("drain1", "ropeway-postgres", "pgqueuer")
    assert ratio is not None
    # Repeat 1 lies on two processors, and says nothing.
    assert (ratio.low, ratio.high, ratio.repeats) == (2.0, 6.0, 2)


def test_what_was_not_measured_has_no_figure_and_no_ratio() -> None:
    results = made(drain1={"ropeway-postgres": 5.0})
    assert results.figure("drain1", "pgqueuer") is None
    assert results.ratio("drain1", "ropeway-postgres", "pgqueuer") is None
    assert results.ratio("drain1", "ropeway-postgres", "ropeway-postgres") is not None


def test_a_peer_that_did_nothing_is_not_divided_by() -> None:
    results = made(drain1={"ropeway-postgres": 5.0, "pgqueuer": 0.0})
    assert results.ratio("drain1", "ropeway-postgres", "pgqueuer") is None


def test_what_is_left_after_the_rounds() -> None:
    results = Results()
    results.add("pinned", "x", 0, 80.0, "jobs/s", extra={"rounds": [100.0, 90.0, 70.0, 10.0, 80.0]})
    results.add("pinned", "x", 1, 1.0, "jobs/s", extra={"rounds": [1.0, 3.0, 2.0]})
    assert results.values("pinned", "x", "kept") == {0: 0.7}, "the last three, or too few to tell"
    assert results.values("pinned", "x") == {0: 70.0, 1: 2.0}


def test_a_sample_replaces_the_one_that_answered_the_same_question() -> None:
    results = made(drain1={"pgqueuer": [1.0, 2.0]})
    results.add("drain1", "pgqueuer", 1, 3.0, "jobs/s")
    assert results.values("drain1", "pgqueuer") == {0: 1.0, 1: 3.0}
    results.add("growth_queues", "pgqueuer", 0, 1.0, "jobs/s", extra={"x": 1})
    results.add("growth_queues", "pgqueuer", 0, 1.0, "jobs/s", extra={"x": 10})
    assert len(results.of("growth_queues", "pgqueuer")) == 2
    assert results.has("growth_queues", "pgqueuer", 0, 10)
    assert not results.has("growth_queues", "pgqueuer", 0, 100)


def test_a_failure_is_worth_another_try_and_an_answer_is_not() -> None:
    results = Results()
    results.add_missing("bulk", "rq", 0, UNSUPPORTED, "no such call")
    results.add_missing("bulk", "saq", 0, FAILED, "it broke")
    assert results.has("bulk", "rq", 0)
    assert not results.has("bulk", "saq", 0)
    results.add("bulk", "saq", 0, 5.0, "jobs/s")
    assert results.has("bulk", "saq", 0)
    assert results.missing("bulk", "saq") is None


def test_never_is_not_the_same_as_failed() -> None:
    results = Results()
    results.add_missing("recovery", "rq", 0, NEVER, "not within 300 s")
    results.add_missing("recovery", "saq", 0, FAILED, "it broke")
    assert results.never("recovery", "rq")
    assert not results.never("recovery", "saq")
    assert not results.never("recovery", "nobody")


def test_who_did_not_run_and_why() -> None:
    results = made(drain1={"ropeway-postgres": 5.0})
    results.peers["streaq"] = {"label": "streaq", "absent": "pip found no such version"}
    results.peers["saq"] = {"label": "SAQ"}
    results.add_missing("drain1", "saq", 0, FAILED, "it broke")
    results.peers["rq"] = {"label": "RQ"}
    assert results.absent() == {
        "streaq": "pip found no such version",
        "saq": "it broke",
        "rq": "it was not asked to",
    }


def test_the_file_holds_everything_and_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "results.json"
    assert Results.load(path) == Results()
    results = made(drain1={"pgqueuer": [1.0, 2.0]})
    results.add("idle", "pgqueuer", 0, 1.5, "ms", extra={"p99": float("inf"), "p50": 1.5})
    results.save(path)
    assert Results.load(path) == results
    assert [held.name for held in path.parent.iterdir()] == ["results.json"]
    assert stat.S_IMODE(path.stat().st_mode) & 0o044 == 0o044
    # JSON that others can read: no infinities.
    assert json.loads(path.read_text())["samples"][-1]["extra"] == {"p50": 1.5}


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.json"
    made(drain1={"pgqueuer": 1.0}).save(path)

    def full(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        made(drain1={"pgqueuer": 2.0}).save(path)
    assert Results.load(path).values("drain1", "pgqueuer") == {0: 1.0}
    assert [held.name for held in tmp_path.iterdir()] == ["results.json"]


def test_names() -> None:
    assert is_ours("ropeway-http")
    assert not is_ours("pgqueuer")
    assert belongs("saq-redis", "saq")
    assert belongs("saq", "saq")
    assert not belongs("saqqara", "saq")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(41_562.4, "41,562"), (104.2, "104"), (23.46, "23.5"), (2.234, "2.23"), (0.0312, "0.031"), (0.0, "0.00")],
)
def test_numbers_have_the_digits_that_mean_something(value: float, shown: str) -> None:
    assert number(value) == shown


@pytest.mark.parametrize(("value", "shown"), [(0.854, "0.85×"), (2.4, "2.40×"), (12.34, "12.3×"), (212.4, "212×")])
def test_ratios_have_the_digits_that_mean_something(value: float, shown: str) -> None:
    assert times(value) == shown
