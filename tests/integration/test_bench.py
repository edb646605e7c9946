"""The benchmark measures and reports; how fast it found things to be never decides a test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import finish
from bench.figures import Figure, Report

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["memory", "sqlite"])
def test_a_quick_run_prints_every_figure_as_json(engine: str) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "bench",
            "engine",
            "--engine",
            engine,
            "--quick",
            "--json",
            "--only",
            "enqueue,drain",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["engine"] == engine
    assert report["version"]
    names = {figure["name"] for figure in report["figures"]}
    assert {"bulk enqueue", "bulk enqueue, keyed", "single enqueue, 200 callers"} <= names
    assert {f"drain, batch {batch}, 1 process" for batch in (1, 10, 100, 500)} <= names
    assert all(figure["value"] > 0 for figure in report["figures"])


@pytest.mark.slow
def test_a_quick_run_of_the_worker_drains_through_real_processes_and_measures_them() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "bench",
            "worker",
            "--engine",
            "sqlite",
            "--quick",
            "--json",
            "--only",
            "drain,latency",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = {figure["name"]: figure["value"] for figure in json.loads(done.stdout)["figures"]}
    assert {"drain, 1 child", "drain, 2 children", "RSS of a child, 1 child"} <= figures.keys()
    assert {"enqueue to start, p50", "enqueue to start, p99"} <= figures.keys()
    assert all(value > 0 for value in figures.values())


@pytest.mark.slow
def test_a_quick_run_of_the_service_asks_a_real_server_and_measures_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "http", "--engine", "sqlite", "--quick", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = {figure["name"]: figure for figure in json.loads(done.stdout)["figures"]}
    assert {"single enqueue", "single enqueue, p50", "single enqueue, keyed, p99"} <= figures.keys()
    assert {"batch enqueue, 1,000 jobs per request", "lease and ack, 100 jobs per request"} <= figures.keys()
    assert {"pickup through a long poll, p50", "RSS with idle long polls"} <= figures.keys()
    assert all(figure["value"] > 0 for name, figure in figures.items() if not name.startswith("CPU"))
    assert "CPU of the server/request" in figures["single enqueue"]["note"]


@pytest.mark.parametrize(
    ("figure", "ok"),
    [
        (Figure("a", 10, "jobs/s", target=10), True),
        (Figure("a", 9.99, "jobs/s", target=10), False),
        (Figure("a", 1.5, "times", target=1.5, at_most=True), True),
        (Figure("a", 1.51, "times", target=1.5, at_most=True), False),
        (Figure("a", 0, "jobs/s"), True),
    ],
)
def test_check_exits_1_and_names_what_misses_its_target(
    figure: Figure, ok: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report("memory", "memory", [figure])
    assert figure.ok is ok
    assert finish(report, as_json=False, check=True) == (0 if ok else 1)
    assert ("missed: a:" in capsys.readouterr().err) is not ok
    assert finish(report, as_json=False, check=False) == 0
