"""`python -m chaos`: run experiments, simulate, and write the report."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from chaos import modelled, mutants_command, report, simulated
from chaos.experiment import Experiment
from chaos.experiments import EXPERIMENTS
from chaos.mutants_still_sqlite import StillSqlite
from chaos.peers import command as peers
from chaos.real_simulation import simulate_real
from chaos.runner import commit, folder_of, run
from chaos.simulation import EngineMaker, Simulated, simulate
from chaos.stage import ENGINES, ROOT, RunBroken
from devtools.private import NotAvailable, ServerFailed
from ropeway.engines.memory import MemoryEngine

RUNS = ROOT / "chaos" / "runs"

#: The stores that answer on virtual time.
SIMULATED: dict[str, EngineMaker] = {"memory": MemoryEngine, "sqlite": StillSqlite}

#: What `make chaos` runs: ten minutes of what matters most.
SELECTION = (
    ("E01", "sqlite"),
    ("E01", "postgres"),
    ("E02", "postgres"),
    ("E03", "http-postgres"),
    ("E04", "postgres"),
    ("E12", "sqlite"),
    ("E28", "http-sqlite"),
    ("E29", "postgres"),
)


def main(words: Sequence[str] | None = None) -> int:
    """Exit codes: 0 nothing found, 1 a rule was broken, 2 something could not be run, 130 Ctrl-C."""
    asked = _parser().parse_args(words)
    try:
        return int(asked.do(asked))
    except (RunBroken, NotAvailable, ServerFailed) as error:
        print(f"not run: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos", description="Fault experiments on real processes.")
    verbs = parser.add_subparsers(required=True, metavar="run|simulate|model|mutants|peers|report|list")
    one = verbs.add_parser("run", help="experiments: E01, or E01,E02, or selection, or all")
    one.add_argument("experiments", metavar="E01[,E02...]", help="ids, or selection (ten minutes), or all")
    one.add_argument(
        "--engine", default="", metavar="ENGINES", help=f"of {','.join(ENGINES)}; default: all that fit"
    )
    one.add_argument("--seed", type=int, default=1, metavar="N")
    one.add_argument("--size", choices=("small", "full"), default="small")
    one.add_argument("--jobs", type=int, metavar="N", help="another number of jobs, with faults in proportion")
    one.add_argument("--out", type=Path, default=RUNS, metavar="FOLDER", help="default chaos/runs")
    one.set_defaults(do=_run)
    many = verbs.add_parser("simulate", help="seeds on virtual time")
    many.add_argument("--seeds", type=int, default=100, metavar="N")
    many.add_argument("--real", action="store_true", help="with the real worker and upkeep")
    many.add_argument("--engine", choices=tuple(SIMULATED), default="memory")
    many.add_argument("--first", type=int, default=0, metavar="SEED")
    many.add_argument("--out", type=Path, default=RUNS, metavar="FOLDER", help="default chaos/runs")
    many.set_defaults(do=_simulate)
    random = verbs.add_parser("model", help="random programs against the oracle, at length")
    modelled.add_arguments(random, RUNS)
    broken = verbs.add_parser("mutants", help="how many seeds find each engine that is broken on purpose")
    mutants_command.add_arguments(broken, RUNS)
    told = verbs.add_parser("report", help="write chaos/RESULTS.md from the runs")
    told.add_argument("--out", type=Path, default=RUNS, metavar="FOLDER")
    told.set_defaults(do=_report)
    same = verbs.add_parser("peers", help="the same faults on Ropeway and on its peers")
    peers.add_arguments(same)
    same.add_argument("--out", type=Path, default=RUNS, metavar="FOLDER", help="default chaos/runs")
    same.set_defaults(do=peers.run)
    known = verbs.add_parser("list", help="the experiments")
    known.set_defaults(do=_list)
    return parser


def _run(asked: argparse.Namespace) -> int:
    try:
        chosen = _chosen(asked.experiments, asked.engine)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    told = [_one(asked, EXPERIMENTS[id], kind) for id, kind in chosen]
    if any(each.get("violations") for each in told):
        return 1
    return 2 if any("not_run" in each for each in told) else 0


def _one(asked: argparse.Namespace, experiment: Experiment, kind: str) -> Mapping[str, Any]:
    """The figures of one run, or why there are none: told, and kept for the report. The next is run anyway."""
    began = time.monotonic()
    told: Mapping[str, Any]
    try:
        told = asyncio.run(
            run(
                experiment,
                kind,
                seed=asked.seed,
                size=asked.size,
                out=asked.out,
                say=_sayer(f"{experiment.id} {kind}"),
                jobs=asked.jobs,
            )
        )
    except (RunBroken, NotAvailable, ServerFailed) as error:
        told = _not_run(asked, experiment, kind, str(error), time.monotonic() - began)
    except Exception as error:  # noqa: BLE001 - whatever broke this run, the others are worth their hours
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}"
        told = _not_run(asked, experiment, kind, reason, time.monotonic() - began)
    print(json.dumps(told), flush=True)
    for line in told.get("told", ()):
        print(f"  {line}", file=sys.stderr)
    return told


def _not_run(
    asked: argparse.Namespace, experiment: Experiment, kind: str, reason: str, seconds: float
) -> dict[str, Any]:
    print(f"not run: {reason}", file=sys.stderr)
    told = {
        "experiment": experiment.id,
        "title": experiment.title,
        "engine": kind,
        "seed": asked.seed,
        "size": asked.size,
        "commit": commit(),
        "seconds": round(seconds, 1),
        "not_run": reason,
    }
    folder = folder_of(asked.out, experiment.id, kind, asked.seed, asked.size, asked.jobs)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "figures.json").write_text(json.dumps(told, indent=1) + "\n")
    return told


def _chosen(words: str, engines: str) -> list[tuple[str, str]]:
    """Which experiments on which engines. ValueError, in one line, for what there is not."""
    if words == "selection":
        return list(SELECTION)
    wanted = list(EXPERIMENTS) if words == "all" else words.split(",")
    kinds = engines.split(",") if engines else list(ENGINES)
    for asked, known, what in ((wanted, EXPERIMENTS, "experiment"), (kinds, ENGINES, "engine")):
        if unknown := [each for each in asked if each not in known]:
            raise ValueError(f"no {what} is called {', '.join(unknown)}; there are {', '.join(known)}")
    chosen = [(id, kind) for id in wanted for kind in kinds if kind in EXPERIMENTS[id].engines]
    if not chosen:
        raise ValueError(f"{words} is for {', '.join(EXPERIMENTS[wanted[0]].engines)}")
    return chosen


def _simulate(asked: argparse.Namespace) -> int:
    """Seed after seed. What was done is kept, also when somebody ends it."""
    # Simulated workers log as real ones do: nobody wants to read a hundred lines for each seed.
    log, nobody = logging.getLogger("ropeway"), logging.NullHandler()
    log.addHandler(nobody)
    began, done, jobs = time.monotonic(), 0, 0
    broken: dict[int, str] = {}
    play: Callable[[int, EngineMaker], Simulated] = simulate_real if asked.real else simulate
    try:
        for seed in range(asked.first, asked.first + asked.seeds):
            ended, wrong = simulated.played(partial(play, seed, SIMULATED[asked.engine]))
            done, jobs = done + 1, jobs + ended
            if wrong is not None:
                broken[seed] = f"seed {seed}: {wrong}"
                print(broken[seed], file=sys.stderr)
    finally:
        told = {
            "worker": simulated.REAL if asked.real else simulated.OWN,
            "engine": asked.engine,
            "first_seed": asked.first,
            "seeds": done,
            "jobs": jobs,
            "broken": list(broken),
            "told": list(broken.values()),
            "seconds": round(time.monotonic() - began, 1),
            "commit": commit(),
        }
        if done:
            simulated.keep(told, asked.out)
            print(json.dumps(told))
        log.removeHandler(nobody)
    return int(bool(broken))


def _report(asked: argparse.Namespace) -> int:
    path = report.write(asked.out, ROOT / "chaos" / "RESULTS.md")
    print(f"wrote {path}")
    return 0


def _list(_asked: argparse.Namespace) -> int:
    for experiment in EXPERIMENTS.values():
        print(f"{experiment.id}  {experiment.title}  ({', '.join(experiment.engines)})")
    return 0


def _sayer(name: str) -> Callable[[str], None]:
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"[{name}, {time.monotonic() - began:4.0f} s] {line}", file=sys.stderr, flush=True)

    return say
