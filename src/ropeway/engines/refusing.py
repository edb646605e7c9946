"""The part of the protocol that an engine without the caller's transactions refuses, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any
from uuid import UUID

from ropeway.core.errors import NotSupported
from ropeway.core.job import DEFAULT_TENANT, NewJob
from ropeway.core.lease import Lease
from ropeway.engines.capabilities import Capability, lacks
from ropeway.engines.protocol import Settled


class WithoutTransactions:
    """For engines that cannot take part in a caller's database transaction."""

    name: str

    async def enqueue_in(
        self, connection: Any, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT
    ) -> list[UUID]:
        raise self._lacks(Capability.TRANSACTIONAL_ENQUEUE)

    def enqueue_in_sync(
        self, connection: Any, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT
    ) -> list[UUID]:
        raise self._lacks(Capability.TRANSACTIONAL_ENQUEUE)

    async def settle_in(
        self, connection: Any, lease: Lease, result: bytes | None = None, *, tenant: str = DEFAULT_TENANT
    ) -> Settled:
        raise self._lacks(Capability.TRANSACTIONAL_COMPLETION)

    def transaction(
        self, lease: Lease, result: Callable[[], bytes | None], *, tenant: str = DEFAULT_TENANT
    ) -> AbstractAsyncContextManager[Any]:
        raise self._lacks(Capability.TRANSACTIONAL_COMPLETION)

    def _lacks(self, capability: Capability) -> NotSupported:
        return lacks(self.name, capability)
