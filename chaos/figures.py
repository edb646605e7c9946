"""What a run is summed up to: one JSON object, always the same names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from chaos.checker import Violation, linear
from chaos.checker.accepting import recovered
from chaos.checker.ending import effects_looked_for
from chaos.checker.events import lost_and_disordered
from chaos.checker.leasing import duplicates, stale_calls
from chaos.checker.timing import recovery, recovery_times
from chaos.experiment import Experiment
from chaos.facts import Facts

#: Violations that are told in full; the others are counted.
TOLD = 20


def figures(
    experiment: Experiment,
    facts: Facts,
    found: Sequence[Violation],
    *,
    engine: str,
    seed: int,
    size: str,
    seconds: float,
    faults: int,
    idle: int,
    notes: Mapping[str, float],
    commit: str,
) -> dict[str, Any]:
    """What is said of one run. `found` is all that was found, also what the experiment forgives."""
    violations = [violation for violation in found if not experiment.forgives(facts, violation)]
    explained, unexplained = duplicates(facts)
    sent, accepted_stale = stale_calls(facts)
    events_lost, events_disordered = lost_and_disordered(facts)
    times = recovery_times(facts)
    by_rule = Counter(violation.rule for violation in violations)
    if experiment.may_lose:
        # By what is not forgiven: the rest follows from what was lost.
        unexplained, accepted_stale = by_rule["C8"], by_rule["C5"]
    return {
        "experiment": experiment.id,
        "title": experiment.title,
        "engine": engine,
        "seed": seed,
        "size": size,
        "commit": commit,
        "seconds": round(seconds, 1),
        "accepted": len(facts.accepted),
        "recovered": recovered(facts),
        #: Those that came when no producer was at work and no job was live are told apart: nothing could be lost.
        "faults": faults,
        "faults_idle": idle,
        "harmful": experiment.harmful,
        "lost": by_rule["C1"],
        "unexpected": by_rule["C3"],
        "executions": sum(map(len, facts.starts.values())),
        "duplicates_explained": explained,
        "duplicates_unexplained": unexplained,
        "stale_calls_sent": sent,
        "stale_calls_accepted": accepted_stale,
        "events": sum(map(len, facts.events.values())),
        "events_lost": events_lost,
        "events_disordered": events_disordered,
        #: Succeeded jobs whose handler wrote in the transaction that completed them: C9 looks for each.
        "effects": effects_looked_for(facts),
        #: What the servers' metrics said, which C16 compares; None: nobody was there all the time.
        "served": None if facts.served is None else dict(facts.served),
        #: Where whole workers were met, and where processes died under a supervisor that lived.
        "recovery": _recovery(times.whole, experiment.lease_seconds),
        "recovery_child": _recovery(times.child, experiment.lease_seconds),
        "undecided": linear.undecided(facts),
        #: Nothing in n faults means: less than three in n, at 95 %.
        "loss_per_fault_below": round(3 / faults, 5) if faults and not _lost(found) else None,
        "notes": dict(notes),
        "violations": len(violations),
        "rules_broken": dict(by_rule),
        "exempted": dict(Counter(violation.rule for violation in found) - by_rule),
        "told": [str(violation) for violation in violations[:TOLD]],
    }


def _lost(found: Sequence[Violation]) -> bool:
    """Whether anything was lost, also where that is allowed."""
    return any(violation.rule == "C1" for violation in found)


def _recovery(times: Sequence[float], lease_seconds: float) -> dict[str, float] | None:
    waited = recovery(times)
    if waited is None:
        return None
    return {
        "jobs": waited.jobs,
        "p50": round(waited.p50, 3),
        "p99": round(waited.p99, 3),
        "max": round(waited.longest, 3),
        "lease_seconds": lease_seconds,
    }
