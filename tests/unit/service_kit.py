"""A memory engine that counts what it is asked, and one clock for it and for the process."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from ropeway.core.errors import EngineError
from ropeway.engines.memory import MemoryEngine
from ropeway.runtime.clock import ManualClock

START = datetime(2026, 1, 1, 12, tzinfo=UTC)

#: The calls that are counted.
WATCHED = ("find_key", "note_use", "take_tokens", "count", "queue_settings", "kept_out", "now")


class Time(ManualClock):
    """Wall clock of the engine and monotonic clock of the process, moved together."""

    def __init__(self) -> None:
        super().__init__(START)

    def monotonic(self) -> float:
        return 1_000.0 + (self.now() - START).total_seconds()


class CountingEngine(MemoryEngine):
    """Also fails on demand: `away` is raised by every watched call while it is set."""

    def __init__(self, clock: Time) -> None:
        super().__init__(clock=clock)
        self.asked: Counter[str] = Counter()
        self.away: EngineError | None = None
        for name in WATCHED:
            setattr(self, name, self._watch(name, getattr(self, name)))

    def _watch(self, name: str, call: Any) -> Any:
        async def watched(*arguments: Any, **options: Any) -> Any:
            self.asked[name] += 1
            if self.away is not None:
                raise self.away
            return await call(*arguments, **options)

        return watched


@asynccontextmanager
async def counting() -> AsyncIterator[tuple[CountingEngine, Time]]:
    time = Time()
    async with CountingEngine(time) as engine:
        yield engine, time
