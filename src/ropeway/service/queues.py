"""Queues: what each holds, and whether workers may take from it."""

from __future__ import annotations

from ropeway.core import fields
from ropeway.core.errors import NotFound
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.query import QueueStats
from ropeway.engines.protocol import Engine
from ropeway.service.names import Names, did_you_mean


class Queues:
    """The queues of one tenant. A queue is a name: it exists while it holds jobs, is paused or is served."""

    def __init__(self, engine: Engine, *, tenant: str = DEFAULT_TENANT) -> None:
        self._engine = engine
        self._tenant = tenant
        self._names = Names(engine, tenant=tenant)

    async def all(self) -> list[QueueStats]:
        return await self._engine.queue_stats(tenant=self._tenant)

    async def pause(self, queue: str, *, unknown: bool = False) -> QueueStats:
        """Nothing is taken from it until it is resumed. `unknown`: also when nobody has heard of it yet."""
        fields.check_name(queue, "queue")
        if not unknown:
            await self._require(queue, "--force pauses a queue that has no jobs yet")
        await self._engine.pause(queue, tenant=self._tenant)
        return await self._stats(queue, paused=True)

    async def resume(self, queue: str) -> QueueStats:
        fields.check_name(queue, "queue")
        await self._require(queue, "ropeway queues list shows them")
        await self._engine.resume(queue, tenant=self._tenant)
        return await self._stats(queue, paused=False)

    async def _stats(self, queue: str, *, paused: bool) -> QueueStats:
        found = await self._engine.queue_stats([queue], tenant=self._tenant)
        return found[0] if found else QueueStats(queue, paused, {})

    async def _require(self, queue: str, otherwise: str) -> None:
        known = await self._names.queues()
        if queue not in known:
            raise NotFound(f"no queue {queue!r}", hint=did_you_mean(queue, known) or otherwise)
