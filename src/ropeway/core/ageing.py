"""Ageing: waiting work rises, so that endless urgent arrivals cannot starve the rest (Q5)."""

from __future__ import annotations

from collections.abc import Mapping

PRIORITIES = tuple(range(1, 10))

#: The best place ageing can give. Priority 1 is above it: what is critical always goes first.
HIGHEST_BY_AGE = 2


def order_priorities(waited: Mapping[int, float], step_seconds: float) -> tuple[int, ...]:
    """The order in which a claim walks the priorities of one lane.

    `waited` says for each priority how long its oldest due job has waited (absent: nothing is due). A job gains
    one step per `step_seconds` waited, never above 2; among equals the longest wait goes first. `step_seconds` 0
    switches ageing off.
    """
    if step_seconds <= 0 or all(seconds < step_seconds for seconds in waited.values()):
        return PRIORITIES

    def place(priority: int) -> tuple[float, float]:
        seconds = waited.get(priority, 0.0)
        if priority < HIGHEST_BY_AGE:
            return priority, 0.0
        return max(HIGHEST_BY_AGE, priority - seconds // step_seconds), -seconds

    return tuple(sorted(PRIORITIES, key=place))
