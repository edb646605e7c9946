"""Who has signed in: sessions of keys, sealed and handed out, good until their time is over or they are ended.

A session holds no secret: the id of a key and the end of the session, signed by the store's secret, so that every
process of a store takes the sessions of the others. What is kept in the store is only that one was ended: a bucket
of tokens that never fills again, empty from then on. Buckets are forgotten after a day, and no session lasts so
long.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from ropeway.core.errors import BadCursor, Unauthenticated
from ropeway.service.access import FIRST_ID, Principal
from ropeway.wire import cursors

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine
    from ropeway.service.access import Access
    from ropeway.service.seals import Seals, Tickets

#: Seconds that somebody stays signed in.
SESSION_SECONDS: Final = 12 * 3_600

#: Seconds that a look whether a session is over is good for.
LOOK_SECONDS: Final = 3.0

#: Sessions whose last look is kept; one that was dropped is looked up again.
MOST_KEPT: Final = 4_096

_SESSION = "dashboard session"
#: The use of tickets that sign in.
LINK: Final = "dashboard link"
_BUCKET = "session:"
#: In place of a time: it is over, and stays so.
_ENDED: Final = float("-inf")


class Session(msgspec.Struct, array_like=True, frozen=True):
    """What is handed out, sealed."""

    key_id: str
    ends_at: datetime
    nonce: str


class Sessions:
    """The sessions that one process sees."""

    def __init__(
        self,
        engine: Engine,
        access: Access,
        seals: Seals,
        tickets: Tickets,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._access = access
        self._seals = seals
        self._tickets = tickets
        self._clock = clock
        #: By a session's nonce: until when it need not be looked up again, or _ENDED.
        self._good_until: dict[str, float] = {}

    async def begin(self, principal: Principal) -> str:
        """A session of this principal's key, to be handed out."""
        ends_at = await self._engine.now() + timedelta(seconds=SESSION_SECONDS)
        session = Session(principal.key_id, ends_at, secrets.token_urlsafe(12))
        return cursors.seal(await self._seals.secret(), msgspec.json.encode(session).decode(), _SESSION)

    async def open(self, text: str) -> tuple[Session, Principal]:
        """A session that was handed out, and whose it is. Raises Unauthenticated: it is forged, over or ended, or
        its key is good no more.

        Cheap: however many pages a session has open, the store is asked for it once in `LOOK_SECONDS`.
        """
        try:
            opened = cursors.unseal(await self._seals.secret(), text, _SESSION)
            session = msgspec.json.decode(opened, type=Session)
        except (BadCursor, msgspec.DecodeError):
            raise Unauthenticated from None
        if not await self._is_good(session):
            raise Unauthenticated
        return session, await self._access.confirm(Principal("", session.key_id, "", frozenset()))

    async def end(self, session: Session) -> None:
        """It is good no more: here at once, with the store's other processes within seconds."""
        await self._take(session, 1.0)
        self._keep(session, _ENDED)

    async def _is_good(self, session: Session) -> bool:
        until = self._good_until.get(session.nonce)
        if until is None or (until != _ENDED and self._clock() >= until):
            until = await self._look(session)
            if self._good_until.get(session.nonce) == _ENDED:
                # It was ended here while the store was asked.
                return False
            self._keep(session, until)
        return until != _ENDED

    async def _look(self, session: Session) -> float:
        """Until when the session counts as good, by our own clock; or that it is over."""
        began = self._clock()
        # Only the engine's clock decides; what is left of the time is then counted on our own.
        left = (session.ends_at - await self._engine.now()).total_seconds()
        if left <= 0 or await self._take(session, 0.0) < 1.0:
            return _ENDED
        return began + min(left, LOOK_SECONDS)

    async def _take(self, session: Session, wanted: float) -> float:
        """Take the session's token, or none, and tell what is left."""
        taken = await self._engine.take_tokens(f"{_BUCKET}{session.nonce}", wanted, rate=0.0, burst=1.0)
        return taken.left

    def _keep(self, session: Session, until: float) -> None:
        self._good_until.pop(session.nonce, None)
        self._good_until[session.nonce] = until
        while len(self._good_until) > MOST_KEPT:
            del self._good_until[next(iter(self._good_until))]

    async def first_ticket(self, *, seconds: float) -> str | None:
        """A ticket for the key of the first start; None when there is no such key, or it is good no more."""
        found = await self._engine.find_key(FIRST_ID)
        if found is None or not found[0].good(await self._engine.now()) or not found[1].is_active:
            return None
        first = Principal("", FIRST_ID, "", frozenset())
        return await self._tickets.issue(first, seconds=seconds, use=LINK)

    async def redeem(self, ticket: str) -> Principal:
        """Whose a ticket of `first_ticket` is. Raises Unauthenticated.

        Tickets for streams are not taken: whoever has a key can ask for those, and lead others to a link that
        signs them in as somebody they are not.
        """
        return await self._tickets.redeem(ticket, use=LINK)
