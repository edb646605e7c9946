"""Queues: what each holds, what it was set to, whether workers may take from it, and how many it needs."""

from __future__ import annotations

from msgspec import UNSET, UnsetType, structs

from ropeway.core import fields
from ropeway.core.errors import NotFound
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.query import QueueSettings, QueueStats
from ropeway.engines.protocol import Engine
from ropeway.service.names import Names, did_you_mean
from ropeway.service.scaling import Scaling, scaling_of


class Queues:
    """The queues of one tenant. A queue is a name: it exists while it holds jobs, is paused, has settings or is
    served."""

    def __init__(self, engine: Engine, *, tenant: str = DEFAULT_TENANT) -> None:
        self._engine = engine
        self._tenant = tenant
        self._names = Names(engine, tenant=tenant)

    async def all(self) -> list[QueueStats]:
        return await self._engine.queue_stats(tenant=self._tenant)

    async def get(self, queue: str) -> QueueStats:
        """Raises NotFound, with the name that was probably meant; a queue that is only served is empty."""
        fields.check_name(queue, "queue")
        found = await self._engine.queue_stats([queue], tenant=self._tenant)
        if not found:
            await self._require(queue, "ropeway queues list shows them")
        return found[0] if found else QueueStats(queue, False, {})

    async def stats(self, queue: str) -> QueueStats:
        """The same, but one that nobody knows is empty."""
        found = await self._engine.queue_stats([queue], tenant=self._tenant)
        return found[0] if found else QueueStats(queue, False, {})

    # What changes a queue does not look at it afterwards: a look that fails would pass for a refusal.

    async def pause(self, queue: str, *, unknown: bool = False) -> None:
        """Nothing is taken from it until it is resumed. `unknown`: also when nobody has heard of it yet."""
        fields.check_name(queue, "queue")
        if not unknown:
            await self._require(queue, "--force pauses a queue that has no jobs yet")
        await self._engine.pause(queue, tenant=self._tenant)

    async def resume(self, queue: str) -> None:
        fields.check_name(queue, "queue")
        await self._require(queue, "ropeway queues list shows them")
        await self._engine.resume(queue, tenant=self._tenant)

    async def set(
        self,
        queue: str,
        *,
        depth_limit: int | UnsetType | None = UNSET,
        require_key: bool | UnsetType = UNSET,
        lease_seconds: float | UnsetType | None = UNSET,
        unknown: bool = True,
    ) -> QueueSettings:
        """Change what is given of a queue's settings; None takes one away. Returns all of them as they are then.

        Other processes follow within seconds. The queue need not hold jobs yet, unless `unknown` is False.
        """
        fields.check_name(queue, "queue")
        if not unknown:
            await self._require(queue, "--force sets a queue that has no jobs yet")
        given = {"depth_limit": depth_limit, "require_key": require_key, "lease_seconds": lease_seconds}
        changes = {name: value for name, value in given.items() if value is not UNSET}
        before = (await self._engine.queue_settings(tenant=self._tenant)).get(queue, QueueSettings())
        after = structs.replace(before, **changes)
        await self._engine.set_queue(queue, after, tenant=self._tenant)
        return after

    async def scaling(self, queue: str) -> Scaling:
        """How many workers a queue needs now; see `service.scaling`. A queue that nobody knows needs none."""
        fields.check_name(queue, "queue")
        return await scaling_of(self._engine, queue, self._tenant)

    async def _require(self, queue: str, otherwise: str) -> None:
        known = await self._names.queues()
        if queue not in known:
            raise NotFound(f"no queue {queue!r}", hint=did_you_mean(queue, known) or otherwise)
