"""What engines share about history: rows of counts and times to what was observed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from ropeway.core.history import Observed
from ropeway.core.states import EventName

#: Jobs whose waits and runs are looked up in one observation.
FEW = 1_000


def observed(
    counts: Iterable[tuple[str, str, str, int]],
    times: Iterable[tuple[str, str, float, float]],
    since: datetime,
    until: datetime,
    reach: datetime,
) -> list[Observed]:
    """Put together by tenant and queue. `reach` is how far back the look went, if that is not to `since`."""
    events: dict[tuple[str, str], dict[EventName, int]] = {}
    for tenant, queue, event, number in counts:
        events.setdefault((tenant, queue), {})[EventName(event)] = number
    waits: dict[tuple[str, str], list[float]] = {}
    runs: dict[tuple[str, str], list[float]] = {}
    for tenant, queue, wait, run in times:
        waits.setdefault((tenant, queue), []).append(wait)
        runs.setdefault((tenant, queue), []).append(run)
    step = (until - since).total_seconds()
    share = 1.0 if reach <= since else max(0.01, (until - reach).total_seconds() / step)
    return [
        Observed(*lane, found, waits.get(lane, ()), runs.get(lane, ()), share)
        for lane, found in sorted(events.items())
    ]
