"""`python -m chaos model`: random programs at length on one engine (E36), and the report's part on them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chaos.runner import commit
from chaos.tables import table
from devtools.postgres import PrivatePostgres
from ropeway.testing.harness import MemoryHarness, SqliteHarness
from ropeway.testing.model import Broken, run_model
from ropeway.testing.postgres import PostgresHarness

#: The folder beside the runs, with a file for each engine.
FOLDER = "model"

ENGINES = ("memory", "sqlite", "postgres")

#: Programs between two lines that tell how far it is.
STEP = 100

HEAD = ("engine", "programs", "calls in each", "broken", "seconds", "commit")

Figures = Mapping[str, Any]


def add_arguments(parser: argparse.ArgumentParser, runs: Path) -> None:
    parser.add_argument("--engine", choices=ENGINES, default="memory")
    parser.add_argument("--programs", type=int, default=2_000, metavar="N")
    parser.add_argument("--calls", type=int, default=100, metavar="N", help="in each program")
    parser.add_argument("--out", type=Path, default=runs, metavar="FOLDER", help="default chaos/runs")
    parser.add_argument(
        "--more", action="store_true", help="add to what is kept of this engine, so many calls and this commit"
    )
    parser.set_defaults(do=run)


def run(asked: argparse.Namespace) -> int:
    """Program after program, until all are done or one is broken. What was done is kept, also when it is ended."""
    began, done = time.monotonic(), 0
    broken: str | None = None
    try:
        with _harness(asked.engine) as harness:
            while done < asked.programs:
                step = min(STEP, asked.programs - done)
                run_model(harness, examples=step, steps=asked.calls)
                done += step
                told = f"[model {asked.engine}, {time.monotonic() - began:4.0f} s] {done:,} of {asked.programs:,}"
                print(told, file=sys.stderr, flush=True)
    except Broken as error:
        broken = str(error)
        print(broken, file=sys.stderr)
    finally:
        figures = {
            "engine": asked.engine,
            "programs": done,
            "calls": asked.calls,
            "broken": broken,
            "seconds": round(time.monotonic() - began, 1),
            "commit": commit(),
        }
        if done or broken:
            keep(figures, asked.out, more=asked.more)
            print(json.dumps(figures))
    return int(broken is not None)


@contextmanager
def _harness(engine: str) -> Iterator[Any]:
    if engine == "postgres":
        with PrivatePostgres(shared_buffers="128MB") as server:
            yield PostgresHarness(server.create_database("model"))
    else:
        yield MemoryHarness() if engine == "memory" else SqliteHarness()


def keep(figures: Figures, runs: Path, *, more: bool = False) -> Path:
    """Write what an engine's programs came to. Done again, it replaces that, or with `more` is added to it."""
    path = runs / FOLDER / f"{figures['engine']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    if more and path.exists():
        figures = _added(json.loads(path.read_text()), figures)
    path.write_text(json.dumps(figures, indent=1) + "\n")
    return path


def _added(kept: Figures, figures: Figures) -> Figures:
    """Both together. Programs are drawn anew each time; those of another size or commit are other ones."""
    if any(kept[name] != figures[name] for name in ("calls", "commit")):
        return figures
    return {
        **figures,
        "programs": kept["programs"] + figures["programs"],
        "broken": kept["broken"] or figures["broken"],
        "seconds": round(kept["seconds"] + figures["seconds"], 1),
    }


def read(runs: Path) -> list[Figures]:
    return [json.loads(path.read_text()) for path in sorted((runs / FOLDER).glob("*.json"))]


def section(kept: Sequence[Figures]) -> list[str]:
    """The report's part on random programs; nothing when none was kept."""
    if not kept:
        return []
    return [
        "## Random programs",
        "",
        "Every visible result of every call is compared with what an oracle works out, and with the reference.",
        "",
        *table(HEAD, map(_cells, kept)),
        "",
    ]


def _cells(each: Figures) -> tuple[object, ...]:
    programs, broken = f"{each['programs']:,}", int(bool(each["broken"]))
    return each["engine"], programs, each["calls"], broken, each["seconds"], each["commit"]
