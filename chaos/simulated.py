"""What `python -m chaos simulate` has done: files beside the runs, and a section of the report (E37)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos.simulation import Simulated
from chaos.tables import table

#: The folder beside the runs, with a file for each range of seeds.
FOLDER = "simulations"

#: Who works in a simulation: a worker of its own, or the real one with the real upkeep and service.
OWN, REAL = "own", "real"

Figures = Mapping[str, Any]

HEAD = ("worker", "engine", "seeds", "jobs", "broken", "seconds", "commit")


def played(play: Callable[[], Simulated]) -> tuple[int, str | None]:
    """The jobs of one seed, and what is wrong with it: a rule is broken, or it came to no end."""
    try:
        done = play()
    except Exception as error:  # noqa: BLE001 - whatever a seed dies of, it has found something
        return 0, f"{type(error).__name__}: {error}"
    return len(done.facts.finals), str(done.violations[0]) if done.violations else None


def keep(figures: Figures, runs: Path) -> Path:
    """Write what a range of seeds came to. The same range, done again, replaces it."""
    first, seeds = figures["first_seed"], figures["seeds"]
    path = runs / FOLDER / f"{figures['worker']}-{figures['engine']}-{first}-{seeds}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1) + "\n")
    return path


def read(runs: Path) -> list[Figures]:
    """All that is kept, by worker, engine and seed."""
    kept = [json.loads(path.read_text()) for path in (runs / FOLDER).glob("*.json")]
    return sorted(kept, key=lambda each: (each["worker"], each["engine"], each["first_seed"], each["seeds"]))


def seeds_of(kept: Sequence[Figures], worker: str | None = None) -> int:
    """How many different ones, of one kind of worker or of all: who ran a seed twice has seen one."""
    return len(
        {
            (each["worker"], each["engine"], seed)
            for each in kept
            if worker in (None, each["worker"])
            for seed in range(each["first_seed"], each["first_seed"] + each["seeds"])
        }
    )


def section(kept: Sequence[Figures]) -> list[str]:
    """The report's part on simulations; nothing when none was kept."""
    if not kept:
        return []
    lines = [
        "## Simulated",
        "",
        "Whole histories drawn from seeds on virtual time. With the real worker come the real upkeep and service.",
        "",
        *table(HEAD, map(_cells, kept)),
        "",
    ]
    broken = [f"- {each['worker']} worker on {each['engine']}, {words}" for each in kept for words in each["told"]]
    return [*lines, *broken, ""] if broken else lines


def _cells(each: Figures) -> tuple[object, ...]:
    first, seeds = each["first_seed"], each["seeds"]
    told = f"{seeds:,} from {first:,} on"
    broken = len(each["broken"])
    return each["worker"], each["engine"], told, f"{each['jobs']:,}", broken, each["seconds"], each["commit"]
