"""Places for calls that stay open, long polls and streams: each costs memory and a connection, so they are few."""

from __future__ import annotations

from collections import Counter
from typing import Final

from ropeway.core.errors import QuotaExceeded

#: What one tenant may take of all places, so that some are left for the others.
SHARE: Final = 0.75

#: Seconds after which a place may have become free.
RETRY_SECONDS: Final = 5.0


class Places:
    """The places of one process."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken: Counter[str] = Counter()
        self._all = 0

    def take(self, tenant: str) -> None:
        """Must be followed by `leave`. Raises QuotaExceeded."""
        own = max(1, int(self.most * SHARE))
        if self._all >= self.most:
            self._refuse(f"all {self.most:,} places for long polls and streams are taken")
        if self._taken[tenant] >= own:
            self._refuse(f"this tenant has {own:,} long polls and streams open, as many as it may here")
        self._taken[tenant] += 1
        self._all += 1

    def leave(self, tenant: str) -> None:
        self._all -= 1
        self._taken[tenant] -= 1
        if not self._taken[tenant]:
            del self._taken[tenant]

    def _refuse(self, why: str) -> None:
        raise QuotaExceeded(
            why, retry_in=RETRY_SECONDS, hint="ask without waiting, or share one stream among many"
        )
