"""Tenancy: tenants and the keys that speak for them."""

from __future__ import annotations

from collections.abc import Collection

import asyncpg

from ropeway.core.access import ApiKey, Limits, NewKey, NewTenant, Tenant
from ropeway.core.job import DEFAULT_TENANT
from ropeway.engines import tenancy
from ropeway.engines.postgres.store import PostgresStore


class PostgresTenancy(PostgresStore):
    async def create_tenant(self, tenant: NewTenant) -> Tenant:
        limits = tenancy.limits_text(tenant.limits)
        try:
            (row,) = await self.acts.fetch(
                self._tenancy_sql("create_tenant"), tenant.id, tenant.name, tenant.email, tenant.is_active, limits
            )
        except asyncpg.UniqueViolationError:
            raise tenancy.tenant_taken() from None
        return _tenant(row)

    async def tenants(self) -> list[Tenant]:
        return [_tenant(row) for row in await self.reads.fetch(self._tenancy_sql("tenants"), writes=False)]

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
        kept = None if limits is None else tenancy.limits_text(limits)
        try:
            rows = await self.acts.fetch(self._tenancy_sql("change_tenant"), id, name, email, is_active, kept)
        except asyncpg.UniqueViolationError:
            raise tenancy.tenant_taken() from None
        if not rows:
            raise tenancy.no_such_tenant()
        return _tenant(rows[0])

    async def create_key(self, key: NewKey, *, tenant: str = DEFAULT_TENANT) -> ApiKey:
        try:
            (row,) = await self.acts.fetch(self._tenancy_sql("create_key"), tenant, *_columns(key))
        except asyncpg.ForeignKeyViolationError:
            raise tenancy.no_such_tenant() from None
        except asyncpg.UniqueViolationError:
            raise tenancy.key_taken() from None
        return _key(row)

    async def keys(self, *, tenant: str = DEFAULT_TENANT) -> list[ApiKey]:
        rows = await self.reads.fetch(self._tenancy_sql("keys"), tenant, writes=False)
        return [_key(row) for row in rows]

    async def find_key(self, id: str) -> tuple[ApiKey, Tenant] | None:
        rows = await self.access.fetch(self._tenancy_sql("find_key"), id, writes=False)
        return (_key(rows[0]), _tenant_of(rows[0])) if rows else None

    async def rotate_key(
        self, id: str, successor: NewKey, *, overlap: float, tenant: str = DEFAULT_TENANT
    ) -> ApiKey:
        tenancy.check_overlap(overlap)
        try:
            rows = await self.acts.fetch(
                self._tenancy_sql("rotate_key"), tenant, id, float(overlap), *_columns(successor)
            )
        except asyncpg.UniqueViolationError:
            raise tenancy.key_taken() from None
        if not rows:
            raise tenancy.no_such_key()
        return _key(rows[0])

    async def revoke_key(self, id: str, *, tenant: str = DEFAULT_TENANT) -> ApiKey:
        rows = await self.acts.fetch(self._tenancy_sql("revoke_key"), tenant, id)
        if not rows:
            raise tenancy.no_such_key()
        return _key(rows[0])

    async def note_use(self, key_ids: Collection[str]) -> None:
        if key_ids:
            await self.notes.fetch(self._tenancy_sql("note_use"), list(key_ids))

    def _tenancy_sql(self, name: str) -> str:
        return self.sql("tenancy", name)


def _columns(key: NewKey) -> tuple[object, ...]:
    return (key.id, key.name, tenancy.scopes_text(key.scopes), key.digest, key.expires_at)


def _tenant(row: asyncpg.Record) -> Tenant:
    return Tenant(**{**row, "limits": tenancy.read_limits(row["limits"])})


def _key(row: asyncpg.Record) -> ApiKey:
    return ApiKey(
        id=row["id"],
        tenant=row["tenant"],
        name=row["name"],
        scopes=tenancy.read_scopes(row["scopes"]),
        digest=row["digest"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        last_used_at=row["last_used_at"],
        revoked_at=row["revoked_at"],
    )


def _tenant_of(row: asyncpg.Record) -> Tenant:
    """The tenant in a row of `find_key`."""
    return Tenant(
        id=row["tenant"],
        name=row["tenant_name"],
        created_at=row["tenant_created_at"],
        email=row["tenant_email"],
        is_active=row["tenant_is_active"],
        limits=tenancy.read_limits(row["tenant_limits"]),
        last_seen_at=row["tenant_last_seen_at"],
    )
