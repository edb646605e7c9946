"""Ready-made harnesses for the engines that Ropeway ships."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from ropeway.core.errors import NotSupported
from ropeway.engines.capabilities import Capability
from ropeway.engines.memory import MemoryEngine
from ropeway.engines.protocol import Engine, EngineRules
from ropeway.engines.sqlite import SqliteEngine
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


#: A folder in memory, where there is one: the suite asks for behaviour, thousands of syncs would prove nothing.
_FOLDERS = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108


class SqliteSubject:
    """Handles on one file in a folder of its own; they share a clock."""

    def __init__(self, file: Path, rules: EngineRules) -> None:
        self._file = file
        self._rules = rules
        self.clock = ManualClock()
        self._handles = [SqliteEngine(file, rules, self.clock)]
        self.engine: Engine = self._handles[0]

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def another(self) -> Engine:
        handle = SqliteEngine(self._file, self._rules, self.clock)
        await handle.open()
        self._handles.append(handle)
        return handle

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        raise NotSupported("the SQLite engine takes no part in the caller's transactions")

    async def close(self) -> None:
        for handle in self._handles:
            await handle.close()


class SqliteHarness:
    name = "sqlite"
    capabilities: frozenset[Capability] = SqliteEngine.capabilities

    @asynccontextmanager
    async def subject(self, rules: EngineRules = TEST_RULES) -> AsyncIterator[SqliteSubject]:
        with tempfile.TemporaryDirectory(prefix="ropeway-", dir=_FOLDERS) as folder:
            subject = SqliteSubject(Path(folder) / "ropeway.db", rules)
            try:
                await subject.engine.open()
                yield subject
            finally:
                await subject.close()
