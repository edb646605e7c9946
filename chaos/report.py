"""`chaos/RESULTS.md` from the runs: what was done, what was lost, and what that proves.

Every run's `figures.json` and the files beside them are all that it needs.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from chaos import modelled, mutants_told, simulated
from chaos.bars import Kept, counted, judged, store_of
from chaos.bars_verdict import Figures, Runs, named, total
from chaos.experiment import Experiment
from chaos.experiments import EXPERIMENTS
from chaos.peers import results as peers_results
from chaos.peers import table as peers
from chaos.stage import ENGINES
from chaos.tables import table

HEAD = """# What the faults did

Written by `python -m chaos report` from the runs' own files; nothing here is typed by hand. How a run goes, what
the rules are and how to repeat one: [docs/faults.md](../docs/faults.md).

A zero is not a proof. None lost in *n* faults means less than *3/n* per fault at 95 %; that bound stands beside.
"""

BARS = """## Bars

Judged from the figures below. *Not met* is also what was measured at less than the size that is wanted; *not run*
says nothing at all. The corpus of bad input, made-up requests and the matrix of tenants are judged by the tests.
"""

COVERED = """## What was run

Runs of each experiment, and their faults of those that one run of full size has. *Not run* is what there is for
that engine and has no run.
"""

EACH = """## Each run

Recovery is from the fault to the next start of a job that was interrupted, p50 / p99 / max in seconds: of workers
that were killed or stopped as a whole, and of children whose supervisor lived. Explained duplicates are second
starts with their cause in the event log. Faults *while idle* came when nothing could be lost and are not
counted. *Undecided* are jobs with so many calls at once that the search for their order (C20) was given up.
"""

BAR_COLUMNS = ("bar", "wanted", "measured", "")

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
    "size",
    "commit",
    "seconds",
    "accepted",
    "executions",
    "faults",
    "while idle",
    "lost",
    "duplicates",
    "stale calls accepted",
    "events: lost, disordered",
    "recovery: worker",
    "recovery: child",
    "undecided",
    "more",
    "violations",
)

#: Of a reason why something was not run, so much is told.
REASON = 300


def write(runs: Path, path: Path) -> Path:
    """The report of all runs in a folder."""
    told = [json.loads(file.read_text()) for file in sorted(runs.glob("*/figures.json"))]
    done = [each for each in told if "not_run" not in each]
    kept = Kept(
        done,
        mutants_told.read(runs),
        simulated.read(runs),
        peers_results.read(peers_results.path_in(runs)),
        modelled.read(runs),
    )
    parts = [
        HEAD,
        *_bars(kept),
        *_sums(done),
        *_covered(done, [each for each in told if "not_run" in each]),
        *_each(done),
        *simulated.section(kept.simulations),
        *modelled.section(kept.model),
        *mutants_told.section(kept.mutants),
        *peers.section(runs),
        *_violations(done),
    ]
    path.write_text("\n".join(parts) + "\n")
    return path


def _bars(kept: Kept) -> list[str]:
    return [BARS, *table(BAR_COLUMNS, judged(kept)), ""]


def _sums(done: Runs) -> list[str]:
    by_store: defaultdict[str, list[Figures]] = defaultdict(list)
    for run in counted(done):
        by_store[store_of(run)].append(run)
    return ["## In all", "", *table(SUMS, (_summed(store, by_store[store]) for store in sorted(by_store))), ""]


def _summed(store: str, runs: Runs) -> tuple[object, ...]:
    faults, lost = total([run for run in runs if run["harmful"]], "faults"), total(runs, "lost")
    return (
        store,
        len(runs),
        f"{total(runs, 'accepted'):,}",
        f"{faults:,}",
        lost,
        total(runs, "unexpected"),
        total(runs, "duplicates_unexplained"),
        f"{total(runs, 'stale_calls_accepted')} of {total(runs, 'stale_calls_sent'):,}",
        f"< {3 / faults:.3%}" if faults and not lost else "-",
    )


# ── what was run, and what was not ──


def _covered(done: Runs, not_run: Runs) -> list[str]:
    runs: defaultdict[tuple[str, str], list[Figures]] = defaultdict(list)
    for run in done:
        runs[run["experiment"], run["engine"]].append(run)
    rows = [_coverage(experiment, runs) for experiment in sorted(EXPERIMENTS.values(), key=lambda each: each.id)]
    lines = [COVERED, *table(("experiment", *ENGINES), rows), ""]
    reasons = [f"- {named(each)}, {each['size']}, was not run: {_short(each['not_run'])}" for each in not_run]
    return [*lines, *reasons, ""] if reasons else lines


def _coverage(experiment: Experiment, runs: Mapping[tuple[str, str], Runs]) -> tuple[object, ...]:
    return (
        f"{experiment.id} {experiment.title}",
        *(_done(experiment, runs.get((experiment.id, engine), ()), engine) for engine in ENGINES),
    )


def _done(experiment: Experiment, runs: Runs, engine: str) -> str:
    if runs:
        violations = ", **rules broken**" if total(runs, "violations") else ""
        return f"{len(runs)}: {total(runs, 'faults'):,} of {experiment.full.faults:,}{violations}"
    return "not run" if engine in experiment.engines else ""


def _short(reason: str) -> str:
    return " ".join(reason.split())[:REASON]


# ── each run ──


def _each(done: Runs) -> list[str]:
    in_order = sorted(done, key=lambda run: (run["experiment"], run["engine"], run["size"], run["seed"]))
    return [EACH, *table(COLUMNS, map(_cells, in_order)), ""]


def _cells(run: Figures) -> tuple[object, ...]:
    return (
        f"{run['experiment']} {run['title']}",
        run["engine"],
        run["seed"],
        run["size"],
        run["commit"],
        f"{run['seconds']:.0f}",
        f"{run['accepted']:,}",
        f"{run['executions']:,}",
        f"{run['faults']:,}",
        run["faults_idle"],
        run["lost"],
        f"{run['duplicates_explained']:,} explained, {run['duplicates_unexplained']} not",
        f"{run['stale_calls_accepted']} of {run['stale_calls_sent']:,}",
        f"{run['events_lost']}, {run['events_disordered']} of {run['events']:,}",
        _recovery(run["recovery"]),
        _recovery(run["recovery_child"]),
        run["undecided"],
        "; ".join([*_notes(run), *_forgiven(run)]),
        run["violations"],
    )


def _notes(run: Figures) -> list[str]:
    return [f"{name}: {value:g}" for name, value in run["notes"].items()]


def _forgiven(run: Figures) -> list[str]:
    return [f"{rule} broken and forgiven: {number}" for rule, number in run["exempted"].items()]


def _recovery(waited: Mapping[str, float] | None) -> str:
    if waited is None:
        return "-"
    times = f"{waited['p50']:.2f} / {waited['p99']:.2f} / {waited['max']:.2f}"
    return f"{times} (lease {waited['lease_seconds']:g})"


def _violations(done: Runs) -> list[str]:
    words = [f"- {named(run)}: {line}" for run in done if run["violations"] for line in _told(run)]
    return ["## Violations", "", *(words or ["None."])]


def _told(run: Figures) -> Sequence[str]:
    """All that the run tells, and how many it only counted."""
    more = run["violations"] - len(run["told"])
    return [*run["told"], f"and {more:,} more"] if more else run["told"]
