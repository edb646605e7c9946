"""`python -m chaos mutants`: does the checker find what is broken, and nothing in what is not?"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from chaos import mutants, mutants_told
from chaos.mutants_measure import ENGINES, measure, passed
from chaos.runner import commit

#: Seeds at the usual size. PostgreSQL takes some seconds for each, the others less than one.
SEEDS = {"memory": 100, "sqlite": 100, "postgres": 20}
CLEAN = {"memory": 1_000, "sqlite": 1_000, "postgres": 100}


def add_arguments(parser: argparse.ArgumentParser, out: Path) -> None:
    parser.add_argument("--engine", default="memory,sqlite", metavar="ENGINES", help=f"of {','.join(ENGINES)}")
    parser.add_argument("--seeds", type=int, metavar="N", help="for each mutant; default 100, on postgres 20")
    parser.add_argument("--clean", type=int, metavar="N", help="of a right engine; default 1000, on postgres 100")
    parser.add_argument("--only", default="", metavar="NAMES", help="these mutants; such figures are not kept")
    parser.add_argument("--out", type=Path, default=out, metavar="FOLDER", help="default chaos/runs")
    parser.set_defaults(do=run)


def run(asked: argparse.Namespace) -> int:
    """Exit codes: 0 all found and no false alarm, 1 not so, 2 there is nothing of that name."""
    engines, only = asked.engine.split(","), asked.only.split(",") if asked.only else []
    for words, known, what in ((engines, ENGINES, "engine"), (only, tuple(mutants.MUTANTS), "mutant")):
        if unknown := [word for word in words if word not in known]:
            print(f"no {what} is called {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
            return 2
    code = 0
    for engine in engines:
        figures = measure(
            engine,
            seeds=SEEDS[engine] if asked.seeds is None else asked.seeds,
            clean=CLEAN[engine] if asked.clean is None else asked.clean,
            only=only,
            say=partial(_say, engine),
            commit=commit(),
        )
        print("\n".join(mutants_told.table(figures)), flush=True)
        if not only:
            _say(engine, f"wrote {mutants_told.keep(figures, asked.out)}")
        code = max(code, int(not passed(figures)))
    return code


def _say(engine: str, line: str) -> None:
    print(f"[{engine}] {line}", file=sys.stderr, flush=True)
