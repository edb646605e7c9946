"""The bars that Ropeway is judged by, from the figures of the runs alone.

A bar can only be met by what was measured. Where there is no run it is *not run*; runs that measured nothing have
not met it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from chaos.bars_beside import of_model, of_mutants, of_peers, of_simulations
from chaos.bars_own import OWN_BARS
from chaos.bars_verdict import Figures, Judged, Runs, broken, judge, named, total
from chaos.experiments import EXPERIMENTS
from chaos.mutants_measure import ENGINES
from chaos.peers.results import Cell
from ropeway.settings import Settings

#: Stores that promise to keep what they have accepted.
DURABLE = ("sqlite", "postgres")

#: What is set up so that it may lose something: its loss is published, and it is in no sum.
LOSS_IS_PUBLISHED = frozenset(each.id for each in EXPERIMENTS.values() if each.may_lose)

#: For each durable store.
LEAST_ACCEPTED = 200_000
LEAST_FAULTS = 600
LEAST_ZOMBIES = 300

#: Faults that transactional effects have to survive.
LEAST_CRASHES = 1_000

#: Where workers are killed, one after the other, and it is timed how soon their jobs run again.
KILLING = ("E01", "E01D")

#: Seconds that recovery may take: of a worker that was killed, beyond its lease; of a child, whose death a
#: supervisor sees.
WORKER_SECONDS = 2.0
CHILD_SECONDS = 2.0


@dataclass(frozen=True)
class Kept:
    """All that the bars are judged from."""

    runs: Runs = ()
    mutants: Mapping[str, Figures] = field(default_factory=dict)
    simulations: Runs = ()
    peers: Mapping[Cell, Figures] = field(default_factory=dict)
    model: Runs = ()


def judged(kept: Kept) -> list[Judged]:
    """Every bar there is, whether or not anything was run for it."""
    stores = [each for store in DURABLE for each in _of_store(store, kept.runs)]
    own = [bar.judge(kept.runs) for bar in OWN_BARS]
    mutants = [of_mutants(engine, kept.mutants.get(engine)) for engine in ENGINES]
    beside = [of_simulations(kept.simulations), of_model(kept.model), of_peers(kept.peers)]
    return [*stores, *_of_all(kept.runs), *own, *mutants, *beside]


def store_of(run: Figures) -> str:
    return str(run["engine"]).removeprefix("http-")


def counted(runs: Runs) -> list[Figures]:
    """Those whose loss is a loss."""
    return [run for run in runs if run["experiment"] not in LOSS_IS_PUBLISHED]


# ── each durable store, as a library and over HTTP ──


def _of_store(store: str, runs: Runs) -> list[Judged]:
    own = [run for run in counted(runs) if store_of(run) == store]
    judgements = [*_size(own), *_safety(own), *_recovery(own)]
    return [each._replace(bar=f"{store}: {each.bar}") for each in judgements]


def _size(own: Runs) -> list[Judged]:
    """Whether enough was tried for the zeros to mean something."""
    harmful = [run for run in own if run["harmful"]]
    zombies = [run for run in own if run["experiment"] == "E02"]
    return [
        _at_least("jobs accepted where faults are harmful", LEAST_ACCEPTED, harmful, "accepted"),
        _at_least("harmful faults", LEAST_FAULTS, harmful, "faults"),
        _at_least("workers stopped for longer than their leases (E02)", LEAST_ZOMBIES, zombies, "faults"),
    ]


def _at_least(bar: str, least: int, runs: Runs, name: str) -> Judged:
    """Also who the most of it is from: a number that one experiment makes up says little about the others."""
    by_experiment: Counter[str] = Counter()
    for run in runs:
        by_experiment[run["experiment"]] += run[name]
    number = by_experiment.total()
    most = ", ".join(f"{most:,} in {id}" for id, most in by_experiment.most_common(1))
    return judge(bar, f"at least {least:,}", f"{number:,}, of them {most}", runs, met=number >= least)


def _safety(own: Runs) -> list[Judged]:
    lost, unexpected = total(own, "lost"), total(own, "unexpected")
    stale, sent = total(own, "stale_calls_accepted"), total(own, "stale_calls_sent")
    doubles, explained = total(own, "duplicates_unexplained"), total(own, "duplicates_explained")
    return [
        judge("accepted jobs lost", "0", f"{lost} of {total(own, 'accepted'):,}", own, met=lost == 0),
        judge("jobs that nobody asked for", "0", f"{unexpected}", own, met=unexpected == 0),
        judge("stale calls accepted", "0 of some", f"{stale} of {sent:,}", own, met=stale == 0 and sent > 0),
        judge(
            "second executions without a cause", "0", f"{doubles}; {explained:,} with one", own, met=doubles == 0
        ),
    ]


def _recovery(own: Runs) -> list[Judged]:
    default = Settings().lease_seconds
    killed = [run for run in own if run["experiment"] in KILLING]
    at_default = [run for run in killed if _lease(run) == default]

    def beyond_lease(waited: Figures) -> float:
        return float(waited["lease_seconds"]) + WORKER_SECONDS

    def at_all(_waited: Figures) -> float:
        return CHILD_SECONDS

    whole, child = "recovery of a killed worker, p99", "recovery of a killed child under its supervisor, p99"
    return [
        _recovered(whole, f"lease + {WORKER_SECONDS:g} s", killed, "recovery", beyond_lease),
        _recovered(
            f"{whole}, with the default lease",
            f"{default + WORKER_SECONDS:g} s",
            at_default,
            "recovery",
            beyond_lease,
        ),
        _recovered(child, f"{CHILD_SECONDS:g} s", killed, "recovery_child", at_all),
    ]


def _lease(run: Figures) -> float | None:
    """That of the run, as far as it measured a recovery."""
    waited = run["recovery"] or run.get("recovery_child")
    return None if waited is None else float(waited["lease_seconds"])


def _recovered(bar: str, wanted: str, runs: Runs, name: str, most: Callable[[Figures], float]) -> Judged:
    """The worst of them, each against what it may be with its lease."""
    measured = [(waited, run) for run in runs if (waited := run.get(name)) is not None]
    if not measured:
        return judge(bar, wanted, "nothing was measured", runs, met=False)
    jobs = sum(int(waited["jobs"]) for waited, _ in measured)
    waited, run = max(measured, key=lambda each: each[0]["p99"] - most(each[0]))
    told = (
        f"{waited['p99']:.2f} s with a lease of {waited['lease_seconds']:g} s ({named(run)}); {jobs:,} jobs in all"
    )
    return judge(bar, wanted, told, runs, met=waited["p99"] <= most(waited))


# ── all of them ──


def _of_all(runs: Runs) -> list[Judged]:
    bad = [run for run in runs if run["violations"]]
    events, gone, disordered = (total(runs, name) for name in ("events", "events_lost", "events_disordered"))
    return [
        judge(
            "rules and bars that a run broke",
            "none",
            f"{total(bad, 'violations'):,} in {len(bad)} of {len(runs)} runs",
            runs,
            met=not bad,
        ),
        judge(
            "events missing or out of order (C11)",
            "0 of some",
            f"{gone} and {disordered} of {events:,}",
            runs,
            met=events > 0 and not (gone or disordered or broken(runs, "C11")),
        ),
        _effects(runs),
    ]


def _effects(runs: Runs) -> Judged:
    effective = [run for run in counted(runs) if run["harmful"] and run.get("effects", 0)]
    crashes, effects, wrong = total(effective, "faults"), total(effective, "effects"), broken(runs, "C9")
    return judge(
        "transactional effects that are not there exactly once per success (C9)",
        f"0 through at least {LEAST_CRASHES:,} faults",
        f"{wrong} of {effects:,} through {crashes:,} faults",
        effective,
        met=wrong == 0 and crashes >= LEAST_CRASHES,
    )
