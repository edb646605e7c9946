"""The engine's time without asking for it each time: what people are shown, never what decides."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine

#: Seconds for which an answer is carried on by our own monotonic clock.
_KEEP = 10.0


class EngineTime:
    """What the engine's clock says now, within a round trip."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: tuple[float, datetime] | None = None

    async def now(self) -> datetime:
        known, here = self._known, time.monotonic()
        if known is None or here - known[0] > _KEEP:
            known = self._known = (here, await self._engine.now())
        return known[1] + timedelta(seconds=here - known[0])
