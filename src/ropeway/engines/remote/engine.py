"""The remote engine: the protocol over a server's HTTP API."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from ropeway.engines.remote.inspecting import RemoteInspecting
from ropeway.engines.remote.leasing import RemoteLeasing
from ropeway.engines.remote.operating import RemoteOperating
from ropeway.engines.remote.refusing import WithoutTheStore
from ropeway.engines.remote.scheduling import RemoteScheduling
from ropeway.engines.remote.submitting import RemoteSubmitting
from ropeway.engines.remote.waiting import RemoteWaiting

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine


class RemoteEngine(
    RemoteSubmitting,
    RemoteLeasing,
    RemoteInspecting,
    RemoteOperating,
    RemoteScheduling,
    RemoteWaiting,
    WithoutTheStore,
):
    """`http://` and `https://`: jobs kept by a `ropeway server`. What the protocol promises holds as it does with
    the server's own store; what only the store itself can do is refused by name."""

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
    _: Engine = RemoteEngine("http://127.0.0.1")
