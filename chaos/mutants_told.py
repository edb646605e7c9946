"""What was measured of the mutants: a table for the terminal, and a section of the report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chaos.mutants_measure import ENGINES, passed
from chaos.tables import table as markdown

#: The folder beside the runs, with a file for each engine.
FOLDER = "mutants"

Figures = Mapping[str, Any]


def keep(figures: Figures, runs: Path) -> Path:
    """Write the figures of one engine to where the report looks for them."""
    path = runs / FOLDER / f"{figures['engine']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=2) + "\n")
    return path


def table(figures: Figures) -> list[str]:
    """Each mutant: how many seeds found it, and by what."""
    rows = [("mutant", "caught", "first violation")]
    rows += [(each["mutant"], _share(each), _rules(each)) for each in figures["mutants"]]
    clean = figures["clean"]
    rows.append(("(none)", f"{len(clean['alarms'])}/{clean['seeds']}", "no alarm" if not clean["alarms"] else ""))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = [f"{name:<{widths[0]}}  {caught:>{widths[1]}}  {rules}".rstrip() for name, caught, rules in rows]
    lines += [f"false alarm of seed {alarm['seed']}: {alarm['words']}" for alarm in clean["alarms"]]
    return [*lines, f"{figures['engine']}: {_verdict(figures)}, {figures['seconds']:g} s"]


def read(runs: Path) -> dict[str, Figures]:
    """What was measured, by engine."""
    kept = {path.stem: json.loads(path.read_text()) for path in (runs / FOLDER).glob("*.json")}
    return {engine: kept[engine] for engine in ENGINES if engine in kept}


def section(kept: Mapping[str, Figures]) -> list[str]:
    """The report's part on mutants; nothing when none were measured."""
    told = list(kept.values())
    if not told:
        return []
    names = dict.fromkeys(each["mutant"] for figures in told for each in figures["mutants"])
    by_engine = [{each["mutant"]: each for each in figures["mutants"]} for figures in told]
    rows = [[name, *(_cell(found.get(name)) for found in by_engine)] for name in names]
    lines = [
        "## Engines that are broken on purpose",
        "",
        "How many seeds of how many found each, and the rules that were broken first, most frequent ones before.",
        "",
        *markdown(["mutant", *kept], [*rows, ["none: false alarms", *map(_alarms, told)]]),
        "",
        *(
            f"{engine}: commit {figures['commit']}, {figures['seconds']:,.0f} s."
            for engine, figures in kept.items()
        ),
        "",
    ]
    alarms = [
        f"- false alarm on {figures['engine']}, seed {alarm['seed']}: {alarm['words']}"
        for figures in told
        for alarm in figures["clean"]["alarms"]
    ]
    return [*lines, *alarms, ""] if alarms else lines


def _verdict(figures: Figures) -> str:
    return "passed" if passed(figures) else "NOT passed"


def _share(found: Figures) -> str:
    return f"{found['caught']}/{found['seeds']}"


def _rules(found: Figures) -> str:
    return ", ".join(f"{rule} × {number}" for rule, number in found["rules"].items())


def _cell(found: Figures | None) -> str:
    return "-" if found is None else f"{_share(found)} {' '.join(found['rules'])}".rstrip()


def _alarms(figures: Figures) -> str:
    clean = figures["clean"]
    return f"{len(clean['alarms'])} of {clean['seeds']:,}"
