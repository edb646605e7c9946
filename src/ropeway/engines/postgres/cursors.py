"""Where a claim starts to look: hints that spare it the dead index entries, and the sweeps that make them safe.

Vacuum cannot remove entries while a long transaction is open; a claim from the start of the index then walks them
all (8 ms after 100k jobs, 56 ms after 636k). So a worker remembers, per lane and priority, the last position it
claimed. That is only a hint: a late commit, a released or a rescued job may lie before it. A *deep sweep* (the
same claim from the very start) finds every such straggler, whatever the reason it was passed over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from ropeway.core.ageing import PRIORITIES

Position = tuple[datetime, int]

#: Before everything.
START: Position = (datetime(1, 1, 1, tzinfo=UTC), 0)

#: Concurrent commits land out of order by a few milliseconds; the hint allows for that.
SET_BACK = timedelta(milliseconds=100)

#: So long after their time nearly all have landed, and the hint is exact: a claim from a backlog that was enqueued
#: by thousands would otherwise walk as many again that were claimed before.
SETTLED = timedelta(seconds=1)

#: A sweep may take one part in this many of the time.
BUDGET = 20.0

#: Seconds between two sweeps of a lane while claims come back full.
FLOOR = 1.0


#: Lanes remembered at most.
MEMORY = 100_000

#: A queue and a priority: what a claim walks from one start.
Lane = tuple[str, int]


class LaneCursors:
    """The hints of one engine object, and when each lane is to be swept."""

    def __init__(self, budget: float = BUDGET, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._budget = budget
        self._monotonic = monotonic
        self._positions: dict[tuple[str, Lane], Position] = {}
        #: Per lane: when its last sweep ended and how long it took.
        self._swept: dict[tuple[str, Lane], tuple[float, float]] = {}

    def start(self, tenant: str, lane: Lane) -> Position:
        """Where a claim of this lane starts."""
        return self._positions.get((tenant, lane), START)

    def _make_room(self) -> None:
        """Forget all hints when there are very many: each only spares a sweep."""
        if len(self._positions) > MEMORY or len(self._swept) > MEMORY:
            self._positions.clear()
            self._swept.clear()

    def claimed(self, tenant: str, lane: Lane, run_at: datetime, seq: int, now: datetime) -> bool:
        """Note the position of a job that was claimed at `now`; True when it was a straggler, behind the hint."""
        hint = self._positions.get((tenant, lane))
        position = (run_at, seq + 1) if now - run_at > SETTLED else (run_at - SET_BACK, 0)
        if hint is None or position > hint:
            self._positions[tenant, lane] = position
        return hint is not None and (run_at, seq) < hint

    def due(self, tenant: str, lanes: Iterable[Lane], *, short: bool) -> set[Lane]:
        """The lanes to sweep now. When a claim came back `short` only the budget holds a sweep back."""
        now = self._monotonic()
        floor = 0.0 if short else FLOOR
        due = set()
        for lane in lanes:
            ended, took = self._swept.get((tenant, lane), _NEVER)
            if now - ended >= max(floor, self._budget * took):
                due.add(lane)
        return due

    def swept(self, tenant: str, lanes: Iterable[Lane], took: float, *, again: bool) -> None:
        """Note a sweep. One that brought stragglers is repeated at once (`again`)."""
        self._make_room()
        ended = float("-inf") if again else self._monotonic()
        for lane in lanes:
            self._swept[tenant, lane] = (ended, took)

    def disturb(self, tenant: str, queue: str) -> None:
        """A job went back to its old place in this queue: sweep it at the next claim."""
        for priority in PRIORITIES:
            self._swept.pop((tenant, (queue, priority)), None)


_NEVER = (float("-inf"), 0.0)
