"""How many jobs of each queue died within the last hour: dead letters that grow, or that are only left there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from ropeway.core.history import STEP, step_of
from ropeway.core.job import DEFAULT_TENANT, Job
from ropeway.core.query import Count, JobFilter
from ropeway.core.states import State
from ropeway.engines.protocol import Engine

#: A death is new for so long.
NEW = timedelta(hours=1)

#: Dead jobs that are looked at one by one: few, because they come with their payloads.
MOST_JOBS = 20

#: Queues whose samples are added up when more died, those with the most dead: a page tells of no more.
MOST_QUEUES = 8

#: Between two looks while no queue's number of dead jobs has changed.
LOOK_EVERY = timedelta(seconds=5)


class Deaths:
    """Of one tenant, to be asked again and again: the store is asked when something changed, or every few seconds.

    A few deaths are counted one by one. Of many, the samples that upkeep keeps say how many they were; where those
    are missing, it is told that they are more than were looked at.
    """

    def __init__(self, engine: Engine, *, tenant: str = DEFAULT_TENANT) -> None:
        self._engine = engine
        self._tenant = tenant
        self._dead: Mapping[str, int] = {}
        self._looked_at: datetime | None = None
        self._told: Mapping[str, Count] = {}
        #: By queue: how many its samples know of, and until when (None: it has none); all as of one step.
        self._sampled: dict[str, tuple[float, datetime | None]] = {}
        self._step: datetime | None = None

    async def within_the_hour(self, dead: Mapping[str, int], at: datetime) -> Mapping[str, Count]:
        """`dead` are the numbers of dead jobs by queue, `at` is now. `capped` is: at least so many."""
        if self._looked_at is None or dead != self._dead or at - self._looked_at >= LOOK_EVERY:
            self._told = await self._look(dead, at) if dead else {}
            self._dead, self._looked_at = dict(dead), at
        return self._told

    async def _look(self, dead: Mapping[str, int], at: datetime) -> dict[str, Count]:
        where = JobFilter(states=frozenset({State.DEAD}), finished_after=at - NEW)
        page = await self._engine.find(where, order="died", limit=MOST_JOBS, tenant=self._tenant)
        found = Counter(job.queue for job in page.jobs)
        if page.next is None:
            return {queue: Count(found[queue]) for queue in dead}
        most = sorted(dead, key=lambda queue: (-dead[queue], queue))[:MOST_QUEUES]
        many = {queue: await self._many(queue, page.jobs, found[queue], at) for queue in most}
        return {queue: many.get(queue, Count(found[queue], capped=True)) for queue in dead}

    async def _many(self, queue: str, newest: Sequence[Job], found: int, at: datetime) -> Count:
        """More died than were looked at: by the samples of the queue, and those found that are newer."""
        if self._step != step_of(at, STEP):
            self._sampled, self._step = {}, step_of(at, STEP)
        if queue not in self._sampled:
            self._sampled[queue] = await self._sample(queue, at - NEW)
        number, until = self._sampled[queue]
        if until is None:
            return Count(found, capped=True)
        newer = sum(job.queue == queue and (job.dead_at or job.updated_at) >= until for job in newest)
        reckoned = round(number) + newer
        return Count(max(reckoned, found), capped=reckoned < found)

    async def _sample(self, queue: str, since: datetime) -> tuple[float, datetime | None]:
        samples = await self._engine.history(step=STEP, since=since, queue=queue, tenant=self._tenant)
        if not samples:
            return 0.0, None
        return sum(sample.dead for sample in samples), samples[-1].at + timedelta(seconds=STEP)
