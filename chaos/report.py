"""`chaos/RESULTS.md` from the runs: what was done, what was lost, and what that proves."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos import mutants_told
from chaos.peers import table as peers

HEAD = """# What the faults did

Written by `python -m chaos report` from the runs' own files; nothing here is typed by hand. How a run goes, what
the rules are and how to repeat one: [docs/faults.md](../docs/faults.md).

A zero is not a proof. None lost in *n* faults means less than *3/n* per fault at 95 %; that bound stands beside.
"""

SUMS = (
    "store",
    "runs",
    "accepted",
    "faults",
    "lost",
    "unexpected",
    "duplicates, unexplained",
    "stale calls accepted",
    "lost per fault, 95 %",
)

COLUMNS = (
    "experiment",
    "engine",
    "seed",
    "accepted",
    "faults",
    "lost",
    "duplicates",
    "recovery p50 / p99 / max, s",
    "more",
    "violations",
)


def write(runs: Path, path: Path) -> Path:
    """The report of all runs in a folder."""
    told = [json.loads(file.read_text()) for file in sorted(runs.glob("*/figures.json"))]
    more = [*peers.section(runs), *mutants_told.section(runs)]
    path.write_text("\n".join([HEAD, *_sums(told), *_table(told), *more, *_violations(told)]) + "\n")
    return path


def _sums(told: Sequence[Mapping[str, Any]]) -> list[str]:
    by_store: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for run in told:
        by_store[run["engine"].removeprefix("http-")].append(run)
    lines = ["## In all", "", _row(SUMS), _row(["---"] * len(SUMS))]
    for store, runs in sorted(by_store.items()):
        faults, lost = _sum([run for run in runs if run["harmful"]], "faults"), _sum(runs, "lost")
        lines.append(
            _row(
                (
                    store,
                    len(runs),
                    f"{_sum(runs, 'accepted'):,}",
                    f"{faults:,}",
                    lost,
                    _sum(runs, "unexpected"),
                    _sum(runs, "duplicates_unexplained"),
                    f"{_sum(runs, 'stale_calls_accepted')} of {_sum(runs, 'stale_calls_sent'):,}",
                    f"< {3 / faults:.3%}" if faults and not lost else "-",
                )
            )
        )
    return [*lines, ""]


def _sum(runs: Sequence[Mapping[str, Any]], name: str) -> int:
    return sum(int(run[name]) for run in runs)


def _table(told: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "## Each run",
        "",
        "Recovery is from the fault to the next start of a job that was interrupted. Explained duplicates are",
        "second starts with their cause in the event log.",
        "",
        _row(COLUMNS),
        _row(["---"] * len(COLUMNS)),
    ]
    for run in sorted(told, key=lambda run: (run["experiment"], run["engine"], run["seed"])):
        doubles = f"{run['duplicates_explained']:,} explained, {run['duplicates_unexplained']} not"
        lines.append(
            _row(
                (
                    f"{run['experiment']} {run['title']}",
                    run["engine"],
                    run["seed"],
                    f"{run['accepted']:,}",
                    f"{run['faults']:,}",
                    run["lost"],
                    doubles,
                    _recovery(run["recovery"]),
                    "; ".join(f"{name}: {value:g}" for name, value in run["notes"].items()),
                    run["violations"],
                )
            )
        )
    return [*lines, ""]


def _recovery(waited: Mapping[str, float] | None) -> str:
    if waited is None:
        return "-"
    times = f"{waited['p50']:.2f} / {waited['p99']:.2f} / {waited['max']:.2f}"
    return f"{times} (lease {waited['lease_seconds']:g})"


def _violations(told: Sequence[Mapping[str, Any]]) -> list[str]:
    broken = [run for run in told if run["violations"]]
    named = [f"- {run['experiment']} on {run['engine']}, seed {run['seed']}: {run['told'][0]}" for run in broken]
    return ["## Violations", "", *(named or ["None."])]


def _row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
