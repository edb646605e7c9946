"""How long to wait before the next try of something that is away: longer each time, never all at once."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Delays that double from `base` to `cap` seconds, each somewhere between half of it and all of it.

    The cap is short on purpose: a store that is back should see its workers again within seconds, and the
    spread keeps a fleet from knocking in step.
    """

    def __init__(
        self, base: float = 0.25, cap: float = 10.0, *, chance: Callable[[], float] = random.random
    ) -> None:
        self._base = base
        self._cap = cap
        self._chance = chance
        self._tries = 0

    def next(self) -> float:
        """The next delay in seconds."""
        # Beyond 2^32 every base is over every cap.
        whole = min(self._cap, self._base * 2.0 ** min(self._tries, 32))
        self._tries += 1
        return whole * (0.5 + self._chance() / 2)

    def reset(self) -> None:
        """It worked: start again from the shortest delay."""
        self._tries = 0
