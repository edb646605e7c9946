"""Who is asking: a key's text becomes a principal.

A verdict is kept for at most three seconds, so a key that was revoked, and a tenant that was switched off, is
refused by every process within five. When a key ends is checked at each use. All bad keys are answered alike.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from datetime import datetime
from typing import TypeVar

import msgspec

from ropeway.core import keytext
from ropeway.core.access import ApiKey, Limits, Scope, Tenant
from ropeway.core.errors import MissingScope, NameTaken, RopewayError, Unauthenticated
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.keytext import KeyText
from ropeway.engines.protocol import Engine
from ropeway.runtime.coalesce import Coalescer
from ropeway.service.keys import DEFAULT_ENVIRONMENT, Keys

logger = logging.getLogger("ropeway.access")

#: Seconds that a verdict is kept, from before the look into the store.
KEEP_SECONDS = 3.0

#: A verdict this old is renewed in the background while it is still used, so that nobody waits for it.
RENEW_SECONDS = 2.0

#: Seconds that a verdict is kept for calls that go on: they look again every so often, and the two must not add up
#: to more than the five seconds within which a revoked key is refused.
CONFIRM_SECONDS = 1.5

#: Verdicts kept at once. Bad keys have room of their own: however many come, no good one is forgotten for them.
MOST_GOOD = 16_384
MOST_BAD = 4_096

#: Looks into the store at once for keys that were not known to be good: a flood of guesses must not take all the
#: connections from those who have work.
STRANGERS_AT_ONCE = 4

#: Seconds between two notes that a key was used.
NOTE_EVERY = 60.0

#: What a key may do beyond what it was given: an operator who may change everything may also look at it, and who
#: may see payloads may see what has them.
IMPLIED = {
    Scope.ADMIN: frozenset({Scope.READ, Scope.READ_PAYLOAD}),
    Scope.READ_PAYLOAD: frozenset({Scope.READ}),
}

#: The id of the key that a first start makes: always the same, so that of two starts at once only one makes it.
FIRST_ID = "firstkey2222"

K = TypeVar("K")
V = TypeVar("V")

_DUMMY = hashlib.sha256(b"no key").digest()


class Principal(msgspec.Struct, frozen=True):
    """Whoever sent a request. `scopes` are all that apply, those implied too; `limits` are those of the tenant."""

    tenant: str
    key_id: str
    name: str
    scopes: frozenset[Scope]
    limits: Limits = Limits()

    @property
    def actor(self) -> str:
        """How the log of actions calls them."""
        return f"{self.name} ({self.key_id})"

    def require(self, *scopes: Scope) -> None:
        """Raises MissingScope unless the principal has one of them."""
        if not self.scopes.isdisjoint(scopes):
            return
        wanted = " or ".join(scopes)
        raise MissingScope(
            f"this key may not do that: it needs the scope {wanted}",
            hint=f"ropeway keys create NAME --scope {scopes[0]}",
        )


#: Everybody, where a server on loopback was told to ask for no keys.
ANYBODY = Principal(DEFAULT_TENANT, "none", "anybody", frozenset(Scope))


class _Verdict(msgspec.Struct):
    """What was found about a token. `principal` None: it is not good."""

    principal: Principal | None
    looked_at: float
    ends_at: float = float("inf")


class Access:
    """Checks keys for one process. Close it before the engine."""

    def __init__(
        self,
        engine: Engine,
        *,
        environment: str = DEFAULT_ENVIRONMENT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._environment = keytext.check_environment(environment)
        self._clock = clock
        self._good: dict[bytes, _Verdict] = {}
        self._bad: dict[bytes, _Verdict] = {}
        #: By the id of the key, for `confirm`.
        self._standing: dict[str, _Verdict] = {}
        self._looks: dict[bytes | str, asyncio.Task[_Verdict]] = {}
        self._strangers = asyncio.Semaphore(STRANGERS_AT_ONCE)
        self._noted: dict[str, float] = {}
        self._notes: Coalescer[str, None] = Coalescer(self._note)

    async def authenticate(self, token: str) -> Principal:
        """Who holds this key. Raises Unauthenticated, with the same words whatever is wrong with it."""
        # The token itself is kept nowhere: whoever reads this process's memory finds no keys in the cache.
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        verdict = self._good.get(digest) or self._bad.get(digest)
        now = self._clock()
        age = KEEP_SECONDS if verdict is None else now - verdict.looked_at
        if verdict is None or age >= RENEW_SECONDS:
            text = keytext.parse_key(token)
            if text is None:
                raise Unauthenticated
            look = self._look(digest, text)
            if verdict is None or age >= KEEP_SECONDS:
                # Shielded, for a caller who goes away must not take the answer from the others.
                verdict = await asyncio.shield(look)
                now = self._clock()
        if verdict.principal is None or now >= verdict.ends_at:
            raise Unauthenticated
        return verdict.principal

    async def confirm(self, principal: Principal) -> Principal:
        """The principal as it is now, for a call that has gone on for a while. Raises Unauthenticated.

        Cheap: however many such calls a key has, the store is asked once in `CONFIRM_SECONDS`.
        """
        if principal is ANYBODY:
            return principal
        verdict = self._standing.get(principal.key_id)
        if verdict is None or self._clock() - verdict.looked_at >= CONFIRM_SECONDS:
            look = self._share(principal.key_id, lambda: self._judge_standing(principal.key_id))
            verdict = await asyncio.shield(look)
        if verdict.principal is None or self._clock() >= verdict.ends_at:
            raise Unauthenticated
        return verdict.principal

    async def create_first_key(
        self, name: str = "first start", scopes: Collection[Scope] = frozenset(Scope)
    ) -> tuple[ApiKey, str] | None:
        """A key for a store that has none yet, and its text. None when somebody has a way in already.

        Of several processes that start at once, one makes it.
        """
        if await self._engine.keys() or len(await self._engine.tenants()) > 1:
            return None
        try:
            return await Keys(self._engine, environment=self._environment).create(name, scopes, id=FIRST_ID)
        except NameTaken:
            return None

    async def close(self) -> None:
        """Wait for what is under way."""
        while self._looks:
            await asyncio.wait(list(self._looks.values()))
        await self._notes.close()

    def _look(self, digest: bytes, text: KeyText) -> asyncio.Task[_Verdict]:
        return self._share(digest, lambda: self._judge(digest, text))

    def _share(
        self, about: bytes | str, judge: Callable[[], Coroutine[None, None, _Verdict]]
    ) -> asyncio.Task[_Verdict]:
        """A look into the store; callers who ask for the same at once share one."""
        task = self._looks.get(about)
        if task is None:
            task = self._looks[about] = asyncio.create_task(judge())
            task.add_done_callback(lambda task: self._looked(about, task))
        return task

    def _looked(self, about: bytes | str, task: asyncio.Task[_Verdict]) -> None:
        self._looks.pop(about, None)
        if not task.cancelled():
            # A renewal that failed is tried again by the next caller; whoever waited has got the error.
            task.exception()

    async def _judge(self, digest: bytes, text: KeyText) -> _Verdict:
        verdict = _Verdict(None, self._clock())
        if digest in self._good:
            found = await self._engine.find_key(text.id)
        else:
            async with self._strangers:
                found = await self._engine.find_key(text.id)
        known = _DUMMY if found is None else found[0].digest
        # Compared also when there is no such id, so that the time taken does not tell.
        same = hmac.compare_digest(keytext.secret_digest(text.secret), known)
        if found is None or not same or not await self._stands(verdict, *found):
            self._good.pop(digest, None)
            _keep(self._bad, digest, verdict, MOST_BAD)
            return verdict
        verdict.principal = _principal(*found)
        self._bad.pop(digest, None)
        _keep(self._good, digest, verdict, MOST_GOOD)
        self._use(found[0].id)
        return verdict

    async def _judge_standing(self, id: str) -> _Verdict:
        """What a key that was shown before is worth now."""
        verdict = _Verdict(None, self._clock())
        found = await self._engine.find_key(id)
        if found is not None and await self._stands(verdict, *found):
            verdict.principal = _principal(*found)
        _keep(self._standing, id, verdict, MOST_GOOD)
        return verdict

    async def _stands(self, verdict: _Verdict, key: ApiKey, tenant: Tenant) -> bool:
        """Whether a key is good now; until when, by this process's clock, is noted in the verdict."""
        if key.revoked_at is not None or not tenant.is_active:
            return False
        if key.expires_at is None:
            return True
        # Only the engine's clock decides; what is left of the time is then counted on our own.
        now: datetime = await self._engine.now()
        verdict.ends_at = self._clock() + (key.expires_at - now).total_seconds()
        return key.good(now)

    def _use(self, id: str) -> None:
        now = self._clock()
        if now - self._noted.get(id, -NOTE_EVERY) < NOTE_EVERY:
            return
        _keep(self._noted, id, now, MOST_GOOD)
        self._notes.submit(id)

    async def _note(self, ids: Sequence[str]) -> Sequence[None]:
        try:
            await self._engine.note_use(set(ids))
        except RopewayError as error:
            # When a key was last used is worth knowing, but no request is refused for it.
            logger.debug("the use of keys was not noted", extra={"error": error.code, "keys": len(ids)})
        return [None] * len(ids)


def _principal(key: ApiKey, tenant: Tenant) -> Principal:
    scopes = key.scopes.union(*(IMPLIED.get(scope, ()) for scope in key.scopes))
    return Principal(tenant.id, key.id, key.name, scopes, tenant.limits)


def _keep(kept: dict[K, V], key: K, value: V, most: int) -> None:
    """Keep a value as the newest; the oldest go when there are too many."""
    kept.pop(key, None)
    kept[key] = value
    while len(kept) > most:
        del kept[next(iter(kept))]
