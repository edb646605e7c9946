"""Tenants and keys: the same refusals, changes and stored forms on every engine."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from ropeway.core import fields
from ropeway.core.access import MAX_EMAIL, MAX_NAME, ApiKey, Limits, NewKey, NewTenant, Scope, Tenant
from ropeway.core.errors import NameTaken, NotFound

_SCOPES = frozenset(Scope)


def no_such_tenant() -> NotFound:
    return NotFound("no such tenant")


def no_such_key() -> NotFound:
    """Also said of a key that belongs to another tenant, or that is good no more."""
    return NotFound("no such key")


def tenant_taken() -> NameTaken:
    return NameTaken("there is a tenant of that id or name already", hint="choose another one")


def key_taken() -> NameTaken:
    return NameTaken("there is a key of that id already", hint="make a new key, its id is drawn anew")


def stored_tenant(new: NewTenant, now: datetime) -> Tenant:
    return Tenant(new.id, new.name, now, new.email, new.is_active, new.limits)


def stored_key(new: NewKey, tenant: str, now: datetime) -> ApiKey:
    return ApiKey(new.id, tenant, new.name, new.scopes, new.digest, now, new.expires_at)


def changed_tenant(
    tenant: Tenant, name: str | None, email: str | None, is_active: bool | None, limits: Limits | None
) -> Tenant:
    """A tenant after a change. None leaves a field alone; an empty email removes it. Raises FieldError."""
    check_change(name, email)
    return msgspec.structs.replace(
        tenant,
        name=tenant.name if name is None else name,
        email=tenant.email if email is None else email or None,
        is_active=tenant.is_active if is_active is None else is_active,
        limits=tenant.limits if limits is None else limits,
    )


def check_change(name: str | None, email: str | None) -> None:
    """The rules of a tenant's texts, before any store is asked."""
    if name is not None:
        fields.check_text(name, "name", limit=MAX_NAME)
    if email:
        fields.check_text(email, "email", limit=MAX_EMAIL)


def check_overlap(overlap: float) -> float:
    """How long a rotated key may still be used, in seconds."""
    return fields.check_seconds(overlap, "overlap_seconds", 0, fields.HORIZON_SECONDS)


def end_after_rotation(old: ApiKey, overlap: float, now: datetime) -> datetime:
    """When a rotated key ends: after the overlap, never later than it would have."""
    end = now + timedelta(seconds=overlap)
    return end if old.expires_at is None else min(end, old.expires_at)


def limits_text(limits: Limits) -> str:
    """Limits as they are stored: a JSON object of those that are set."""
    given = {name: value for name, value in msgspec.structs.asdict(limits).items() if value is not None}
    return msgspec.json.encode(given).decode()


def read_limits(text: str) -> Limits:
    """Stored limits. What a newer version added is not known here and changes nothing."""
    return msgspec.json.decode(text, type=Limits)


def scopes_text(scopes: frozenset[Scope]) -> str:
    """Scopes as they are stored: a JSON array, in order."""
    return msgspec.json.encode(sorted(scopes)).decode()


def read_scopes(text: str) -> frozenset[Scope]:
    """Stored scopes. One that only a newer version knows allows nothing here."""
    return frozenset(Scope(word) for word in msgspec.json.decode(text, type=list[str]) if word in _SCOPES)
