"""The memory engine: the protocol over plain dicts, single-threaded, so that every call is one step.

It is the reference: where another engine's visible behaviour differs from this one, one of them is wrong.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from ropeway.engines.capabilities import Capability
from ropeway.engines.memory.inspecting import MemoryInspecting
from ropeway.engines.memory.operating import MemoryOperating
from ropeway.engines.memory.scheduling import MemoryScheduling
from ropeway.engines.memory.tenancy import MemoryTenancy
from ropeway.engines.memory.upkeeping import MemoryUpkeeping
from ropeway.engines.refusing import WithoutTransactions

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine


class MemoryEngine(
    MemoryScheduling, MemoryUpkeeping, MemoryOperating, MemoryInspecting, MemoryTenancy, WithoutTransactions
):
    """`memory://`: for tests and demos. Nothing survives the process, and it says so."""

    name = "memory"
    capabilities: frozenset[Capability] = frozenset({Capability.UPKEEP, Capability.TENANCY})
    durability: Literal["full", "relaxed", "none"] = "none"

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to close; the jobs stay as long as the object does."""

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
    _: Engine = MemoryEngine()
