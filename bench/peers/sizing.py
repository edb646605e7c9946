"""How much a sample asks for: as many jobs as make it last some seconds, by what is known of the peer's speed."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass
from typing import NamedTuple

from bench.peers.catalogue import Peer
from bench.peers.results import Results


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How long things take. `quick` is for a look, `full` for figures that are published."""

    #: One sample of a rate.
    seconds: float
    #: A drain. As long in every run: some become slower the more they have drained, others start slowly.
    drain_seconds: float
    #: Jobs of a latency sample without load.
    latency_jobs: int
    #: How long a load is kept up whose latency is measured.
    load_seconds: float
    #: A spike, what comes before it and what comes after.
    spike_seconds: float
    calm_seconds: float
    recovery_seconds: float
    backlog_jobs: int
    backlog_seconds: float
    pinned_round_jobs: int
    pinned_rounds: int
    #: Tries to find the highest steady rate.
    steady_tries: int
    #: Numbers of worker processes (and producers) tried to fill the store.
    crowds: tuple[int, ...]
    #: No sample takes longer than this, but for those that are long by nature (see measures).
    limit_seconds: float


FULL = Scale(
    seconds=4.0,
    drain_seconds=4.0,
    latency_jobs=300,
    load_seconds=4.0,
    spike_seconds=30.0,
    calm_seconds=5.0,
    recovery_seconds=120.0,
    backlog_jobs=1_000_000,
    backlog_seconds=5.0,
    pinned_round_jobs=100_000,
    pinned_rounds=10,
    steady_tries=5,
    crowds=(1, 2, 4, 8),
    limit_seconds=120.0,
)

QUICK = Scale(
    seconds=2.0,
    drain_seconds=4.0,
    latency_jobs=100,
    load_seconds=2.0,
    spike_seconds=8.0,
    calm_seconds=4.0,
    recovery_seconds=60.0,
    backlog_jobs=100_000,
    backlog_seconds=2.0,
    pinned_round_jobs=20_000,
    pinned_rounds=5,
    steady_tries=4,
    crowds=(1, 2, 4),
    limit_seconds=60.0,
)

#: Fewer jobs than this say nothing.
FEWEST = 200
FEWEST_UNDER_LOAD = 20


def jobs_for(rate: float, seconds: float, *, multiple: int = 100) -> int:
    """So many jobs as last so long, in whole multiples."""
    return max(FEWEST, multiple, round(rate * seconds / multiple) * multiple)


def drain_jobs(peer: Peer, processes: int, seconds: float) -> int:
    """Two processes are mostly faster than one, and seldom twice as fast."""
    return jobs_for(peer.rate * (1.0 if processes == 1 else 1.5), seconds)


def known_rate(results: Results, measure: str, peer: Peer) -> float:
    """What the peer did in this run (drain1 or single), or what the catalogue expects of it."""
    values = results.values(measure, peer.name)
    expected = peer.rate if measure == "drain1" else peer.enqueue_rate
    return statistics.median(values.values()) if values else float(expected)


def pauses_when_idle(number: int, *, seed: int = 7) -> list[float]:
    """20 to 60 ms, the same for everybody: no peer's polling falls in step with them."""
    chance = random.Random(seed)
    return [chance.uniform(0.020, 0.060) for _ in range(number)]


class Stage(NamedTuple):
    """A steady load for some time."""

    rate: float
    seconds: float

    @property
    def jobs(self) -> int:
        """As many as it is at most: a sender that cannot keep up sends fewer."""
        return max(1, round(self.rate * self.seconds))


def steady_load(rate: float, seconds: float) -> Stage:
    """A slow one lasts longer, so that there is something to see."""
    return Stage(rate, max(seconds, FEWEST_UNDER_LOAD / rate))
