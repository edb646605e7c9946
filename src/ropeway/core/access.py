"""Who may do what: scopes, tenants, and keys as they are stored (never the secret itself)."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from ropeway.core import fields
from ropeway.core.errors import FieldError

MAX_NAME = 128
MAX_EMAIL = 254
_LARGEST = 2**53


class Scope(StrEnum):
    """What a key allows. There is no order among them: each is given by name."""

    ENQUEUE = "enqueue"
    WORK = "work"
    READ = "read"
    READ_PAYLOAD = "read:payload"
    ADMIN = "admin"
    TENANT_ADMIN = "tenant-admin"


class Limits(msgspec.Struct, frozen=True):
    """What one tenant may use. None takes the server's default; a rate of its own without a burst allows two
    seconds' worth at once. Jobs that have not ended count as queued; the payload's limit is for each one."""

    rate_per_second: float | None = None
    burst: int | None = None
    max_queued: int | None = None
    max_payload_bytes: int | None = None
    max_leases: int | None = None

    def __post_init__(self) -> None:
        if self.rate_per_second is not None:
            _check_rate(self.rate_per_second)
        for field in ("burst", "max_queued", "max_payload_bytes", "max_leases"):
            value = getattr(self, field)
            if value is not None:
                fields.check_integer(value, f"limits/{field}", 1, _LARGEST)


class NewTenant(msgspec.Struct, frozen=True):
    """A tenant to create. `id` is what scopes every statement; `name` is what people call it, and unique."""

    id: str
    name: str
    email: str | None = None
    is_active: bool = True
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        fields.check_name(self.id, "id")
        fields.check_text(self.name, "name", limit=MAX_NAME)
        if self.email is not None:
            fields.check_text(self.email, "email", limit=MAX_EMAIL)


class Tenant(msgspec.Struct, frozen=True):
    """A stored tenant."""

    id: str
    name: str
    created_at: datetime
    email: str | None = None
    is_active: bool = True
    limits: Limits = Limits()
    last_seen_at: datetime | None = None


class NewKey(msgspec.Struct, frozen=True):
    """A key to store: its public id, and the digest of the secret that only its holder has."""

    id: str
    name: str
    scopes: frozenset[Scope]
    digest: bytes
    expires_at: datetime | None = None

    def __post_init__(self) -> None:
        fields.check_name(self.id, "id")
        fields.check_text(self.name, "name", limit=MAX_NAME)
        if not self.scopes:
            raise FieldError("a key needs at least one scope", pointer="/scopes", hint=f"of {', '.join(Scope)}")
        if self.expires_at is not None:
            fields.check_time(self.expires_at, "expires_at")


class ApiKey(msgspec.Struct, frozen=True):
    """A stored key. It is good while it is neither revoked nor expired and its tenant is active."""

    id: str
    tenant: str
    name: str
    scopes: frozenset[Scope]
    digest: bytes
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None

    def good(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def _check_rate(rate: float) -> None:
    if type(rate) not in (int, float) or not 0.001 <= rate <= 1e9:
        raise FieldError(
            "limits/rate_per_second must be a number from 0.001 to 1e9", pointer="/limits/rate_per_second"
        )
