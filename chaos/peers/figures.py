"""What one run is told as: one JSON object, made of the ledger and of what the experiment found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.peers.measuring import percentile
from chaos.peers import ledger
from chaos.peers.experiments import Found
from chaos.peers.ledger import Handled


def figures(found: Found, runs: Sequence[Handled], *, held: int) -> dict[str, Any]:
    """`runs` are those that count; `held` is how many jobs the store has still to finish."""
    done = ledger.done(runs)
    effects, starts = ledger.effects(runs), ledger.starts(runs)
    return {
        "accepted": len(found.jobs),
        "faults": found.faults,
        "lost": sum(job not in done for job in found.jobs),
        "held": held,
        "done_twice": sum(effects[job] > 1 for job in found.jobs),
        "started_again": sum(max(0, starts[job] - 1) for job in found.jobs),
        **({"interrupted": interruptions(found, runs)} if found.kills else {}),
        "notes": found.notes,
    }


def interruptions(found: Found, runs: Sequence[Handled]) -> dict[str, Any]:
    """What became of the jobs that were hit, by what was killed, and how long they waited to start again."""
    told: dict[str, Any] = {}
    for name, whole in (("process", False), ("worker", True)):
        kills = [kill for kill in found.kills if kill.whole == whole]
        hit = [(run, kill) for kill in kills for run in ledger.interrupted(runs, kill)]
        again = [ledger.started_again(runs, run.job, kill.at) for run, kill in hit]
        waited = [each for each in again if each is not None]
        told[name] = {"jobs": len(hit), "never_again": len(hit) - len(waited), "recovery": _spread(waited)}
    return told


def _spread(waited: Sequence[float]) -> dict[str, float] | None:
    if not waited:
        return None
    ordered = sorted(waited)
    return {
        "p50": round(percentile(ordered, 0.50), 2),
        "p99": round(percentile(ordered, 0.99), 2),
        "max": round(ordered[-1], 2),
    }
