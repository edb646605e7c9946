"""How it was: samples of each queue, one for every short step of time, small enough to be kept for days.

A sample says what happened in a step (counts of events; how long a few of the jobs waited and ran, as histograms)
and how much waited at its end. Samples can be added up: over queues, and over time into longer steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec.structs import replace

from ropeway.core.states import EventName

#: Seconds of a step, and of the longer one that older samples are merged into.
STEP, LONG_STEP = 15, 300
#: Seconds that samples of each are kept.
KEEP_STEPS, KEEP_LONG_STEPS = 6 * 3_600, 7 * 86_400

#: The upper bounds of a histogram's buckets in seconds; the last bucket has none.
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0)

#: The name under which all queues of a tenant are kept together: what is shown of them costs the same however many
#: they are. It is there for every step that was looked at, also a quiet one. No queue has it.
ALL_QUEUES = ""

Histogram = tuple[int, ...]
EMPTY: Histogram = (0,) * (len(BOUNDS) + 1)


class Observed(msgspec.Struct, frozen=True):
    """What an engine saw in a step: events by name, and the waits and runs of a sample of the jobs that ended.

    `share` is the part of the step that was looked at: a store that writes more than can be looked at tells the
    newest of it, and counts are scaled up.
    """

    tenant: str
    queue: str
    events: dict[EventName, int]
    waits: Sequence[float] = ()
    runs: Sequence[float] = ()
    share: float = 1.0


class Sample(msgspec.Struct, frozen=True):
    """One queue in one step that began at `at`. `waiting`, `running` and `oldest` are as they were at its end."""

    tenant: str
    queue: str
    at: datetime
    step: int
    enqueued: float = 0.0
    succeeded: float = 0.0
    failed: float = 0.0
    dead: float = 0.0
    cancelled: float = 0.0
    waiting: int = 0
    running: int = 0
    oldest: float | None = None
    waits: Histogram = EMPTY
    runs: Histogram = EMPTY

    @property
    def busy(self) -> bool:
        """Whether there was anything to tell of."""
        happened = self.enqueued or self.succeeded or self.failed or self.dead or self.cancelled
        return bool(happened or self.waiting or self.running)


class Depth(msgspec.Struct, frozen=True):
    """How much of a queue waits and runs now, and how many seconds the first in line has been due.

    `capped`: they were not counted to the end, there are at least so many.
    """

    queue: str
    waiting: int
    running: int = 0
    oldest: float | None = None
    capped: bool = False


def step_of(at: datetime, step: int) -> datetime:
    """The beginning of the step that an instant is in."""
    seconds = int(at.timestamp()) // step * step
    return datetime.fromtimestamp(seconds, UTC)


def last_step(now: datetime, *, step: int = STEP, settled: float = 2.0) -> datetime:
    """The newest step that is over, and has been for so long that hardly anything of it is still on its way."""
    return step_of(now - timedelta(seconds=settled), step) - timedelta(seconds=step)


def histogram(values: Iterable[float]) -> Histogram:
    counts = list(EMPTY)
    for value in values:
        counts[bisect_left(BOUNDS, value)] += 1
    return tuple(counts)


def percentile(counts: Histogram, share: float) -> float | None:
    """The value that so large a share is not beyond, read between the bounds of its bucket; None of nothing."""
    total = sum(counts)
    if total == 0:
        return None
    wanted, seen, lower = share * total, 0, 0.0
    for count, upper in zip(counts, (*BOUNDS, BOUNDS[-1]), strict=True):
        if count and seen + count >= wanted:
            return lower + (upper - lower) * max(0.0, wanted - seen) / count
        seen += count
        lower = upper
    return BOUNDS[-1]


def sample_of(seen: Observed, at: datetime, *, step: int = STEP) -> Sample:
    """What was seen in a step, as it is kept."""

    def number(event: EventName) -> float:
        return seen.events.get(event, 0) / seen.share

    return Sample(
        seen.tenant,
        seen.queue,
        at,
        step,
        enqueued=number(EventName.ENQUEUED),
        succeeded=number(EventName.COMPLETED),
        failed=number(EventName.FAILED),
        dead=number(EventName.DLQ),
        cancelled=number(EventName.CANCELLED),
        waits=histogram(seen.waits),
        runs=histogram(seen.runs),
    )


def merged(samples: Sequence[Sample], at: datetime, step: int, *, queue: str) -> Sample:
    """Several samples of a tenant as one, of a longer step or all queues.

    What happened adds up; what waited is as it was at the last of them.
    """
    last = max(sample.at for sample in samples)
    ends = [sample for sample in samples if sample.at == last]
    oldest = [sample.oldest for sample in ends if sample.oldest is not None]
    return Sample(
        samples[0].tenant,
        queue,
        at,
        step,
        enqueued=sum(sample.enqueued for sample in samples),
        succeeded=sum(sample.succeeded for sample in samples),
        failed=sum(sample.failed for sample in samples),
        dead=sum(sample.dead for sample in samples),
        cancelled=sum(sample.cancelled for sample in samples),
        waiting=sum(sample.waiting for sample in ends),
        running=sum(sample.running for sample in ends),
        oldest=max(oldest, default=None),
        waits=_added([sample.waits for sample in samples]),
        runs=_added([sample.runs for sample in samples]),
    )


def _added(histograms: Sequence[Histogram]) -> Histogram:
    return tuple(map(sum, zip(*histograms, strict=True)))


def carried_on(sample: Sample, before: Sample) -> Sample:
    """A sample whose jobs were not counted to the end, reckoned from the one before: what there was and came, less
    what ended. Never less than was counted."""
    ended = sample.succeeded + sample.dead + sample.cancelled
    waiting = before.waiting + before.running + sample.enqueued - ended - sample.running
    return replace(sample, waiting=max(sample.waiting, round(waiting)))
