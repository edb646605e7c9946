"""The report's section on peers: a table per experiment, and the settings that everybody had."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from chaos.peers import results
from chaos.peers.experiments import EXPERIMENTS
from chaos.peers.results import RUN, Cell
from chaos.peers.settings import CONTENDERS, KINDS, Contender, Kind

Line = Mapping[str, Any]

HEAD = """## The same faults on peers (E40)

Ropeway and its Python peers in one harness: two workers of one process each, started again at once when they end,
each run on an empty store of its own. Handlers note their start and their effect in a file outside every store.
*Default* is the peer as it comes; *safest* is what its documentation offers against losing jobs, with the same
times for everybody where they can be set. Both are listed below with the pages that have them.

*Lost* is accepted and without effect when the run ended, {limits} after the last fault; in brackets how many jobs
the store still had as unfinished. Those may run later, the others it has given up or forgotten. The runs are
small: a figure tells what can happen, a zero not that it cannot. Nothing follows about what was not run.
"""


class Shown(NamedTuple):
    """One table: what it says first, its columns, and how a run fills them."""

    words: str
    columns: tuple[str, ...]
    cells: Callable[[Line], tuple[object, ...]]


def section(runs: Path) -> list[str]:
    """The lines for a report; none when no peer was ever run."""
    held = results.read(results.path_in(runs))
    if not held:
        return []
    limits = sorted({f"{line['limit_seconds']:g} s" for line in held.values()})
    lines = [HEAD.format(limits=" or ".join(limits))]
    for id, experiment in EXPERIMENTS.items():
        lines += [f"### {_titled(id, experiment.title)}", "", *_table(id, held), ""]
    return [*lines, *_settings(held), ""]


def _titled(id: str, title: str) -> str:
    return f"{id}: {title}" if id.startswith("E") else title[:1].upper() + title[1:]


def _table(id: str, held: Mapping[Cell, Line]) -> list[str]:
    shown = SHOWN[id]
    head = ("system", "store", "settings", *shown.columns)
    rows = [
        (*_named(contender, kind, held), *_filled(shown, held.get(Cell(contender.peer.name, kind, id))))
        for contender in CONTENDERS
        for kind in KINDS
    ]
    return [shown.words, "", _row(head), _row(["---"] * len(head)), *map(_row, rows)]


def _named(contender: Contender, kind: Kind, held: Mapping[Cell, Line]) -> tuple[str, str, str]:
    own = [line for cell, line in held.items() if cell.peer == contender.peer.name]
    versions = [line["version"] for line in own if line["version"]]
    return f"{contender.peer.label} {versions[-1] if versions else ''}".strip(), contender.peer.store, kind


def _filled(shown: Shown, line: Line | None) -> tuple[object, ...]:
    if line is not None and line["status"] == RUN:
        return shown.cells(line)
    told = "not run: it was not asked to" if line is None else f"{line['status']}: {_short(line['reason'])}"
    return (told, *("-" for _ in shown.columns[1:]))


def _short(reason: str) -> str:
    """On one line of a table."""
    return " ".join(reason.split()).replace("|", "/")[:160]


# ── what each table shows ──


def _lost(line: Line) -> str:
    told = f"{line['lost']} of {line['accepted']}"
    return f"{told} ({line['held']} unfinished)" if line["lost"] else told


def _e01(line: Line) -> tuple[object, ...]:
    killed = line.get("interrupted", {})
    parts = (_again(killed.get(name)) for name in ("process", "worker"))
    return (line["faults"], _lost(line), *(cell for part in parts for cell in part), line["done_twice"])


def _again(part: Line | None) -> tuple[str, str]:
    if part is None:
        return "-", "-"
    waited = part["recovery"]
    times = "-" if waited is None else f"{waited['p50']:.1f} / {waited['p99']:.1f} / {waited['max']:.1f}"
    return f"{part['jobs'] - part['never_again']} of {part['jobs']}", times


def _e02(line: Line) -> tuple[object, ...]:
    notes = line["notes"]
    taken = notes["taken_over_after"]
    after = ", ".join(f"{seconds:.0f}" for seconds in taken) or f"not within {line['limit_seconds']:g}"
    counted = f"{notes['late_counted']} of {len(taken)}" if taken else "-"
    return (line["faults"], after, counted, line["done_twice"], _lost(line))


def _e12(line: Line) -> tuple[object, ...]:
    deaths = ", ".join(map(str, line["notes"]["deaths_per_pill"]))
    return (_lost(line), deaths, "yes" if not line["held"] else "no", line["done_twice"])


def _e13(line: Line) -> tuple[object, ...]:
    blocked = f"{line['notes']['blocked_seconds']:g}"
    return (blocked, line["started_again"], line["done_twice"], _lost(line))


def _nul(line: Line) -> tuple[object, ...]:
    succeeded = {None: "not told", True: "yes", False: "no"}[line["notes"]["succeeded"]]
    starts = 1 + line["started_again"]
    return ("yes" if line["notes"]["ended"] else "no", succeeded, starts, _lost(line))


SHOWN: Mapping[str, Shown] = {
    "E01": Shown(
        "`kill -9` while a job runs: of its process, then of workers with all they started. *Again* is how many"
        " of the interrupted jobs were started again, *after* the p50 / p99 / max from the kill to that start.",
        ("kills", "lost", "process: again", "after, s", "worker: again", "after, s", "done twice"),
        _e01,
    ),
    "E02": Shown(
        "SIGSTOP to a whole worker in the middle of a job until another has it, then SIGCONT. *Counted*: the store"
        " took the late word of the first while the second was still at it.",
        ("stops", "taken over after, s", "late word counted", "done twice", "lost"),
        _e02,
    ),
    "E12": Shown(
        "Three jobs that kill the process that runs them among thirty good ones. *Over*: the store has none left.",
        ("good jobs lost", "deaths per pill", "over", "done twice"),
        _e12,
    ),
    "E13": Shown(
        "One job blocks the thread or event loop that it runs on, one holds the interpreter; nobody died.",
        ("blocked for, s", "started a second time", "done twice", "lost"),
        _e13,
    ),
    "NUL": Shown(
        "A handler returns text with a NUL; three more jobs follow. *Ended*: the store has nothing left to do.",
        ("ended", "as succeeded", "starts", "lost"),
        _nul,
    ),
}


# ── settings ──


def _settings(held: Mapping[Cell, Line]) -> list[str]:
    """As they were in the runs, by the runs' own account."""
    lines = ["### Settings", ""]
    for contender in CONTENDERS:
        for kind in KINDS:
            told = [line for cell, line in held.items() if cell[:2] == (contender.peer.name, kind)]
            if told:
                name, store, _ = _named(contender, kind, held)
                lines.append(f"- {name} on {store}, {kind}: {'; '.join(map(_chosen, told[-1]['chosen']))}")
    about = next(iter(held.values()))
    dates = sorted(line["at"][:10] for line in held.values())
    commits = sorted({line["commit"] for line in held.values()})
    most = max(line["at_once"] for line in held.values())
    when = f"{dates[0]} to {dates[-1]}, commit {', '.join(commits)}"
    return [*lines, "", f"{about['cores']} cores, at most {most} runs at once, {when}."]


def _chosen(each: Mapping[str, str]) -> str:
    return f"{each['text']} ({each['source']})" if each["source"] else each["text"]


def _row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
