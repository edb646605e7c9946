"""Leases kept alive from inside the process that runs the handlers: where there is no supervisor (any more)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING
from uuid import UUID

from ropeway.core.errors import EngineError

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine
    from ropeway.worker.options import WorkerOptions
    from ropeway.worker.worker import Worker


async def beat_for_itself(worker: Worker, engine: Engine, owner: UUID, options: WorkerOptions) -> None:
    """Extend the owner's grants three times within a lease, until cancelled."""
    while True:
        with contextlib.suppress(EngineError):
            beat = await engine.heartbeat_owner(owner, tenant=options.tenant)
            if beat is not None and beat.revoked:
                worker.recheck_soon(frozenset(beat.revoked))
        await asyncio.sleep(options.lease_seconds / 3)


async def give_back_the_rest(engine: Engine, owner: UUID, options: WorkerOptions) -> None:
    """After a drain: what would not stop is released, not lost. The engine takes it back if it cannot be told."""
    with contextlib.suppress(EngineError):
        await engine.end_grants(owner, started=(), tenant=options.tenant)
