"""`python -m bench engine|worker|http|dashboard --engine postgres|sqlite|memory [--json] [--check] [--quick]`, or
`python -m bench peers|growth [--quick]`: Ropeway and its peers side by side, and what a job costs as all grows."""

from __future__ import annotations

import argparse
import sys

from bench import fleet
from bench.dashboard import DashboardBench
from bench.engine import EngineBench
from bench.figures import Report
from bench.http import HttpBench
from bench.peers import command as peers
from bench.peers import growth
from bench.stores import stores
from bench.worker import WorkerBench
from devtools.private import NotAvailable, ServerFailed

KINDS: dict[str, type[EngineBench | WorkerBench | HttpBench | DashboardBench]] = {
    "engine": EngineBench,
    "worker": WorkerBench,
    "http": HttpBench,
    "dashboard": DashboardBench,
}

#: What has a command of its own.
RUNS = {"peers": peers.run, "growth": growth.run}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Ropeway on this machine.")
    kinds = parser.add_subparsers(dest="what", required=True)
    engine = kinds.add_parser("engine", help="an engine by itself, events on")
    _arguments(engine, ["postgres", "sqlite", "memory"], "enqueue,drain,latency,ageing,pinned,shares")
    worker = kinds.add_parser("worker", help="no-op tasks through the whole worker, events and logs on")
    _arguments(worker, ["postgres", "sqlite"], "drain,latency,idle")
    http = kinds.add_parser("http", help="`ropeway server` under load, keys and limits on")
    _arguments(http, ["postgres", "sqlite"], "single,batch,drain,pickup,idle", default="postgres")
    pages = kinds.add_parser("dashboard", help="the dashboard's pages over 1M live and 10M finished jobs")
    _arguments(pages, ["postgres"], "the names of pages", default="postgres")
    peers.add_arguments(kinds.add_parser("peers", help="Ropeway and its peers side by side"))
    growth.arguments(kinds.add_parser("growth", help="what a job costs as everything grows"))
    asked = parser.parse_args()
    if asked.what in RUNS:
        return RUNS[asked.what](asked)
    try:
        with stores(asked.engine, postgres_version=asked.postgres) as made:
            if not asked.json:
                print(f"{made.version}, {made.durability}, events on")
            bench = KINDS[asked.what](made, scale=0.1 if asked.quick else 1.0, quiet=asked.json, only=asked.only)
            fleet.run(bench.run())
    except (NotAvailable, ServerFailed) as error:
        print(error, file=sys.stderr)
        return 2
    return finish(bench.report, as_json=asked.json, check=asked.check)


def _arguments(
    parser: argparse.ArgumentParser, engines: list[str], parts: str, *, default: str | None = None
) -> None:
    parser.add_argument("--engine", choices=engines, required=default is None, default=default)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")
    parser.add_argument("--check", action="store_true", help="exit 1 and name every figure that misses its target")
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes; targets do not apply")
    parser.add_argument("--only", default="", metavar="PARTS", help=f"of {parts}")
    parser.add_argument(
        "--postgres", type=int, metavar="VERSION", help="a major version; default the newest found"
    )


def finish(report: Report, *, as_json: bool, check: bool) -> int:
    """Print what was asked for; the exit code: 1 when a check was asked for and a figure misses its target."""
    if as_json:
        print(report.as_json())
    for miss in report.misses if check else []:
        bound = "at most" if miss.at_most else "at least"
        print(
            f"missed: {miss.name}: {miss.value:,.2f} {miss.unit}, wanted {bound} {miss.target:,g}", file=sys.stderr
        )
    return 1 if check and report.misses else 0


if __name__ == "__main__":
    sys.exit(main())
