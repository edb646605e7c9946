"""What a remote engine refuses: chores of the whole store, and what a server needs of the store behind it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

from ropeway.core.access import ApiKey, Limits, NewKey, NewTenant, Tenant
from ropeway.core.auditlog import Action, ActionFilter, NewAction
from ropeway.core.errors import NotSupported
from ropeway.core.history import Depth, Observed, Sample
from ropeway.core.job import DEFAULT_TENANT, NewJob
from ropeway.core.limits import Taken
from ropeway.core.schedule import Fired
from ropeway.engines.capabilities import Capability
from ropeway.engines.protocol import Pruned, Rescued
from ropeway.engines.refusing import WithoutTransactions


class WithoutTheStore(WithoutTransactions):
    """The server does its own upkeep; tenants, keys, limits and the log of actions are its operators' affair."""

    name = "remote"

    async def rescue(self, *, limit: int = 1_000) -> list[Rescued]:
        raise self._not_here(Capability.UPKEEP)

    async def audit(self, *, limit: int = 1_000) -> list[Rescued]:
        raise self._not_here(Capability.UPKEEP)

    async def expire(self, *, limit: int = 1_000) -> list[UUID]:
        raise self._not_here(Capability.UPKEEP)

    async def prune(self) -> Pruned:
        raise self._not_here(Capability.UPKEEP)

    async def observe(self, since: datetime, until: datetime, *, most: int = 20_000) -> list[Observed]:
        raise self._not_here(Capability.UPKEEP)

    async def remember(self, samples: Sequence[Sample]) -> None:
        raise self._not_here(Capability.UPKEEP)

    async def history(
        self,
        *,
        step: int,
        since: datetime,
        until: datetime | None = None,
        queue: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Sample]:
        raise self._not_here(Capability.UPKEEP)

    async def latest(self, *, step: int, since: datetime, until: datetime, busy: bool = False) -> list[Sample]:
        raise self._not_here(Capability.UPKEEP)

    async def depths(self, *, cap: int = 10_000, tenant: str = DEFAULT_TENANT) -> list[Depth]:
        raise self._not_here(Capability.UPKEEP)

    async def fire_due(self, *, limit: int = 100) -> list[Fired]:
        raise self._not_here(Capability.UPKEEP)

    async def secret(self) -> bytes:
        raise self._not_here(Capability.TENANCY)

    async def create_tenant(self, tenant: NewTenant) -> Tenant:
        raise self._not_here(Capability.TENANCY)

    async def tenants(self) -> list[Tenant]:
        raise self._not_here(Capability.TENANCY)

    async def change_tenant(
        self,
        id: str,
        *,
        name: str | None = None,
        email: str | None = None,
        is_active: bool | None = None,
        limits: Limits | None = None,
    ) -> Tenant:
        raise self._not_here(Capability.TENANCY)

    async def create_key(self, key: NewKey, *, tenant: str = DEFAULT_TENANT) -> ApiKey:
        raise self._not_here(Capability.TENANCY)

    async def keys(self, *, tenant: str = DEFAULT_TENANT) -> list[ApiKey]:
        raise self._not_here(Capability.TENANCY)

    async def find_key(self, id: str) -> tuple[ApiKey, Tenant] | None:
        raise self._not_here(Capability.TENANCY)

    async def rotate_key(
        self, id: str, successor: NewKey, *, overlap: float, tenant: str = DEFAULT_TENANT
    ) -> ApiKey:
        raise self._not_here(Capability.TENANCY)

    async def revoke_key(self, id: str, *, tenant: str = DEFAULT_TENANT) -> ApiKey:
        raise self._not_here(Capability.TENANCY)

    async def note_use(self, key_ids: Collection[str]) -> None:
        raise self._not_here(Capability.TENANCY)

    async def take_tokens(
        self, name: str, wanted: float, *, rate: float, burst: float, tenant: str = DEFAULT_TENANT
    ) -> Taken:
        raise self._not_here(Capability.TENANCY)

    async def kept_out(self, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT) -> list[bool]:
        raise self._not_here(Capability.TENANCY)

    async def note_actions(self, actions: Sequence[NewAction], *, tenant: str = DEFAULT_TENANT) -> None:
        raise self._not_here(Capability.TENANCY)

    async def actions(
        self,
        where: ActionFilter = ActionFilter(),
        *,
        limit: int = 50,
        before_n: int | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Action]:
        raise self._not_here(Capability.TENANCY)

    def _not_here(self, capability: Capability) -> NotSupported:
        what = (
            "its own upkeep" if capability is Capability.UPKEEP else "tenants, keys, limits and its log of actions"
        )
        return NotSupported(
            f"not through HTTP: the server looks after {what}",
            hint="run the command where the server's store is, with the store's URL",
        )
