"""Keys of one tenant: made, listed, exchanged and revoked. Their text is shown once, when they are made."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from datetime import datetime

from ropeway.core import fields, keytext
from ropeway.core.access import ApiKey, NewKey, Scope
from ropeway.core.errors import FieldError, NotFound
from ropeway.core.job import DEFAULT_TENANT
from ropeway.engines.protocol import Engine

#: A key is made for producers unless it says otherwise: the least that is useful.
DEFAULT_SCOPES = frozenset({Scope.ENQUEUE})

#: Seconds that a key and its successor are both good, unless its owner says otherwise.
DEFAULT_OVERLAP = 86_400.0

DEFAULT_ENVIRONMENT = "live"


class Keys:
    """The keys of one tenant. `environment` is the label in the text of those that are made."""

    def __init__(
        self, engine: Engine, *, tenant: str = DEFAULT_TENANT, environment: str = DEFAULT_ENVIRONMENT
    ) -> None:
        self._engine = engine
        self._tenant = tenant
        self._environment = keytext.check_environment(environment)

    async def create(
        self,
        name: str,
        scopes: Collection[Scope] = DEFAULT_SCOPES,
        expires_at: datetime | None = None,
        *,
        id: str | None = None,
    ) -> tuple[ApiKey, str]:
        """A new key and its text, which is nowhere else. Raises NotFound when there is no such tenant."""
        new, token = self._make(name, scopes, await self._ahead(expires_at), id)
        return await self._engine.create_key(new, tenant=self._tenant), token

    async def all(self) -> list[ApiKey]:
        """All keys, also those that are no longer good, newest first."""
        return await self._engine.keys(tenant=self._tenant)

    async def get(self, id: str) -> ApiKey:
        """Raises NotFound."""
        for key in await self.all():
            if key.id == id:
                return key
        raise no_such_key()

    async def rotate(
        self, id: str, overlap: float = DEFAULT_OVERLAP, *, expires_at: datetime | None = None
    ) -> tuple[ApiKey, str]:
        """A successor of the same name and scopes, and its text; the old key stays good for `overlap` seconds.

        Without `expires_at` a key that ends gets a successor that lives as long as it did.
        Raises NotFound unless the old key is still good.
        """
        fields.check_seconds(overlap, "overlap_seconds", 0, fields.HORIZON_SECONDS)
        old = await self.get(id)
        now = await self._engine.now()
        if not old.good(now):
            raise no_such_key()
        if expires_at is None and old.expires_at is not None:
            expires_at = now + (old.expires_at - old.created_at)
        new, token = self._make(old.name, old.scopes, await self._ahead(expires_at), None)
        return await self._engine.rotate_key(id, new, overlap=overlap, tenant=self._tenant), token

    async def revoke(self, id: str) -> ApiKey:
        """It is good no more, in every process within five seconds. Raises NotFound."""
        try:
            return await self._engine.revoke_key(id, tenant=self._tenant)
        except NotFound:
            raise no_such_key() from None

    async def _ahead(self, expires_at: datetime | None) -> datetime | None:
        if expires_at is not None and fields.check_time(expires_at, "expires_at") <= await self._engine.now():
            raise FieldError("expires_at must be ahead", code="invalid_time", pointer="/expires_at")
        return expires_at

    def _make(
        self, name: str, scopes: Collection[Scope], expires_at: datetime | None, id: str | None
    ) -> tuple[NewKey, str]:
        id = id or keytext.make_id(secrets.token_bytes(8))
        secret = keytext.make_secret(secrets.token_bytes(keytext.SECRET_BYTES))
        new = NewKey(id, name, frozenset(scopes), keytext.secret_digest(secret), expires_at)
        return new, keytext.key_text(self._environment, id, secret)


def no_such_key() -> NotFound:
    """The same words for a key that is not there, that is another tenant's, and that is no longer good."""
    return NotFound("no such key, or it is no longer good", hint="ropeway keys list shows them")
