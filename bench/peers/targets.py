"""What Ropeway promises against its peers, as data, and whether a run kept it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

from bench.peers.columns import STORE_NAMES, Column, number, times
from bench.peers.comparing import compare, ranked, title
from bench.peers.results import Results, belongs, is_ours

POSTGRES, NO_EVENTS, SQLITE = "ropeway-postgres", "ropeway-postgres-noevents", "ropeway-sqlite"

DRAINS = (
    Column(title="drain, 1 process", measure="drain1"),
    Column(title="drain, 2 processes", measure="drain2"),
)
PINNED = Column(title="drain under a pinned xmin, last rounds", measure="pinned")


class Verdict(StrEnum):
    MET = "met"
    MISSED = "missed"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, kw_only=True)
class Target:
    """`at_least` times better than each of the peers it names, or than the best of them, in each column.

    Without peers it is about Ropeway alone: the column's own figure is at least `at_least`.
    """

    against: str
    columns: tuple[Column, ...]
    at_least: float
    #: Better by however little: equal is missed.
    strictly: bool = False
    ours: str = POSTGRES
    #: Which of the peers that were measured.
    projects: tuple[str, ...] = ()
    stores: tuple[str, ...] = ("postgres",)
    python_only: bool = False
    jobs_only: bool = False
    #: Against each of them by itself, all of them in one line, the best of them, or about Ropeway alone.
    choose: Literal["each", "all", "best", "nobody"] = "each"
    wanted: str = ""

    def peers(self, results: Results, column: Column) -> list[str]:
        """Those in the run that it is about, the best first."""
        named = [
            name
            for name in results.measured(column.measure)
            if not is_ours(name)
            and results.store(name) in self.stores
            and (not self.projects or any(belongs(name, project) for project in self.projects))
            and (not self.python_only or results.peers[name].get("language", "python") == "python")
            and (not self.jobs_only or results.peers[name].get("kind", "jobs") == "jobs")
        ]
        return ranked(results, column, named)


TARGETS: tuple[Target, ...] = (
    Target(
        against="PgQueuer",
        projects=("pgqueuer",),
        columns=DRAINS,
        at_least=2.0,
        wanted="at least 2×",
    ),
    Target(
        against="graphile-worker (it keeps no history), events on",
        projects=("graphile-worker",),
        columns=DRAINS,
        at_least=0.85,
        wanted="at least 0.85×",
    ),
    Target(
        against="graphile-worker (it keeps no history), events off",
        projects=("graphile-worker",),
        columns=DRAINS,
        ours=NO_EVENTS,
        at_least=1.1,
        wanted="at least 1.1×",
    ),
    Target(
        against="best Python peer on PostgreSQL",
        columns=(Column(title="single enqueue, 50 in flight", measure="single"),),
        python_only=True,
        jobs_only=True,
        choose="best",
        at_least=5.0,
        wanted="at least 5×",
    ),
    Target(
        against="best job queue on PostgreSQL of any language",
        columns=(Column(title="bulk enqueue", measure="bulk"),),
        jobs_only=True,
        choose="best",
        at_least=1.2,
        wanted="at least 1.2×",
    ),
    Target(
        against="every PostgreSQL peer",
        columns=(
            Column(title="idle latency, p50", measure="idle", name="p50", unit="ms", low=True),
            Column(title="idle latency, p99", measure="idle", name="p99", unit="ms", low=True),
        ),
        choose="all",
        at_least=1.0,
        strictly=True,
        wanted="lower",
    ),
    Target(
        against="Ropeway's own start",
        columns=(
            Column(
                title="drain left under a pinned xmin, last rounds against first",
                measure="pinned",
                name="kept",
                unit="%",
                scale=100.0,
            ),
        ),
        choose="nobody",
        at_least=0.8,
        wanted="at least 80 %",
    ),
    Target(against="awa-pg", projects=("awa",), columns=(PINNED,), at_least=4.0, wanted="at least 4×"),
    Target(
        against="every peer",
        columns=(Column(title="recovery with defaults, process killed", measure="recovery", unit="s", low=True),),
        stores=("postgres", "redis", "sqlite", "memory"),
        choose="all",
        at_least=1.0,
        strictly=True,
        wanted="shortest",
    ),
    Target(
        against="huey and taskito on SQLite",
        projects=("huey", "taskito"),
        stores=("sqlite",),
        ours=SQLITE,
        columns=DRAINS,
        at_least=5.0,
        wanted="at least 5×",
    ),
)


class Judged(NamedTuple):
    """A target in one column, against one peer (none: it was not measured, or it is about Ropeway alone)."""

    target: Target
    column: Column
    peer: str | None
    verdict: Verdict
    #: What was found, in words: the ratio and both figures, or why there is none.
    found: str


def verdicts(results: Results) -> list[Judged]:
    """Every target in every column, in the order of the table: against each peer by itself, or with all that it is
    met against in one, named for the nearest. Every peer that it is missed against is there."""
    return [
        judged for target in TARGETS for column in target.columns for judged in _judge(results, target, column)
    ]


def misses(results: Results) -> list[str]:
    """One plain line for each target that is missed against a peer that ran."""
    return [line(results, judged) for judged in verdicts(results) if judged.verdict is Verdict.MISSED]


def line(results: Results, judged: Judged) -> str:
    """`missed: drain, 1 process, against PgQueuer: 1.82× …, wanted at least 2×`."""
    whom = against(results, judged)
    return (
        f"{judged.verdict}: {judged.column.title}, against {whom}: {judged.found}, wanted {judged.target.wanted}"
    )


def against(results: Results, judged: Judged) -> str:
    """Whom it was judged against: the peer's name, and of whom it is the best or the nearest."""
    target = judged.target
    if judged.peer is None:
        return target.against
    whom = title(results, judged.peer)
    if len(target.stores) > 1:
        whom += f" on {STORE_NAMES[results.store(judged.peer)]}"
    if target.ours == NO_EVENTS:
        whom += " with Ropeway's events off"
    if target.choose == "best":
        return f"the {target.against}: {whom}"
    if target.choose == "all" and judged.verdict is Verdict.MET:
        return f"{target.against}; nearest: {whom}"
    return whom


def _judge(results: Results, target: Target, column: Column) -> Iterator[Judged]:
    if target.choose == "nobody":
        yield _alone(results, target, column)
        return
    if results.figure(column.measure, target.ours, column.name) is None and not results.never(
        column.measure, target.ours
    ):
        yield Judged(target, column, None, Verdict.NOT_MEASURED, f"{target.ours} was not measured")
        return
    judged = [_against(results, target, column, peer) for peer in target.peers(results, column)]
    measured = [each for each in judged if each is not None]
    if not measured:
        yield Judged(target, column, None, Verdict.NOT_MEASURED, "no such peer was measured")
    if target.choose == "best":
        yield from measured[:1]
    elif target.choose == "all":
        # Ranked: the first that it is met against is the nearest.
        met = [each for each in measured if each.verdict is Verdict.MET]
        yield from (each for each in measured if each not in met)
        yield from met[:1]
    else:
        yield from measured


def _alone(results: Results, target: Target, column: Column) -> Judged:
    figure = results.figure(column.measure, target.ours, column.name)
    if figure is None:
        return Judged(target, column, None, Verdict.NOT_MEASURED, f"{target.ours} was not measured")
    verdict = Verdict.MET if figure.median >= target.at_least else Verdict.MISSED
    shown = [number(value * column.scale) for value in (figure.median, figure.low, figure.high)]
    spread = f" ({shown[1]} to {shown[2]})" if figure.repeats > 1 else ""
    jobs = results.figure(column.measure, target.ours, "jobs")
    after = f" after {number(jobs.median)} jobs" if jobs else ""
    return Judged(target, column, None, verdict, f"{shown[0]} {column.unit}{spread}{after}")


def _against(results: Results, target: Target, column: Column, peer: str) -> Judged | None:
    """None when that peer has no such figure: it is not measured against, and said so elsewhere."""
    comparison = compare(results, column, target.ours, peer)
    if comparison is None:
        return None
    ratio = comparison.times
    if ratio is None:
        verdict = Verdict.MET if comparison.ropeway_ahead else Verdict.MISSED
        return Judged(target, column, peer, verdict, _figures(results, column, target.ours, peer))
    good = ratio.median > target.at_least if target.strictly else ratio.median >= target.at_least
    spread = f" ({times(ratio.low)} to {times(ratio.high)})" if ratio.repeats > 1 else ""
    found = f"{times(ratio.median)}{spread}: {_figures(results, column, target.ours, peer)}"
    return Judged(target, column, peer, Verdict.MET if good else Verdict.MISSED, found)


def _figures(results: Results, column: Column, ours: str, peer: str) -> str:
    shown = []
    for name in (ours, peer):
        figure = results.figure(column.measure, name, column.name)
        missing = results.missing(column.measure, name)
        if figure is not None:
            shown.append(number(figure.median * column.scale))
        else:
            shown.append(str(missing["reason"]) if missing else "nothing")
    unit = f" {column.unit}" if results.figure(column.measure, peer, column.name) else ""
    return f"{shown[0]} against {shown[1]}{unit}"
