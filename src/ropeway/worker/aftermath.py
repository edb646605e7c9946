"""After the death of a child: what ran in it is lost, what only waited is given back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from ropeway.core.errors import EngineError
from ropeway.core.states import State
from ropeway.observability import names
from ropeway.runtime.backoff import Backoff
from ropeway.runtime.service import Outage, patiently

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine, Rescued
    from ropeway.observability.logs import Logger
    from ropeway.observability.metrics import WorkerMetrics
    from ropeway.worker.errands import Errands
    from ropeway.worker.family import Child, Death
    from ropeway.worker.options import WorkerOptions

#: A dead child's grants are ended once more after each of these times: the first call passes by what its open
#: transactions still lock, and a claim that was on its way when it died may be written later.
LOOK_AGAIN_AFTER = (0.2, 0.8, 3.0)


class Aftermath:
    """Tells the engine of dead children. `engine` is None until the parent has a connection of its own."""

    def __init__(
        self,
        options: WorkerOptions,
        metrics: WorkerMetrics,
        outage: Outage,
        errands: Errands,
        *,
        stopping: asyncio.Event,
        log: Logger,
    ) -> None:
        self.options = options
        self.engine: Engine | None = None
        self._metrics = metrics
        self._outage = outage
        self._errands = errands
        self._stopping = stopping
        self._log = log

    async def end_grants(self, child: Child, death: Death, guilty: set[UUID]) -> None:
        """The `guilty` are lost, the others released; repeated until the engine has heard it.

        Once a lease has passed the engine takes them back by itself.
        """
        engine = self.engine
        if engine is None:
            return  # no child claims before the parent can beat for it
        over = asyncio.Event()
        asyncio.get_running_loop().call_later(self.options.lease_seconds, over.set)

        async def end() -> None:
            rescued = await engine.end_grants(
                child.owner,
                started=guilty,
                lost=death.as_lost(for_timeout=child.killed_for_time),
                tenant=self.options.tenant,
            )
            self._metrics.reclaimed(len(rescued))
            await self._tell_lost(engine, [one for one in rescued if one.id in guilty], death)
            await engine.forget_worker(child.name, tenant=self.options.tenant)

        await patiently(
            end, name=f"end of {child.name}", outage=self._outage, stopping=over, backoff=Backoff(0.05, 1.0)
        )
        if child.ledger.has_left():
            return  # it had settled everything itself
        if self._stopping.is_set():
            await _later(end, LOOK_AGAIN_AFTER[:1])
        else:
            self._errands.run(_later(end, LOOK_AGAIN_AFTER))

    async def _tell_lost(self, engine: Engine, lost: list[Rescued], death: Death) -> None:
        for one in lost:
            name = names.JOB_DEAD if one.state is State.DEAD else names.JOB_LOST
            self._log.error(name, job_id=one.id, state=one.state.value, how=str(death))
        dead = [one.id for one in lost if one.state is State.DEAD]
        if dead:
            for job in await engine.get(dead, tenant=self.options.tenant):
                if job is not None:
                    self._metrics.died(job.queue, job.type)


async def _later(call: Callable[[], Awaitable[None]], delays: Sequence[float]) -> None:
    """Call it again after each of these delays; a store that is away then is left to the leases' own end."""
    for delay in delays:
        await asyncio.sleep(delay)
        with contextlib.suppress(EngineError):
            await call()
