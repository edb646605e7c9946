"""`python -m bench growth`: what a job costs as everything grows, into the same results as the peers' figures."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench import fleet
from bench.peers import growing, machine, report
from bench.peers.columns import GROWTH
from bench.peers.command import FULL_RESULTS
from bench.peers.environments import folder
from bench.peers.places import Places
from bench.peers.results import FAILED, Results

PEER = "ropeway-postgres"

#: What is measured at each point, in full and in a quick look.
FULL: dict[str, tuple[int, ...]] = {
    "growth_backlog": (1_000, 10_000, 100_000, 1_000_000, 5_000_000),
    "growth_workers": (1, 2, 4, 8, 16, 32, 64),
    "growth_payload": (100, 1_000, 10_000, 100_000),
    "growth_queues": (1, 10, 100, 1_000),
    "growth_finished": (0, 10_000, 100_000, 1_000_000, 10_000_000),
}
QUICK: dict[str, tuple[int, ...]] = {
    "growth_backlog": (1_000, 10_000, 100_000),
    "growth_workers": (1, 4, 16),
    "growth_payload": (100, 10_000, 100_000),
    "growth_queues": (1, 30, 1_000),
    "growth_finished": (0, 10_000, 100_000),
}
DRAIN_JOBS, QUICK_DRAIN_JOBS = 60_000, 10_000

NAMES = [measure.removeprefix("growth_") for measure in GROWTH]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engine", choices=["postgres"], default="postgres")
    parser.add_argument("--quick", action="store_true", help="fewer points and jobs, two minutes")
    parser.add_argument("--resume", action="store_true", help="leave out what the results hold already")
    parser.add_argument("--only", default="", metavar="PARTS", help=f"of {','.join(NAMES)}")
    parser.add_argument("--results", type=Path, metavar="PATH", help="default bench/results.json")
    parser.add_argument(
        "--postgres", type=int, metavar="VERSION", help="a major version; default the newest found"
    )


def run(asked: argparse.Namespace) -> int:
    """Measure what is asked for, add it to the results, write the report. Exit codes: 0 done, 2 called wrongly."""
    only = [name.strip() for name in asked.only.split(",") if name.strip()]
    if unknown := set(only) - set(NAMES):
        print(
            f"nothing grows that is called {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}",
            file=sys.stderr,
        )
        return 2
    path: Path = asked.results or (folder() / "quick-growth.json" if asked.quick else FULL_RESULTS)
    results = Results.load(path)
    points = [
        (measure, x)
        for measure, x in _points(QUICK if asked.quick else FULL, only)
        if not (asked.resume and results.has(measure, PEER, 0, x))
    ]
    jobs = QUICK_DRAIN_JOBS if asked.quick else DRAIN_JOBS
    results.go_on(machine.describe())
    results.peers.setdefault(PEER, {"label": "Ropeway", "store": "postgres", "kind": "jobs", "language": "python"})
    with Places(postgres_version=asked.postgres) as places:
        for measure, x in points:
            _measure(places, results, measure, x, jobs)
            results.stores = {**places.facts, **results.stores}
            results.save(path)
    if not asked.quick:
        for file in report.write(path, path.parent):
            print(f"wrote {file}", file=sys.stderr)
    return 0


def _points(sizes: dict[str, tuple[int, ...]], only: list[str]) -> Iterator[tuple[str, int]]:
    for measure, values in sizes.items():
        if not only or measure.removeprefix("growth_") in only:
            yield from ((measure, x) for x in values)


def _measure(places: Places, results: Results, measure: str, x: int, jobs: int) -> None:
    """One point on a fresh database; a line for people. A point that fails is told and left out."""
    began = time.monotonic()
    costs: list[growing.Cost] = []

    async def point() -> None:
        await growing.migrated(place)
        costs.append(await growing.POINTS[measure](place, x, jobs))

    with places.fresh("postgres") as place:
        try:
            fleet.run(point())
        except Exception as error:  # noqa: BLE001 - the other points are still worth having
            results.add_missing(measure, PEER, 0, FAILED, f"{type(error).__name__}: {error}"[:300], extra={"x": x})
            print(f"{GROWTH[measure][0]:<20} {x:>10,}  failed: {error}", flush=True)
            return
    cost = costs[0]
    extra = {
        "x": x,
        "jobs": cost.jobs,
        "postgres_us": round(cost.postgres_us, 2),
        "python_us": round(cost.python_us, 2),
    }
    results.add(measure, PEER, 0, round(cost.rate, 1), "jobs/s", extra=extra)
    print(
        f"{GROWTH[measure][0]:<20} {x:>10,}  {cost.rate:>8,.0f} jobs/s  {cost.postgres_us:6.1f} µs PostgreSQL"
        f"  {cost.python_us:6.1f} µs Python per job   ({time.monotonic() - began:.0f} s)",
        flush=True,
    )
