"""What engines share about history: rows of counts and times to what was observed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from ropeway.core.history import Observed
from ropeway.core.states import EventName

#: Jobs whose waits and runs are looked up in one observation.
FEW = 1_000

#: Less of a step than this says too little about it.
LEAST = timedelta(seconds=1)


def window(
    since: datetime, until: datetime, *, first: datetime | None, newest: datetime | None
) -> tuple[datetime, datetime]:
    """The time that is counted for a step. `first` and `newest`: of the events that a look reaches; None: of all.

    A store that writes so much that a look reaches hardly any of the step any more is counted as it is now.
    """
    if first is None or first <= since:
        return since, until
    if newest is None or first <= until - LEAST:
        return first, until
    return first, newest + timedelta(microseconds=1)


def observed(
    counts: Iterable[tuple[str, str, str, int]],
    times: Iterable[tuple[str, str, float, float]],
    share: float,
) -> list[Observed]:
    """Put together by tenant and queue. `share` is how much of the step was counted."""
    events: dict[tuple[str, str], dict[EventName, int]] = {}
    for tenant, queue, event, number in counts:
        events.setdefault((tenant, queue), {})[EventName(event)] = number
    waits: dict[tuple[str, str], list[float]] = {}
    runs: dict[tuple[str, str], list[float]] = {}
    for tenant, queue, wait, run in times:
        waits.setdefault((tenant, queue), []).append(wait)
        runs.setdefault((tenant, queue), []).append(run)
    return [
        Observed(*lane, found, waits.get(lane, ()), runs.get(lane, ()), share)
        for lane, found in sorted(events.items())
    ]


def share_of(counted: tuple[datetime, datetime], since: datetime, until: datetime) -> float:
    """How much of a step was counted: 1 is all of it."""
    if counted == (since, until):
        return 1.0
    return max(0.001, (counted[1] - counted[0]) / (until - since))
