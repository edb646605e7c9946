"""The workers that are alive, and what they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from ropeway.core.fleet import SEEN_WITHIN, WorkerInfo
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.query import JobFilter
from ropeway.core.states import State
from ropeway.engines.protocol import Engine

#: Running jobs that are looked for, in pages: they come with their payloads, and only their names are kept.
PAGE, MOST_PAGES = 100, 5

_RUNNING = JobFilter(states=frozenset({State.RUNNING}))


class RunningJob(msgspec.Struct, frozen=True):
    """Enough of a job to name it."""

    id: UUID
    type: str


class AtWork(msgspec.Struct, frozen=True):
    """What runs, by worker, the newest job first. Not `complete`: more runs than was looked for."""

    jobs: Mapping[str, Sequence[RunningJob]]
    complete: bool

    def of(self, worker: str) -> Sequence[RunningJob]:
        return self.jobs.get(worker, ())


class Fleet:
    """The workers of one tenant."""

    def __init__(self, engine: Engine, *, tenant: str = DEFAULT_TENANT) -> None:
        self._engine = engine
        self._tenant = tenant

    async def workers(self, *, seen_within: float = SEEN_WITHIN) -> list[WorkerInfo]:
        return await self._engine.workers(seen_within=seen_within, tenant=self._tenant)

    async def at_work(self) -> AtWork:
        """What the workers run now, as far as a few hundred jobs tell."""
        jobs: dict[str, list[RunningJob]] = {}
        after: str | None = None
        for _ in range(MOST_PAGES):
            page = await self._engine.find(_RUNNING, limit=PAGE, after=after, tenant=self._tenant)
            for job in page.jobs:
                jobs.setdefault(job.locked_by or "", []).append(RunningJob(job.id, job.type))
            after = page.next
            if after is None:
                break
        return AtWork(jobs, complete=after is None)
