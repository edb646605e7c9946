"""`python -m chaos mutants`: does the checker find what is broken, and nothing in what is not?"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from chaos import mutants, mutants_told
from chaos.bars_beside import LEAST_CLEAN_SEEDS, LEAST_MUTANT_SEEDS
from chaos.mutants_measure import ENGINES, measure, passed
from chaos.runner import commit

#: What the bar asks for. PostgreSQL takes some seconds for each seed, the others less than one.
SEEDS, CLEAN = LEAST_MUTANT_SEEDS, LEAST_CLEAN_SEEDS


def add_arguments(parser: argparse.ArgumentParser, out: Path) -> None:
    parser.add_argument("--engine", default="memory,sqlite", metavar="ENGINES", help=f"of {','.join(ENGINES)}")
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help=f"for each mutant; default {SEEDS}")
    parser.add_argument(
        "--clean", type=int, default=CLEAN, metavar="N", help=f"of a right engine; default {CLEAN}"
    )
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
            seeds=asked.seeds,
            clean=asked.clean,
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
