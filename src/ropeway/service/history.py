"""How it was, ready to be drawn: rates, depths and percentiles over time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from ropeway.core.history import ALL_QUEUES, LONG_STEP, STEP, Sample, merged, percentile, step_of
from ropeway.core.job import DEFAULT_TENANT
from ropeway.engines.protocol import Engine

#: The stretches of time that are offered: their length in seconds, and the seconds of one point.
RANGES = {"15m": (900, 15), "1h": (3_600, 60), "6h": (21_600, 300), "7d": (604_800, 3_600)}


class Series(msgspec.Struct, frozen=True):
    """Points in time, one list for each figure, all of the same length; None where nothing is known."""

    range: str
    at: list[int]
    enqueued: list[float | None]
    succeeded: list[float | None]
    failed: list[float | None]
    dead: list[float | None]
    waiting: list[int | None]
    running: list[int | None]
    oldest: list[float | None]
    wait_p50: list[float | None]
    wait_p95: list[float | None]
    run_p50: list[float | None]
    run_p95: list[float | None]


class History:
    """The history of one tenant."""

    def __init__(self, engine: Engine, *, tenant: str = DEFAULT_TENANT) -> None:
        self._engine = engine
        self._tenant = tenant

    async def series(self, range: str, *, queue: str | None = None) -> Series:
        """Of one queue, or of all together. Rates are per minute. `range` is one of RANGES."""
        length, point = RANGES[range]
        now = await self._engine.now()
        since = step_of(now - timedelta(seconds=length), point)
        step = STEP if point < LONG_STEP else LONG_STEP
        whole = await self._engine.history(step=step, since=since, queue=ALL_QUEUES, tenant=self._tenant)
        if queue is None:
            return series_of(whole, whole, range, since, now)
        samples = await self._engine.history(step=step, since=since, queue=queue, tenant=self._tenant)
        return series_of(samples, whole, range, since, now)


def series_of(
    samples: Sequence[Sample], whole: Sequence[Sample], range: str, since: datetime, now: datetime
) -> Series:
    """Samples of one queue, or of all together, as points: those of a point are added up.

    `whole` are those of all queues together: they tell which steps were looked at. Rates are of these alone, for
    the newest point is never complete, and a part of the oldest may be forgotten. A queue that has no sample of
    such a step had nothing to tell.
    """
    _, point = RANGES[range]
    of_point, looked_at = _by_point(samples, point), _by_point([*whole, *samples], point)
    at: list[int] = []
    found: list[Sample | None] = []
    looked: list[int] = []
    moment = since
    while moment < now:
        at.append(int(moment.timestamp()))
        known = looked_at.get(moment)
        if known is None:
            found.append(None)
            looked.append(0)
        else:
            last = max(known, key=lambda one: one.at)
            nothing = Sample(last.tenant, last.queue, last.at, last.step)
            found.append(merged([*of_point.get(moment, ()), nothing], moment, point, queue=last.queue))
            looked.append(sum({one.at: one.step for one in known}.values()))
        moment += timedelta(seconds=point)

    def rates(name: str) -> list[float | None]:
        pairs = zip(found, looked, strict=True)
        return [None if one is None else getattr(one, name) * 60 / seconds for one, seconds in pairs]

    def ends(name: str) -> list[int | None]:
        return [None if one is None else getattr(one, name) for one in found]

    def shares(name: str, share: float) -> list[float | None]:
        return [None if one is None else percentile(getattr(one, name), share) for one in found]

    return Series(
        range=range,
        at=at,
        enqueued=rates("enqueued"),
        succeeded=rates("succeeded"),
        failed=rates("failed"),
        dead=rates("dead"),
        waiting=ends("waiting"),
        running=ends("running"),
        oldest=[None if one is None else one.oldest for one in found],
        wait_p50=shares("waits", 0.5),
        wait_p95=shares("waits", 0.95),
        run_p50=shares("runs", 0.5),
        run_p95=shares("runs", 0.95),
    )


def _by_point(samples: Sequence[Sample], point: int) -> dict[datetime, list[Sample]]:
    by_point: dict[datetime, list[Sample]] = {}
    for sample in samples:
        by_point.setdefault(step_of(sample.at, point), []).append(sample)
    return by_point
