"""Tenancy: tenants and the keys that speak for them."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from ropeway.core.access import ApiKey, Limits, NewKey, NewTenant, Tenant
from ropeway.core.job import DEFAULT_TENANT
from ropeway.engines import tenancy
from ropeway.engines.memory.store import MemoryStore


class MemoryTenancy(MemoryStore):
    async def create_tenant(self, tenant: NewTenant) -> Tenant:
        if tenant.id in self.stored_tenants or self._has_name(tenant.name):
            raise tenancy.tenant_taken()
        stored = tenancy.stored_tenant(tenant, self.clock.now())
        self.stored_tenants[tenant.id] = stored
        return stored

    def _has_name(self, name: str) -> bool:
        return any(tenant.name == name for tenant in self.stored_tenants.values())

    async def tenants(self) -> list[Tenant]:
        return sorted(self.stored_tenants.values(), key=lambda tenant: tenant.id)

    async def change_tenant(
        self,
        id: str,
        *,
        name: str | None = None,
        email: str | None = None,
        is_active: bool | None = None,
        limits: Limits | None = None,
    ) -> Tenant:
        tenancy.check_change(name, email)
        before = self._tenant(id)
        after = tenancy.changed_tenant(before, name, email, is_active, limits)
        if after.name != before.name and self._has_name(after.name):
            raise tenancy.tenant_taken()
        self.stored_tenants[id] = after
        return after

    def _tenant(self, id: str) -> Tenant:
        tenant = self.stored_tenants.get(id)
        if tenant is None:
            raise tenancy.no_such_tenant()
        return tenant

    async def create_key(self, key: NewKey, *, tenant: str = DEFAULT_TENANT) -> ApiKey:
        self._tenant(tenant)
        return self._store_key(key, tenant)

    def _store_key(self, key: NewKey, tenant: str) -> ApiKey:
        if key.id in self.api_keys:
            raise tenancy.key_taken()
        stored = tenancy.stored_key(key, tenant, self.clock.now())
        self.api_keys[key.id] = stored
        return stored

    async def keys(self, *, tenant: str = DEFAULT_TENANT) -> list[ApiKey]:
        found = [key for key in self.api_keys.values() if key.tenant == tenant]
        return sorted(found, key=lambda key: (key.created_at, key.id), reverse=True)

    async def find_key(self, id: str) -> tuple[ApiKey, Tenant] | None:
        key = self.api_keys.get(id)
        return None if key is None else (key, self._tenant(key.tenant))

    async def rotate_key(
        self, id: str, successor: NewKey, *, overlap: float, tenant: str = DEFAULT_TENANT
    ) -> ApiKey:
        tenancy.check_overlap(overlap)
        now = self.clock.now()
        old = self._key(id, tenant)
        if not old.good(now):
            raise tenancy.no_such_key()
        stored = self._store_key(successor, tenant)
        self.api_keys[id] = replace(old, expires_at=tenancy.end_after_rotation(old, overlap, now))
        return stored

    def _key(self, id: str, tenant: str) -> ApiKey:
        key = self.api_keys.get(id)
        if key is None or key.tenant != tenant:
            raise tenancy.no_such_key()
        return key

    async def revoke_key(self, id: str, *, tenant: str = DEFAULT_TENANT) -> ApiKey:
        key = self._key(id, tenant)
        if key.revoked_at is None:
            key = self.api_keys[id] = replace(key, revoked_at=self.clock.now())
        return key

    async def note_use(self, key_ids: Collection[str]) -> None:
        now = self.clock.now()
        for id in key_ids:
            key = self.api_keys.get(id)
            if key is not None:
                self.api_keys[id] = replace(key, last_used_at=now)
                self.stored_tenants[key.tenant] = replace(self._tenant(key.tenant), last_seen_at=now)
