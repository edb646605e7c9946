"""Ready-made harnesses for the engines that Ropeway ships."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from ropeway.core.errors import NotSupported
from ropeway.engines.capabilities import Capability
from ropeway.engines.memory import MemoryEngine
from ropeway.engines.protocol import Engine, EngineRules
from ropeway.runtime.clock import ManualClock
from ropeway.testing.conformance.subject import TEST_RULES


class MemorySubject:
    def __init__(self, rules: EngineRules) -> None:
        self.clock = ManualClock()
        self.engine: Engine = MemoryEngine(rules, self.clock)

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def another(self) -> Engine:
        raise NotSupported("the memory engine lives in one process")

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        raise NotSupported("the memory engine has no transactions")


class MemoryHarness:
    name = "memory"
    capabilities: frozenset[Capability] = MemoryEngine.capabilities

    @asynccontextmanager
    async def subject(self, rules: EngineRules = TEST_RULES) -> AsyncIterator[MemorySubject]:
        yield MemorySubject(rules)
