"""Remembering: samples of how it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from ropeway.core.history import ALL_QUEUES, KEEP_LONG_STEPS, KEEP_STEPS, STEP, Depth, Observed, Sample
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.states import EventName, State
from ropeway.engines.memory.store import MemoryStore

_ENDED = (EventName.COMPLETED, EventName.DLQ)


class MemoryRemembering(MemoryStore):
    async def observe(self, since: datetime, until: datetime, *, most: int = 20_000) -> list[Observed]:
        del most  # they are all at hand
        counts: dict[tuple[str, str], Counter[EventName]] = {}
        times: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for event in reversed(self.events):
            if event.at < since:
                break
            if event.at >= until:
                continue
            lane = (event.tenant, event.queue)
            counts.setdefault(lane, Counter())[event.event] += 1
            row = self.jobs.get(event.job_id)
            if event.event in _ENDED and row is not None and row.started_at is not None:
                wait, run = row.started_at - max(row.run_at, row.created_at), event.at - row.started_at
                times.setdefault(lane, []).append((wait.total_seconds(), run.total_seconds()))
        return [
            Observed(
                *lane,
                dict(events),
                waits=[max(0.0, wait) for wait, _ in times.get(lane, ())],
                runs=[max(0.0, run) for _, run in times.get(lane, ())],
            )
            for lane, events in sorted(counts.items())
        ]

    async def remember(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            self.samples.setdefault((sample.tenant, sample.step, sample.at, sample.queue), sample)

    async def history(
        self,
        *,
        step: int,
        since: datetime,
        until: datetime | None = None,
        queue: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Sample]:
        return [
            sample
            for key, sample in sorted(self.samples.items(), key=lambda item: item[0])
            if key[:2] == (tenant, step)
            and sample.at >= since
            and (until is None or sample.at < until)
            and queue in (None, sample.queue)
        ]

    async def latest(self, *, step: int, since: datetime, until: datetime, busy: bool = False) -> list[Sample]:
        newest: dict[str, Sample] = {}
        for (tenant, length, at, queue), sample in sorted(self.samples.items(), key=lambda item: item[0]):
            if (length, queue) == (step, ALL_QUEUES) and since <= at < until and (sample.busy or not busy):
                newest[tenant] = sample
        return list(newest.values())

    async def depths(self, *, cap: int = 10_000, tenant: str = DEFAULT_TENANT) -> list[Depth]:
        now = self.clock.now()
        waiting: dict[str, list[datetime]] = {}
        running: Counter[str] = Counter()
        for row in self.jobs.values():
            if row.tenant == tenant:
                state = row.state(now)
                if state is State.QUEUED:
                    waiting.setdefault(row.queue, []).append(row.run_at)
                elif state is State.RUNNING:
                    running[row.queue] += 1
        depths = []
        for queue in sorted(waiting.keys() | running.keys()):
            due = waiting.get(queue, [])
            oldest = (now - min(due)).total_seconds() if due else None
            depths.append(Depth(queue, min(len(due), cap), running[queue], oldest, len(due) > cap))
        return depths

    def forget_samples(self) -> None:
        now = self.clock.now()
        edges = {STEP: now - timedelta(seconds=KEEP_STEPS)}
        rest = now - timedelta(seconds=KEEP_LONG_STEPS)
        self.samples = {
            key: sample for key, sample in self.samples.items() if sample.at >= edges.get(sample.step, rest)
        }
