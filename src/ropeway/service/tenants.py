"""Tenants: whose jobs are whose, and what each may use."""

from __future__ import annotations

import re

import msgspec

from ropeway.core import fields
from ropeway.core.access import MAX_EMAIL, MAX_NAME, Limits, NewTenant, Tenant
from ropeway.core.errors import FieldError, NotFound
from ropeway.core.job import DEFAULT_TENANT
from ropeway.engines.protocol import Engine
from ropeway.service.names import did_you_mean

_NOT_IN_IDS = re.compile(r"[^a-z0-9._-]+")


class Tenants:
    """All tenants of a store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def create(
        self,
        name: str,
        *,
        id: str | None = None,
        email: str | None = None,
        is_active: bool = True,
        limits: Limits = Limits(),
    ) -> Tenant:
        """A new tenant. Its id, which scopes its jobs for ever, is made from the name unless it is given.

        Raises NameTaken when the id or the name is in use.
        """
        fields.check_text(name, "name", limit=MAX_NAME)
        return await self._engine.create_tenant(NewTenant(id or _id_for(name), name, email, is_active, limits))

    async def all(self) -> list[Tenant]:
        """By id."""
        return await self._engine.tenants()

    async def get(self, id: str) -> Tenant:
        """Raises NotFound, with the id that was probably meant."""
        known = {tenant.id: tenant for tenant in await self.all()}
        if id not in known:
            hint = did_you_mean(id, known) or "ropeway tenants list shows them"
            raise NotFound(f"no tenant {id[:64]!r}", hint=hint)
        return known[id]

    async def change(
        self,
        id: str,
        *,
        name: str | None = None,
        email: str | None = None,
        is_active: bool | None = None,
        limits: Limits | None = None,
    ) -> Tenant:
        """Change what is given; `limits` replaces all of them, an empty email removes it.

        Raises NotFound, NameTaken, and FieldError when `default` would be switched off.
        A tenant that is not active is refused by every process within five seconds. The tenant `default` stays
        active: it is the way in.
        """
        if name is not None:
            fields.check_text(name, "name", limit=MAX_NAME)
        if email:
            fields.check_text(email, "email", limit=MAX_EMAIL)
        if id == DEFAULT_TENANT and is_active is False:
            raise FieldError(
                "the tenant default cannot be switched off", pointer="/is_active", hint="revoke its keys instead"
            )
        await self.get(id)
        return await self._engine.change_tenant(id, name=name, email=email, is_active=is_active, limits=limits)

    @staticmethod
    def merged(limits: Limits, **changes: float | int | None) -> Limits:
        """Limits with some of them changed; None takes the server's default again. Raises FieldError."""
        return msgspec.structs.replace(limits, **changes)


def _id_for(name: str) -> str:
    """`Acme Ltd.` → `acme-ltd.`: readable, for it is what people see in lists and logs."""
    id = _NOT_IN_IDS.sub("-", name.lower()).strip("-")[:MAX_NAME]
    if not id:
        raise FieldError("no id can be made from this name", pointer="/id", hint="give one of A-Z a-z 0-9 . _ : -")
    return id
