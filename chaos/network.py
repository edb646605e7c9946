"""A network between a simulated process and its engine: it takes time, and it loses questions and answers."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

from chaos.virtual import Sleep
from ropeway.core.errors import Indeterminate, Unavailable
from ropeway.engines.protocol import Engine, LeaseBatch

#: The calls that go over it; what else an engine offers is asked directly.
CARRIED = frozenset(
    {"enqueue", "lease", "settle", "heartbeat", "heartbeat_owner", "end_grants", "cancel", "redrive", "tail"}
)


class Network:
    """The engine as seen from one process. `loss` is the share of calls whose answer never arrives; nothing goes
    through while it is `closed`, and nothing is heard of it."""

    def __init__(
        self,
        engine: Engine,
        chance: random.Random,
        *,
        loss: float = 0.0,
        slowest: float = 0.02,
        sleep: Callable[[float], Awaitable[None]] = Sleep,
    ) -> None:
        self._engine = engine
        self._chance = chance
        self.loss = loss
        self.closed = False
        #: Gets the answer to a claim that is lost on its way: clients of real stores give back what it took.
        self.missed: Callable[[LeaseBatch], None] = lambda _: None
        self._slowest = slowest
        self._sleep = sleep

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._engine, name)
        if name not in CARRIED:
            return call
        return lambda *args, **options: self._carry(lambda: call(*args, **options))

    async def _pass(self) -> None:
        await self._sleep(self._chance.uniform(0.0, self._slowest))
        while self.closed:
            await self._sleep(0.1)

    async def _carry(self, call: Callable[[], Awaitable[Any]]) -> Any:
        await self._pass()
        lost = self._chance.random() < self.loss
        if lost and self._chance.random() < 0.3:
            # The question did not arrive, and the one who asked knows that it did not.
            raise Unavailable("the store cannot be reached")
        arrived = not lost or self._chance.random() < 0.6
        answer = await call() if arrived else None
        await self._pass()
        if lost:
            if isinstance(answer, LeaseBatch):
                self.missed(answer)
            raise Indeterminate("the connection broke")
        return answer
