"""The SQLite engine: one file, one writer at a time, everything in SQL files beside this one."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from ropeway.engines.capabilities import Capability
from ropeway.engines.protocol import EngineRules
from ropeway.engines.refusing import WithoutTransactions
from ropeway.engines.sqlite.inspecting import SqliteInspecting
from ropeway.engines.sqlite.leasing import SqliteLeasing
from ropeway.engines.sqlite.lines import SqliteLines
from ropeway.engines.sqlite.opening import Durability
from ropeway.engines.sqlite.operating import SqliteOperating
from ropeway.engines.sqlite.scheduling import SqliteScheduling
from ropeway.engines.sqlite.tenancy import SqliteTenancy
from ropeway.engines.sqlite.upkeeping import SqliteUpkeeping
from ropeway.runtime.clock import Clock

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine


class SqliteEngine(
    SqliteScheduling,
    SqliteUpkeeping,
    SqliteLeasing,
    SqliteLines,
    SqliteOperating,
    SqliteInspecting,
    SqliteTenancy,
    WithoutTransactions,
):
    """`sqlite:///path`: the default. What was accepted survives kill -9 and, unless relaxed, power loss."""

    name = "sqlite"
    capabilities: frozenset[Capability] = frozenset(
        {Capability.DURABLE, Capability.SHARED, Capability.UPKEEP, Capability.TENANCY}
    )
    durability: Literal["full", "relaxed", "none"]

    def __init__(
        self,
        path: str | Path,
        rules: EngineRules = EngineRules(),
        clock: Clock | None = None,
        durability: Durability = "full",
    ) -> None:
        super().__init__(path, rules, clock, durability)
        self.durability = durability

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


if TYPE_CHECKING:
    _: Engine = SqliteEngine("ropeway.db")
