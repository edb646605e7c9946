"""The rate of a tenant, shared by all processes: the bucket is in the engine, a little of it is in hand here.

Asking the engine for each request would cost more than the request. So a process takes a tenth of a second's worth
ahead, and spends it without asking; what it did not use within a second is forfeited. A bucket that ran dry is not
asked again for a moment, so that a tenant beyond its rate costs nothing: the moments differ at random, or the
process that always asks first would get everything.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from enum import StrEnum

import msgspec

from ropeway.core.errors import QuotaExceeded, RateLimited
from ropeway.engines.protocol import Engine


class Purpose(StrEnum):
    """What a bucket is for; its name in the engine.

    Each has the tenant's whole rate, so that a producer which floods the service keeps neither the workers from
    the jobs nor the operators from the switches.
    """

    REQUESTS = "requests"
    WORK = "work"
    OPERATE = "operate"


#: Seconds' worth of the rate that a process takes ahead, and the share of the burst it never takes more than.
AHEAD_SECONDS = 0.1
AHEAD_SHARE = 0.1

#: Seconds after which tokens in hand are forfeited.
HOLD_SECONDS = 1.0

#: Seconds, on average, that a bucket which ran dry is left alone.
DRY_SECONDS = 0.05


class RateState(msgspec.Struct, frozen=True):
    """How a tenant stands: so many requests at once, so many of them left, all again in `reset` seconds."""

    limit: int
    remaining: int
    reset: float


class Bucket:
    """One tenant's bucket as one process sees it. `rate` and `burst` follow the tenant's limits."""

    def __init__(
        self,
        engine: Engine,
        tenant: str,
        purpose: Purpose = Purpose.REQUESTS,
        *,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._engine = engine
        self._tenant = tenant
        self._purpose = purpose
        self._clock = clock
        self._jitter = jitter
        self._lock = asyncio.Lock()
        self._hand = 0.0
        self._hand_until = 0.0
        #: What the engine had left at its last answer, and when that was. None: never asked under these limits.
        self._left: float | None = None
        self._left_at = 0.0
        self._dry_until = 0.0
        self.rate = 0.0
        self.burst = 0.0
        #: When it was last used, so that buckets of tenants who are gone can be dropped.
        self.used_at = clock()

    def follow(self, rate: float, burst: float) -> None:
        """The tenant's limits as they are now."""
        if (rate, burst) != (self.rate, self.burst):
            self.rate, self.burst = rate, burst
            self._hand, self._left, self._dry_until = 0.0, None, 0.0

    async def spend(self, cost: float) -> None:
        """Take `cost` tokens. Raises RateLimited, or QuotaExceeded when the bucket can never hold as many."""
        if not self.spend_in_hand(cost):
            # One asks, the others wait for what it brings.
            async with self._lock:
                if not self.spend_in_hand(cost):
                    await self._ask(cost)

    def spend_in_hand(self, cost: float) -> bool:
        """Take tokens without asking the engine, if there are enough in hand. Raises as `spend` does."""
        now = self.used_at = self._clock()
        if now >= self._hand_until:
            self._hand = 0.0
        if self._hand >= cost:
            self._hand -= cost
            return True
        if cost > self.burst:
            raise QuotaExceeded(
                f"this call counts for {cost:,.0f}; the tenant may send {self.burst:,.0f} at once",
                hint=f"send at most {int(self.burst):,} jobs per call, or have the tenant's burst raised",
            )
        missing = cost - self._hand - self._at_most(now)
        if missing > 0 or now < self._dry_until:
            raise self._refusal(max(missing / self.rate, self._dry_until - now))
        return False

    def state(self) -> RateState:
        """For the headers of an answer."""
        now = self._clock()
        hand = self._hand if now < self._hand_until else 0.0
        there = min(self.burst, hand + self._at_most(now))
        return RateState(int(self.burst), int(there), (self.burst - there) / self.rate)

    async def _ask(self, cost: float) -> None:
        ahead = min(self.rate * AHEAD_SECONDS, self.burst * AHEAD_SHARE)
        wanted = max(cost - self._hand, ahead)
        there = self._at_most(self._clock())
        if there < 2 * cost and self._left is not None:
            # Others take too, so there may be less than we can know of. A part would be of no use, so look first.
            await self._take(0.0)
            there = self._left
        if self._hand + there >= cost:
            granted = await self._take(wanted)
            if granted < wanted:
                self._dry_until = self._left_at + DRY_SECONDS * (0.5 + self._jitter())
        if self._hand >= cost:
            self._hand -= cost
            return
        wait = (cost - self._hand - (self._left or 0.0)) / self.rate
        self._dry_until = max(self._dry_until, self._left_at + DRY_SECONDS * (0.5 + self._jitter()))
        # A part that came all the same is kept until the rest can be there.
        self._hand_until = max(self._hand_until, self._left_at + wait + HOLD_SECONDS)
        raise self._refusal(max(wait, self._dry_until - self._left_at))

    async def _take(self, wanted: float) -> float:
        taken = await self._engine.take_tokens(
            self._purpose.value, wanted, rate=self.rate, burst=self.burst, tenant=self._tenant
        )
        now = self._clock()
        self._left, self._left_at = taken.left, now
        if taken.granted > 0:
            self._hand += taken.granted
            self._hand_until = max(self._hand_until, now + HOLD_SECONDS)
        return taken.granted

    def _at_most(self, now: float) -> float:
        """What the engine's bucket cannot exceed: what it had, and what has come since; others may have taken."""
        if self._left is None:
            return self.burst
        return min(self.burst, self._left + (now - self._left_at) * self.rate)

    def _refusal(self, wait: float) -> RateLimited:
        return RateLimited(
            f"this tenant may send {self.rate:,.6g} requests per second, {self.burst:,.0f} at once",
            retry_in=max(wait, 0.001),
            hint="wait as long as Retry-After says; enqueueing in batches costs one per job, reading one per call",
        )
