"""What is handed out and must come back unchanged: cursors, places in the event log, and tickets for streams."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from ropeway.core.errors import BadCursor, Unauthenticated
from ropeway.core.limits import TICKETS
from ropeway.service.access import IMPLIED, Principal
from ropeway.wire import cursors

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine

#: Seconds within which a ticket must be used.
TICKET_SECONDS = 60.0

#: What a ticket is for, unless told otherwise: a stream of the API.
STREAM = "ticket"


class Seals:
    """Signs with the store's secret, so that every process of a store understands what another one gave out."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._secret: bytes | None = None

    async def secret(self) -> bytes:
        if self._secret is None:
            self._secret = await self._engine.secret()
        return self._secret

    async def seal(self, position: str | None, *bound_to: str) -> str | None:
        """A position to hand out; None stays None."""
        return None if position is None else cursors.seal(await self.secret(), position, *bound_to)

    async def unseal(self, cursor: str | None, *bound_to: str) -> str | None:
        """Raises BadCursor."""
        return None if cursor is None else cursors.unseal(await self.secret(), cursor, *bound_to)


class _Ticket(msgspec.Struct, array_like=True):
    nonce: str
    key_id: str
    ends_at: datetime


class Tickets:
    """Tickets stand in for a key where a browser can send no header: for a minute, for one stream, once."""

    def __init__(self, engine: Engine, seals: Seals) -> None:
        self._engine = engine
        self._seals = seals

    async def issue(self, principal: Principal, *, seconds: float = TICKET_SECONDS, use: str = STREAM) -> str:
        """A ticket with what the principal's key allows, good for this use only."""
        ends_at = await self._engine.now() + timedelta(seconds=seconds)
        ticket = _Ticket(secrets.token_urlsafe(12), principal.key_id, ends_at)
        return cursors.seal(await self._seals.secret(), msgspec.json.encode(ticket).decode(), use)

    async def redeem(self, text: str, *, use: str = STREAM) -> Principal:
        """Who got the ticket. Raises Unauthenticated: it is forged, late, used or for another use, or its key is
        good no more."""
        try:
            opened = cursors.unseal(await self._seals.secret(), text, use)
            ticket = msgspec.json.decode(opened, type=_Ticket)
        except (BadCursor, msgspec.DecodeError):
            raise _spent() from None
        now = await self._engine.now()
        if now >= ticket.ends_at:
            raise _spent()
        # A bucket that never fills again: of all processes, one gets its only token.
        taken = await self._engine.take_tokens(f"{TICKETS}{ticket.nonce}", 1.0, rate=0.0, burst=1.0)
        found = await self._engine.find_key(ticket.key_id) if taken.granted >= 1 else None
        if found is None or not found[0].good(now.astimezone(UTC)) or not found[1].is_active:
            raise _spent()
        key, tenant = found
        scopes = key.scopes.union(*(IMPLIED.get(scope, ()) for scope in key.scopes))
        return Principal(tenant.id, key.id, key.name, scopes, tenant.limits)


def _spent() -> Unauthenticated:
    return Unauthenticated(
        "this ticket is not good, or no longer", hint="POST /v1/streams/ticket gives a new one; each is used once"
    )
