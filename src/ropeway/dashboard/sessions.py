"""Who looks at a page: a cookie with a session of a key, and the mark that every form must carry.

The key itself is looked at again for each page: once it is revoked, its sessions are over within seconds.
"""

from __future__ import annotations

import hmac
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

from ropeway.core.access import Scope
from ropeway.core.errors import BadCursor, MissingScope, Unauthenticated
from ropeway.service.access import ANYBODY, Principal
from ropeway.service.sessions import SESSION_SECONDS, Session
from ropeway.service.sessions import Sessions as Book
from ropeway.wire import cursors

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from ropeway.engines.protocol import Engine
    from ropeway.service.access import Access
    from ropeway.service.seals import Seals, Tickets

COOKIE: Final = "ropeway_session"
#: What the page after an action says, once.
NOTICE: Final = "ropeway_notice"

#: Seconds within which a link that a start has printed must be used.
LINK_SECONDS: Final = 600.0
_NOTICE_SECONDS: Final = 60
_MOST_NOTICE: Final = 400

_SAID = "dashboard notice"


class Viewer(msgspec.Struct, frozen=True):
    """Who looks. `mark` is what their forms must carry; `session` None: there is nothing to sign out of."""

    principal: Principal
    mark: str
    session: Session | None = None

    @property
    def tenant(self) -> str:
        return self.principal.tenant

    @property
    def signed_in(self) -> bool:
        return self.session is not None

    @property
    def may_act(self) -> bool:
        return Scope.ADMIN in self.principal.scopes

    @property
    def sees_payloads(self) -> bool:
        return Scope.READ_PAYLOAD in self.principal.scopes


class Sessions:
    """Signs people in and out, and tells who they are."""

    def __init__(self, engine: Engine, access: Access, seals: Seals, tickets: Tickets, *, auth: bool) -> None:
        self._access = access
        self._seals = seals
        self._tickets = tickets
        self._book = Book(engine, access, seals, tickets)
        self._auth = auth

    async def viewer(self, request: Request) -> Viewer:
        """Raises Unauthenticated, and MissingScope for a key that may not even look."""
        if not self._auth:
            return Viewer(ANYBODY, await self._mark("anybody"))
        text = request.cookies.get(COOKIE)
        if text is None:
            raise Unauthenticated
        session, principal = await self._book.open(text)
        _check(principal)
        return Viewer(principal, await self._mark(session.nonce), session)

    # ── Coming and going ──

    async def sign_in(self, token: str) -> str:
        """A cookie for whoever holds this key. Raises Unauthenticated or MissingScope."""
        return await self._begin(await self._access.authenticate(token))

    async def enter(self, ticket: str) -> str:
        """A cookie for whoever follows a link that is good once. Raises Unauthenticated or MissingScope."""
        return await self._begin(await self._tickets.redeem(ticket))

    async def _begin(self, principal: Principal) -> str:
        _check(principal)
        return await self._book.begin(principal)

    async def sign_out(self, viewer: Viewer) -> None:
        """Their session is over, also for whoever has kept its cookie."""
        if viewer.session is not None:
            await self._book.end(viewer.session)

    @property
    def open(self) -> bool:
        """Whether nobody has to sign in."""
        return not self._auth

    async def first_link(self) -> str | None:
        """The address below the server's that signs in as the key of the first start: once, within minutes. None
        when there is no such key, or it is good no more."""
        ticket = await self._book.first_ticket(seconds=LINK_SECONDS)
        return None if ticket is None else f"/ui/enter?ticket={ticket}"

    # ── Forms ──

    async def _mark(self, nonce: str) -> str:
        return blake2b(
            nonce.encode(), key=await self._seals.secret(), digest_size=16, person=b"ropeway form"
        ).hexdigest()

    @staticmethod
    def check_mark(viewer: Viewer, given: str) -> None:
        """Raises unless a form came from a page that this viewer was shown."""
        if not hmac.compare_digest(viewer.mark.encode(), given.encode()):
            raise MissingScope(
                "this form is not of your session, or of one that is over", hint="load the page again"
            )

    # ── What the next page says ──

    async def say(self, response: Response, words: str, *, secure: bool) -> None:
        sealed = cursors.seal(await self._seals.secret(), words[:_MOST_NOTICE], _SAID)
        _set(response, NOTICE, sealed, _NOTICE_SECONDS, secure=secure)

    async def said(self, request: Request) -> str | None:
        text = request.cookies.get(NOTICE)
        if text is None:
            return None
        try:
            return cursors.unseal(await self._seals.secret(), text, _SAID)
        except BadCursor:
            return None


def keep_cookie(response: Response, cookie: str, *, secure: bool) -> None:
    _set(response, COOKIE, cookie, SESSION_SECONDS, secure=secure)


def drop_cookie(response: Response, name: str, *, secure: bool) -> None:
    response.delete_cookie(name, path="/", secure=secure, httponly=True, samesite="strict")


def _set(response: Response, name: str, value: str, seconds: int, *, secure: bool) -> None:
    response.set_cookie(name, value, max_age=seconds, path="/", secure=secure, httponly=True, samesite="strict")


def _check(principal: Principal) -> None:
    principal.require(Scope.READ)
