"""Keys and tenants: who may do what."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec import UNSET

from ropeway.api.rendering import noted
from ropeway.api.routing import Call, Reply, Route
from ropeway.core import fields
from ropeway.core.access import MAX_EMAIL, ApiKey, Scope
from ropeway.core.errors import FieldError, MissingScope, NotFound
from ropeway.service.keys import Keys, no_such_key
from ropeway.service.tenants import Tenants
from ropeway.wire import models, paths
from ropeway.wire.convert import limits_of, time_of
from ropeway.wire.objects import key_object, tenant_object
from ropeway.wire.queries import KeysQuery
from ropeway.wire.requests import KeyBody, RotateBody, TenantBody, TenantChange

_KEYS = (Scope.ADMIN, Scope.TENANT_ADMIN)
_TENANTS = (Scope.TENANT_ADMIN,)


# ── Keys ──


async def list_keys(call: Call) -> Reply:
    tenant = await _tenant(call)
    return Reply(200, {"keys": [key_object(key) for key in await Keys(call.deps.engine, tenant=tenant).all()]})


async def create_key(call: Call) -> Reply:
    body: KeyBody = call.body
    tenant = await _tenant(call)
    _may_give(call, body.scopes)
    key, token = await Keys(call.deps.engine, tenant=tenant).create(
        body.name, body.scopes, time_of(body.expires_at, "expires_at")
    )
    await noted(call, "key.create", key.id, tenant=tenant)
    return _made(key, token)


async def rotate_key(call: Call) -> Reply:
    body: RotateBody = call.body
    tenant = await _tenant(call)
    keys = Keys(call.deps.engine, tenant=tenant)
    id = _id(call)
    # Whoever gets the successor gets what the key allows, so it must be theirs to give.
    _may_give(call, (await keys.get(id)).scopes)
    key, token = await keys.rotate(id, body.overlap_seconds)
    await noted(call, "key.rotate", id, tenant=tenant)
    return _made(key, token)


async def revoke_key(call: Call) -> Reply:
    tenant = await _tenant(call)
    id = _id(call)
    keys = Keys(call.deps.engine, tenant=tenant)
    # Or an operator of one tenant could lock out those who look after all of them.
    _may_give(call, (await keys.get(id)).scopes)
    await keys.revoke(id)
    await noted(call, "key.revoke", id, tenant=tenant)
    return Reply(204)


def _made(key: ApiKey, token: str) -> Reply:
    return Reply(201, {**key_object(key), "token": token}, ((b"location", paths.key(key.id).encode()),))


async def _tenant(call: Call) -> str:
    """Whose keys: one's own, or any tenant's for whoever looks after tenants."""
    query: KeysQuery = call.query
    if query.tenant is None or query.tenant == call.tenant:
        return call.tenant
    call.principal.require(Scope.TENANT_ADMIN)
    fields.check_name(query.tenant, "tenant")
    if all(tenant.id != query.tenant for tenant in await call.deps.engine.tenants()):
        raise _no_tenant()
    return query.tenant


def _may_give(call: Call, scopes: Collection[Scope]) -> None:
    """An operator gives and takes anything within the tenant, but not the care of all tenants."""
    if Scope.TENANT_ADMIN in scopes and not call.allows(Scope.TENANT_ADMIN):
        raise MissingScope("only a key with tenant-admin may give or take tenant-admin")


def _id(call: Call) -> str:
    id = call.params["key_id"]
    try:
        return fields.check_name(id, "key_id")
    except FieldError:
        raise no_such_key() from None


# ── Tenants ──


async def list_tenants(call: Call) -> Reply:
    return Reply(200, {"tenants": [tenant_object(one) for one in await Tenants(call.deps.engine).all()]})


async def get_tenant(call: Call) -> Reply:
    try:
        return Reply(200, tenant_object(await Tenants(call.deps.engine).get(call.params["tenant_id"])))
    except NotFound:
        raise _no_tenant() from None


async def create_tenant(call: Call) -> Reply:
    body: TenantBody = call.body
    made = await Tenants(call.deps.engine).create(
        body.name, id=body.id, email=body.email, is_active=body.is_active, limits=limits_of(body.limits)
    )
    await noted(call, "tenant.create", made.id)
    return Reply(201, tenant_object(made), ((b"location", paths.tenant(made.id).encode()),))


async def change_tenant(call: Call) -> Reply:
    body: TenantChange = call.body
    changes: dict[str, Any] = {}
    if body.name is not UNSET:
        changes["name"] = body.name
    if body.email is not UNSET:
        changes["email"] = "" if body.email is None else fields.check_text(body.email, "email", limit=MAX_EMAIL)
    if body.is_active is not UNSET:
        changes["is_active"] = body.is_active
    if body.limits is not UNSET:
        changes["limits"] = limits_of(body.limits)
    try:
        stored = await Tenants(call.deps.engine).change(call.params["tenant_id"], **changes)
    except NotFound:
        raise _no_tenant() from None
    await noted(call, "tenant.change", stored.id)
    return Reply(200, tenant_object(stored))


def _no_tenant() -> NotFound:
    return NotFound("no such tenant", hint="GET /v1/tenants lists them")


ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        paths.KEYS,
        list_keys,
        scopes=_KEYS,
        query=KeysQuery,
        replies={200: models.KeyList},
        codes=("invalid_field", "not_found"),
        summary="All keys of the tenant, never their secrets",
        tag="access",
    ),
    Route(
        "POST",
        paths.KEYS,
        create_key,
        scopes=_KEYS,
        query=KeysQuery,
        body=KeyBody,
        replies={201: models.NewApiKey},
        codes=("invalid_field", "not_found", "timezone_required", "invalid_time"),
        summary="Make a key; its token is shown this once",
        tag="access",
    ),
    Route(
        "POST",
        f"{paths.KEY}/rotate",
        rotate_key,
        scopes=_KEYS,
        query=KeysQuery,
        body=RotateBody,
        body_optional=True,
        replies={201: models.NewApiKey},
        codes=("invalid_field", "not_found"),
        summary="Make a key's successor; the old one stays good for the overlap",
        tag="access",
    ),
    Route(
        "DELETE",
        paths.KEY,
        revoke_key,
        scopes=_KEYS,
        query=KeysQuery,
        replies={204: None},
        codes=("invalid_field", "not_found"),
        free=True,
        summary="Revoke a key: refused by every process within five seconds",
        tag="access",
    ),
    Route(
        "GET",
        paths.TENANTS,
        list_tenants,
        scopes=_TENANTS,
        replies={200: models.TenantList},
        summary="All tenants",
        tag="access",
    ),
    Route(
        "POST",
        paths.TENANTS,
        create_tenant,
        scopes=_TENANTS,
        body=TenantBody,
        replies={201: models.Tenant},
        codes=("invalid_field", "name_taken"),
        summary="Create a tenant",
        tag="access",
    ),
    Route(
        "GET",
        paths.TENANT,
        get_tenant,
        scopes=_TENANTS,
        replies={200: models.Tenant},
        codes=("not_found",),
        summary="One tenant",
        tag="access",
    ),
    Route(
        "PATCH",
        paths.TENANT,
        change_tenant,
        scopes=_TENANTS,
        body=TenantChange,
        replies={200: models.Tenant},
        codes=("not_found", "invalid_field", "name_taken"),
        summary="Change a tenant: its name, limits, or whether it may do anything",
        tag="access",
    ),
)
