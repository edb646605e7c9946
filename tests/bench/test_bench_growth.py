"""What a job costs as everything grows: every kind of point can be measured, and a run knows what it is to do."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import pytest

from bench.peers import growing, growth
from bench.peers.columns import GROWTH
from bench.peers.growing import Cost
from bench.peers.places import Place, ask
from bench.peers.results import Results


def asked(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    growth.arguments(parser)
    return parser.parse_args(words)


def test_a_cost_is_counted_per_job() -> None:
    cost = Cost(100, 0.5, 0.01, 0.002).plus(Cost(100, 0.5, 0.01, 0.002))
    assert (cost.rate, cost.postgres_us, cost.python_us) == (200.0, 100.0, 20.0)


def test_every_measure_has_its_points() -> None:
    assert list(growth.FULL) == list(growth.QUICK) == list(growing.POINTS) == list(GROWTH)
    assert (growth.FULL["growth_backlog"][0], growth.FULL["growth_backlog"][-1]) == (1_000, 5_000_000)
    assert (growth.FULL["growth_workers"][0], growth.FULL["growth_workers"][-1]) == (1, 64)
    assert (growth.FULL["growth_payload"][0], growth.FULL["growth_payload"][-1]) == (100, 100_000)
    assert (growth.FULL["growth_queues"][0], growth.FULL["growth_queues"][-1]) == (1, 1_000)
    assert (growth.FULL["growth_finished"][0], growth.FULL["growth_finished"][-1]) == (0, 10_000_000)


def test_a_wrong_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert growth.run(asked("--only", "backlog,moon")) == 2
    assert "called moon" in capsys.readouterr().err


def test_a_resumed_run_measures_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.json"
    held = Results()
    held.add("drain1", "pgqueuer", 0, 5.0, "jobs/s")
    held.add("growth_queues", growth.PEER, 0, 5.0, "jobs/s", extra={"x": 1})
    held.save(path)
    taken: list[tuple[str, int]] = []

    def measure(places: object, results: Results, name: str, x: int, jobs: int) -> None:
        taken.append((name, x))

    monkeypatch.setattr(growth, "_measure", measure)
    monkeypatch.setattr(growth.machine, "describe", lambda: {"cores": "2"})
    assert growth.run(asked("--quick", "--resume", "--only", "queues", "--results", str(path))) == 0
    assert taken == [("growth_queues", 30), ("growth_queues", 1_000)]
    assert len(Results.load(path).samples) == 2


def test_a_point_that_fails_is_told_and_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    results = Results()

    class Broken:
        def fresh(self, kind: str) -> Broken:
            return self

        def __enter__(self) -> Place:
            return Place("postgres", "postgresql://127.0.0.1:1/none", lambda: 0, lambda: 0.0)

        def __exit__(self, *_: object) -> None:
            pass

    growth._measure(Broken(), results, "growth_queues", 10, 100)  # type: ignore[arg-type]
    assert results.samples[0]["value"] is None
    assert "failed" in capsys.readouterr().out
    assert not results.has("growth_queues", growth.PEER, 0, 10)


def test_every_kind_of_point_drains_what_it_filled(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server is shared: no checkpoint for its other users.
    monkeypatch.setattr(growing, "_settle_down", lambda url: None)
    place = Place("postgres", postgres_database, lambda: 0, lambda: 1.0)

    async def points() -> list[Cost]:
        await growing.migrated(place)
        return [
            await growing.backlog(place, 20, 60),
            await growing.queues(place, 3, 60),
            await growing.finished(place, 50, 60),
            await growing.workers(place, 2, 60),
        ]

    costs = asyncio.run(points())
    assert [cost.jobs for cost in costs] == [60, 60, 60, 2_000]
    assert all(cost.python_us > 0 for cost in costs)
    assert ask(postgres_database, "SELECT count(*) FROM ropeway.archive") == 3 * 60 + 50 + 2_000
    assert ask(postgres_database, "SELECT count(DISTINCT id) FROM ropeway.archive") == 3 * 60 + 50 + 2_000
    assert ask(postgres_database, "SELECT count(*) FROM ropeway.jobs") == 0
