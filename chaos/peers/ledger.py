"""The ledger, read: every run of a handler, when it began, in which process, and when its effect was done."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Handled:
    """One run of one job. `effect` is None while it runs, and for ever when it was interrupted."""

    job: int
    run: str
    pid: int
    started: float
    effect: float | None = None


def read(path: Path) -> list[Handled]:
    """All runs, by their start. A line that is only half written is left out."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return handled(json.loads(line) for line in lines)


def handled(lines: Iterable[dict[str, object]]) -> list[Handled]:
    runs: dict[str, Handled] = {}
    for line in lines:
        run, at = str(line["run"]), float(str(line["t"]))
        if line["op"] == "start":
            runs[run] = Handled(int(str(line["job"])), run, int(str(line["pid"])), at)
        else:
            runs[run] = replace(runs[run], effect=at)
    return sorted(runs.values(), key=lambda each: each.started)


@dataclass(frozen=True)
class Kill:
    """A `kill -9`: of the process that ran a handler, or of the whole worker at once."""

    at: float
    pids: frozenset[int]
    whole: bool


def done(runs: Iterable[Handled]) -> set[int]:
    """The jobs whose effect was done at least once."""
    return {run.job for run in runs if run.effect is not None}


def effects(runs: Iterable[Handled]) -> Counter[int]:
    """By job, how often its effect was done."""
    return Counter(run.job for run in runs if run.effect is not None)


def starts(runs: Iterable[Handled]) -> Counter[int]:
    """By job, how often it was started."""
    return Counter(run.job for run in runs)


def interrupted(runs: Iterable[Handled], kill: Kill) -> list[Handled]:
    """The runs that a kill ended."""
    return [run for run in runs if run.pid in kill.pids and run.effect is None and run.started <= kill.at]


def started_again(runs: Iterable[Handled], job: int, after: float) -> float | None:
    """The seconds from an instant to the job's next start; None when there is none."""
    return min((run.started - after for run in runs if run.job == job and run.started > after), default=None)
