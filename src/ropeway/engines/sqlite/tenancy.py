"""Tenancy: tenants, the keys that speak for them, and the secret of the store."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Collection
from typing import Any, NamedTuple

from ropeway.core.access import ApiKey, Limits, NewKey, NewTenant, Tenant
from ropeway.core.job import DEFAULT_TENANT
from ropeway.engines import tenancy
from ropeway.engines.sqlfile import statements
from ropeway.engines.sqlite.rows import micros, moment, optional_micros, optional_moment, text
from ropeway.engines.sqlite.store import SqliteStore
from ropeway.engines.sqlite.writer import Transaction, one_by_one

SQL = statements("ropeway.engines.sqlite", "sql/tenancy.sql")


class SqliteTenancy(SqliteStore):
    _secret: bytes | None = None

    async def create_tenant(self, tenant: NewTenant) -> Tenant:
        return await self.write(_create_tenants, tenant)

    async def tenants(self) -> list[Tenant]:
        return await self.read(lambda db: [_stored_tenant(row) for row in db.execute(SQL["tenants"])])

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
        return await self.write(_change_tenants, _Change(id, name, email, is_active, limits))

    async def create_key(self, key: NewKey, *, tenant: str = DEFAULT_TENANT) -> ApiKey:
        return await self.write(_create_keys, (key, tenant))

    async def keys(self, *, tenant: str = DEFAULT_TENANT) -> list[ApiKey]:
        asked = {"tenant": tenant}
        return await self.read(lambda db: [_stored_key(row) for row in db.execute(SQL["keys"], asked)])

    async def find_key(self, id: str) -> tuple[ApiKey, Tenant] | None:
        def ask(db: sqlite3.Connection) -> tuple[ApiKey, Tenant] | None:
            key = _key(db, id)
            tenant = None if key is None else _tenant(db, key.tenant)
            return None if key is None or tenant is None else (key, tenant)

        return await self.read(ask)

    async def rotate_key(
        self, id: str, successor: NewKey, *, overlap: float, tenant: str = DEFAULT_TENANT
    ) -> ApiKey:
        return await self.write(_rotate_keys, _Rotation(id, successor, tenancy.check_overlap(overlap), tenant))

    async def revoke_key(self, id: str, *, tenant: str = DEFAULT_TENANT) -> ApiKey:
        return await self.write(_revoke_keys, (id, tenant))

    async def note_use(self, key_ids: Collection[str]) -> None:
        if key_ids:
            await self.write(_note_uses, text(list(key_ids)))

    async def secret(self) -> bytes:
        if self._secret is None:
            row = await self.read(lambda db: db.execute(SQL["secret"]).fetchone())
            self._secret = bytes.fromhex(await self.write(_make_secrets, None) if row is None else row[0])
        return self._secret


def _create_tenant(tx: Transaction, new: NewTenant) -> Tenant:
    if tx.db.execute(SQL["same_tenant"], {"id": new.id, "name": new.name}).fetchone():
        raise tenancy.tenant_taken()
    tenant = tenancy.stored_tenant(new, moment(tx.now))
    tx.db.execute(SQL["insert_tenant"], {**_texts(tenant), "created_at": tx.now})
    return tenant


_create_tenants = one_by_one(_create_tenant)


class _Change(NamedTuple):
    id: str
    name: str | None
    email: str | None
    is_active: bool | None
    limits: Limits | None


def _change_tenant(tx: Transaction, change: _Change) -> Tenant:
    before = _tenant(tx.db, change.id)
    if before is None:
        raise tenancy.no_such_tenant()
    after = tenancy.changed_tenant(before, *change[1:])
    if tx.db.execute(SQL["same_name"], {"id": after.id, "name": after.name}).fetchone():
        raise tenancy.tenant_taken()
    tx.db.execute(SQL["change_tenant"], _texts(after))
    return after


_change_tenants = one_by_one(_change_tenant)


def _create_key(tx: Transaction, call: tuple[NewKey, str]) -> ApiKey:
    new, tenant = call
    if _tenant(tx.db, tenant) is None:
        raise tenancy.no_such_tenant()
    return _insert_key(tx, new, tenant)


_create_keys = one_by_one(_create_key)


def _insert_key(tx: Transaction, new: NewKey, tenant: str) -> ApiKey:
    if _key(tx.db, new.id) is not None:
        raise tenancy.key_taken()
    tx.db.execute(
        SQL["insert_key"],
        {
            "id": new.id,
            "tenant": tenant,
            "name": new.name,
            "scopes": tenancy.scopes_text(new.scopes),
            "digest": new.digest,
            "created_at": tx.now,
            "expires_at": optional_micros(new.expires_at),
        },
    )
    return tenancy.stored_key(new, tenant, moment(tx.now))


class _Rotation(NamedTuple):
    id: str
    successor: NewKey
    overlap: float
    tenant: str


def _rotate(tx: Transaction, asked: _Rotation) -> ApiKey:
    now = moment(tx.now)
    old = _key_of(tx.db, asked.id, asked.tenant)
    if not old.good(now):
        raise tenancy.no_such_key()
    successor = _insert_key(tx, asked.successor, asked.tenant)
    end = tenancy.end_after_rotation(old, asked.overlap, now)
    tx.db.execute(SQL["end_key"], {"id": old.id, "expires_at": micros(end)})
    return successor


_rotate_keys = one_by_one(_rotate)


def _revoke(tx: Transaction, call: tuple[str, str]) -> ApiKey:
    _key_of(tx.db, *call)
    tx.db.execute(SQL["revoke_key"], {"id": call[0], "now": tx.now})
    return _key_of(tx.db, *call)


_revoke_keys = one_by_one(_revoke)


def _note_use(tx: Transaction, ids: str) -> None:
    tx.db.execute(SQL["note_keys"], {"ids": ids, "now": tx.now})
    tx.db.execute(SQL["note_tenants"], {"ids": ids, "now": tx.now})


_note_uses = one_by_one(_note_use)


def _make_secret(tx: Transaction, _: None) -> str:
    tx.db.execute(SQL["keep_secret"], {"secret": secrets.token_hex(32)})
    secret: str = tx.db.execute(SQL["secret"]).fetchone()[0]
    return secret


_make_secrets = one_by_one(_make_secret)


def _tenant(db: sqlite3.Connection, id: str) -> Tenant | None:
    row = db.execute(SQL["tenant"], {"id": id}).fetchone()
    return None if row is None else _stored_tenant(row)


def _key(db: sqlite3.Connection, id: str) -> ApiKey | None:
    row = db.execute(SQL["key"], {"id": id}).fetchone()
    return None if row is None else _stored_key(row)


def _key_of(db: sqlite3.Connection, id: str, tenant: str) -> ApiKey:
    key = _key(db, id)
    if key is None or key.tenant != tenant:
        raise tenancy.no_such_key()
    return key


def _texts(tenant: Tenant) -> dict[str, Any]:
    return {
        "id": tenant.id,
        "name": tenant.name,
        "email": tenant.email,
        "is_active": tenant.is_active,
        "limits": tenancy.limits_text(tenant.limits),
    }


def _stored_tenant(row: tuple[Any, ...]) -> Tenant:
    id, name, created_at, email, is_active, limits, last_seen_at = row
    return Tenant(
        id=id,
        name=name,
        created_at=moment(created_at),
        email=email,
        is_active=bool(is_active),
        limits=tenancy.read_limits(limits),
        last_seen_at=optional_moment(last_seen_at),
    )


def _stored_key(row: tuple[Any, ...]) -> ApiKey:
    id, tenant, name, scopes, digest, created_at, expires_at, last_used_at, revoked_at = row
    return ApiKey(
        id=id,
        tenant=tenant,
        name=name,
        scopes=tenancy.read_scopes(scopes),
        digest=digest,
        created_at=moment(created_at),
        expires_at=optional_moment(expires_at),
        last_used_at=optional_moment(last_used_at),
        revoked_at=optional_moment(revoked_at),
    )
