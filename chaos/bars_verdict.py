"""What a bar comes to: wanted, measured, and met or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

Figures = Mapping[str, Any]
Runs = Sequence[Figures]


class Verdict(StrEnum):
    MET = "met"
    NOT_MET = "**not met**"
    NOT_RUN = "not run"


class Judged(NamedTuple):
    """A bar, and what the figures say of it."""

    bar: str
    wanted: str
    measured: str
    verdict: Verdict


def judge(bar: str, wanted: str, measured: str, runs: Runs, *, met: bool) -> Judged:
    """Without a run nothing is known, whatever the sums are."""
    if not runs:
        return Judged(bar, wanted, "-", Verdict.NOT_RUN)
    return Judged(bar, wanted, measured, Verdict.MET if met else Verdict.NOT_MET)


def total(runs: Runs, name: str) -> int:
    return sum(int(run[name]) for run in runs)


def broken(runs: Runs, rule: str) -> int:
    """How often that rule was broken."""
    return sum(int(run["rules_broken"].get(rule, 0)) for run in runs)


def named(run: Figures) -> str:
    return f"{run['experiment']} on {run['engine']}, seed {run['seed']}"
