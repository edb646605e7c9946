"""What a run is summed up to: one JSON object, always the same names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from chaos.checker import Violation, linear
from chaos.checker.accepting import recovered
from chaos.checker.leasing import duplicates, stale_calls
from chaos.checker.timing import recovery, recovery_times
from chaos.experiment import Experiment
from chaos.facts import Facts

#: Violations that are told in full; the others are counted.
TOLD = 20


def figures(
    experiment: Experiment,
    facts: Facts,
    violations: Sequence[Violation],
    *,
    engine: str,
    seed: int,
    size: str,
    seconds: float,
    faults: int,
    notes: Mapping[str, float],
    commit: str,
) -> dict[str, Any]:
    explained, unexplained = duplicates(facts)
    sent, accepted_stale = stale_calls(facts)
    times = recovery_times(facts)
    waited = recovery(times)
    by_rule = Counter(violation.rule for violation in violations)
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
        "faults": faults,
        "harmful": experiment.harmful,
        "lost": by_rule["C1"],
        "unexpected": by_rule["C3"],
        "executions": sum(map(len, facts.starts.values())),
        "duplicates_explained": explained,
        "duplicates_unexplained": unexplained,
        "stale_calls_sent": sent,
        "stale_calls_accepted": accepted_stale,
        "events": sum(map(len, facts.events.values())),
        "recovery": None
        if waited is None
        else {
            "jobs": waited.jobs,
            "p50": round(waited.p50, 3),
            "p99": round(waited.p99, 3),
            "max": round(waited.longest, 3),
            "lease_seconds": experiment.lease_seconds,
        },
        "undecided": linear.undecided(facts),
        #: Nothing in n faults means: less than three in n, at 95 %.
        "loss_per_fault_below": round(3 / faults, 5) if faults and not by_rule["C1"] else None,
        "notes": dict(notes),
        "violations": len(violations),
        "rules_broken": dict(by_rule),
        "told": [str(violation) for violation in violations[:TOLD]],
    }
