"""Counting where the work is done: plain numbers, cheap enough for every job, handed on as a difference.

A worker's child has a `Tally` and gives `take()` to its parent now and then; the parent adds them up in
`ropeway.observability.metrics.WorkerMetrics`. Whoever enqueues counts in `produced`, which `Tally.take` reports
too. Nothing here imports prometheus_client.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from typing import Literal, TypeAlias

import msgspec

Outcome: TypeAlias = Literal["succeeded", "failed", "dead", "snoozed", "released", "cancelled", "timeout"]

#: Upper bounds in seconds; the last bucket, without a bound, is implied.
DURATION_BUCKETS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0,
)  # fmt: skip
WAIT_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0,
)  # fmt: skip

#: How many task types, and queues that jobs are put in, have figures of their own; clients choose them, and each
#: costs memory in many places.
MAX_TYPES = 200
OTHER = "other"


class Types:
    """Names that clients choose, as labels: the first 200 are kept, the rest are "other"."""

    def __init__(self, limit: int = MAX_TYPES) -> None:
        self._limit = limit
        self._known: set[str] = {OTHER}

    def label(self, type: str) -> str:
        if type in self._known:
            return type
        if len(self._known) > self._limit:
            return OTHER
        self._known.add(type)
        return type


class Spread(msgspec.Struct, array_like=True):
    """How a number of measurements are spread over buckets; `counts` has one more than there are bounds."""

    counts: list[int]
    sum: float = 0.0

    def add(self, other: Spread) -> None:
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum

    @property
    def number(self) -> int:
        return sum(self.counts)

    @classmethod
    def over(cls, bounds: tuple[float, ...]) -> Spread:
        return cls([0] * (len(bounds) + 1))


class Runs(msgspec.Struct, array_like=True):
    """Runs of one task in one queue that ended one way."""

    queue: str
    type: str
    outcome: str
    seconds: Spread


class Waits(msgspec.Struct, array_like=True):
    """What jobs of one queue waited between being due and being started."""

    queue: str
    seconds: Spread


class Counted(msgspec.Struct, array_like=True):
    """A number of jobs of one task in one queue."""

    queue: str
    type: str
    number: int


class TallyDelta(msgspec.Struct, omit_defaults=True):
    """What happened since the last one was taken. Goes through msgspec's JSON and MessagePack."""

    leased: int = 0
    rejected: int = 0
    waits: list[Waits] = []
    runs: list[Runs] = []
    retried: list[Counted] = []
    enqueued: list[Counted] = []
    deduplicated: list[Counted] = []


class Produced:
    """Jobs that this process enqueued. Any thread may count: each call is one job or one batch."""

    def __init__(self) -> None:
        self._types = Types()
        self._queues = Types()
        self._new = (_Counts(), _Counts())
        self._taken = (_Counts(), _Counts())
        self._lock = threading.Lock()

    def enqueued(self, queue: str, type: str, n: int = 1) -> None:
        """`n` new jobs were stored."""
        with self._lock:
            self._new[0].add((self._queues.label(queue), self._types.label(type)), n)

    def deduplicated(self, queue: str, type: str, n: int = 1) -> None:
        """`n` jobs were asked for that were there already."""
        with self._lock:
            self._new[1].add((self._queues.label(queue), self._types.label(type)), n)

    def take(self) -> tuple[list[Counted], list[Counted]]:
        """(enqueued, deduplicated) since this was last called."""
        with self._lock:
            taken, self._new = self._new, (_Counts(), _Counts())
            for all_taken, now_taken in zip(self._taken, taken, strict=True):
                for key, number in now_taken.items():
                    all_taken.add(key, number)
            return taken[0].counted(), taken[1].counted()

    def untaken(self) -> tuple[list[Counted], list[Counted]]:
        """(enqueued, deduplicated) that the next `take` would give."""
        with self._lock:
            return self._new[0].counted(), self._new[1].counted()

    def all(self) -> tuple[list[Counted], list[Counted]]:
        """(enqueued, deduplicated) since the process started."""
        with self._lock:
            sums = (_Counts(self._taken[0]), _Counts(self._taken[1]))
            for total, new in zip(sums, self._new, strict=True):
                for key, number in new.items():
                    total.add(key, number)
            return sums[0].counted(), sums[1].counted()


class _Counts(dict[tuple[str, str], int]):
    """Numbers by queue and type."""

    def add(self, key: tuple[str, str], n: int) -> None:
        self[key] = self.get(key, 0) + n

    def counted(self) -> list[Counted]:
        return [Counted(queue, type, number) for (queue, type), number in self.items()]


#: What this process enqueued.
produced = Produced()


class Tally:
    """What one child did since it was last asked. Used by one thread."""

    def __init__(self, produced: Produced = produced) -> None:
        self._produced = produced
        self._types = Types()
        self._clear()

    def _clear(self) -> None:
        self._leased = 0
        self._rejected = 0
        self._waits: dict[str, Spread] = {}
        self._runs: dict[tuple[str, str, str], Spread] = {}
        self._retried = _Counts()

    def leased(self, count: int) -> None:
        """A claim brought `count` jobs."""
        self._leased += count

    def rejected(self, count: int = 1) -> None:
        """`count` claims were woken up for work that others had taken already."""
        self._rejected += count

    def started(self, queue: str, type: str, wait_seconds: float) -> None:
        """A handler was started `wait_seconds` after its job was due."""
        spread = self._waits.get(queue)
        if spread is None:
            spread = self._waits[queue] = Spread.over(WAIT_BUCKETS)
        # Another machine's clock may be a little ahead.
        seconds = max(wait_seconds, 0.0)
        spread.counts[bisect_left(WAIT_BUCKETS, seconds)] += 1
        spread.sum += seconds

    def finished(self, queue: str, type: str, outcome: Outcome, seconds: float) -> None:
        """A run ended. `dead` is a failed run that was the job's last; `timeout` and `failed` are tried again."""
        spread = self._runs.get((queue, type, outcome))
        if spread is None:
            key = (queue, self._types.label(type), outcome)
            spread = self._runs.get(key)
            if spread is None:
                spread = self._runs[key] = Spread.over(DURATION_BUCKETS)
        spread.counts[bisect_left(DURATION_BUCKETS, seconds)] += 1
        spread.sum += seconds

    def retried(self, queue: str, type: str) -> None:
        """A failed job will run again."""
        self._retried.add((queue, self._types.label(type)), 1)

    def take(self) -> TallyDelta:
        """All of it, and start again from nothing."""
        enqueued, deduplicated = self._produced.take()
        delta = TallyDelta(
            leased=self._leased,
            rejected=self._rejected,
            waits=[Waits(queue, spread) for queue, spread in self._waits.items()],
            runs=[Runs(*key, spread) for key, spread in self._runs.items()],
            retried=self._retried.counted(),
            enqueued=enqueued,
            deduplicated=deduplicated,
        )
        self._clear()
        return delta
