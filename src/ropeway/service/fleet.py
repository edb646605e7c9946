"""The workers that are alive."""

from __future__ import annotations

from ropeway.core.fleet import SEEN_WITHIN, WorkerInfo
from ropeway.core.job import DEFAULT_TENANT
from ropeway.engines.protocol import Engine


class Fleet:
    """The workers of one tenant."""

    def __init__(self, engine: Engine, *, tenant: str = DEFAULT_TENANT) -> None:
        self._engine = engine
        self._tenant = tenant

    async def workers(self, *, seen_within: float = SEEN_WITHIN) -> list[WorkerInfo]:
        return await self._engine.workers(seen_within=seen_within, tenant=self._tenant)
