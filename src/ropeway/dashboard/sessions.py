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
from ropeway.core.job import DEFAULT_TENANT
from ropeway.dashboard.cookies import NOTICE, SESSION, Cookies, cookies_of
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

    @property
    def sees_audit(self) -> bool:
        return self.may_act

    def require_audit(self) -> None:
        """Raises MissingScope. The API asks for the same scope."""
        self.principal.require(Scope.ADMIN)

    @property
    def sees_settings(self) -> bool:
        return self.may_act and self.tenant == DEFAULT_TENANT

    def require_settings(self) -> None:
        """Raises MissingScope. They are of the whole server, and tell where its store is: for those who run it."""
        self.principal.require(Scope.ADMIN)
        if not self.sees_settings:
            raise MissingScope("only a key of the tenant default may see the settings of the server")


class Sessions:
    """Signs people in and out, and tells who they are."""

    def __init__(
        self,
        engine: Engine,
        access: Access,
        seals: Seals,
        tickets: Tickets,
        *,
        auth: bool,
        secure: bool,
    ) -> None:
        self._access = access
        self._seals = seals
        self._book = Book(engine, access, seals, tickets)
        self._auth = auth
        self._secure = secure

    async def viewer(self, request: Request) -> Viewer:
        """Raises Unauthenticated, and MissingScope for a key that may not even look."""
        if not self._auth:
            return Viewer(ANYBODY, await self._mark("anybody"))
        text = (await self._cookies(request)).get(request, SESSION)
        if text is None:
            raise Unauthenticated
        session, principal = await self._book.open(text)
        _check(principal)
        return Viewer(principal, await self._mark(session.nonce), session)

    async def _cookies(self, request: Request) -> Cookies:
        return cookies_of(request, await self._seals.secret(), secure=self._secure)

    # ── Coming and going ──

    async def sign_in(self, request: Request, response: Response, token: str) -> None:
        """Whoever holds this key is signed in by the answer. Raises Unauthenticated or MissingScope."""
        await self._begin(request, response, await self._access.authenticate(token))

    async def enter(self, request: Request, response: Response, ticket: str) -> None:
        """The same for whoever follows a link that is good once."""
        await self._begin(request, response, await self._book.redeem(ticket))

    async def _begin(self, request: Request, response: Response, principal: Principal) -> None:
        _check(principal)
        cookie = await self._book.begin(principal)
        (await self._cookies(request)).put(response, SESSION, cookie, SESSION_SECONDS)

    async def sign_out(self, request: Request, response: Response, viewer: Viewer) -> None:
        """Their session is over, also for whoever has kept its cookie."""
        if viewer.session is not None:
            await self._book.end(viewer.session)
        (await self._cookies(request)).drop(response, SESSION)

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

    async def say(self, request: Request, response: Response, words: str) -> None:
        sealed = cursors.seal(await self._seals.secret(), words[:_MOST_NOTICE], _SAID)
        (await self._cookies(request)).put(response, NOTICE, sealed, _NOTICE_SECONDS)

    async def said(self, request: Request) -> str | None:
        text = (await self._cookies(request)).get(request, NOTICE)
        if text is None:
            return None
        try:
            return cursors.unseal(await self._seals.secret(), text, _SAID)
        except BadCursor:
            return None

    async def forget_said(self, request: Request, response: Response) -> None:
        (await self._cookies(request)).drop(response, NOTICE)


def _check(principal: Principal) -> None:
    principal.require(Scope.READ)
