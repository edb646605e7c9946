"""What a measure is given and what it gives back."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.peers.catalogue import Peer, Profile
from bench.peers.environments import Environment
from bench.peers.places import Places
from bench.peers.results import Results
from bench.peers.runs import Run, running
from bench.peers.sizing import Scale


@dataclass(frozen=True)
class Figure:
    """One measured value and what belongs to it."""

    value: float
    unit: str
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """One peer that is to be measured, where, how long, and what is known of it already."""

    peer: Peer
    environment: Environment
    places: Places
    scale: Scale
    results: Results

    @contextlib.contextmanager
    def run(
        self, jobs: int, *, profile: Profile = "throughput", limit_seconds: float | None = None
    ) -> Iterator[Run]:
        """The peer on an empty store, with a record of so many jobs."""
        limit = self.scale.limit_seconds if limit_seconds is None else limit_seconds
        with running(
            self.peer, self.environment, self.places, jobs=jobs, limit_seconds=limit, profile=profile
        ) as run:
            yield run


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that so large a share does not exceed."""
    return ordered[max(0, -(-len(ordered) * round(share * 1000) // 1000) - 1)]


def latencies_ms(sent: array[float], started: array[float]) -> list[float]:
    """From each call to each start, sorted. Both clocks are the machine's own."""
    return sorted(max(0.0, at - called) * 1000 for called, at in zip(sent, started, strict=True))


def latency_extra(ordered: Sequence[float]) -> dict[str, float]:
    return {
        "p50": percentile(ordered, 0.50),
        "p99": percentile(ordered, 0.99),
        "max": ordered[-1],
        "jobs": len(ordered),
    }
