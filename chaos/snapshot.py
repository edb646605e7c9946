"""What an engine holds after a run, for the checker: read through the engine's own protocol."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.query import JobFilter
from ropeway.core.states import State
from ropeway.engines.protocol import Engine

PAGE = 500
#: As far as a server counts.
MOST = 1_000_000


async def snapshot(
    engine: Engine,
    *,
    tenants: Sequence[str] = (DEFAULT_TENANT,),
    epoch: float = 0.0,
    effects: dict[str, int] | None = None,
    seen: list[tuple[str, int]] | None = None,
) -> dict[str, Any]:
    """Jobs, events and counts. `epoch`: the engine's time less the monotonic one; `effects`: rows that handlers
    wrote, by job; `seen`: what a follower of the log saw."""
    jobs: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    for tenant in tenants:
        after = None
        while True:
            page = await engine.find(order="oldest", limit=PAGE, after=after, tenant=tenant)
            jobs += [
                {
                    "id": str(job.id),
                    "type": job.type,
                    "state": job.state.value,
                    "attempt": job.attempt,
                    "attempts": job.attempts,
                    "max_attempts": job.max_attempts,
                    "lost": job.lease_lost_count,
                    "key": job.idempotency_key,
                    "reason": None if job.dead_reason is None else job.dead_reason.value,
                }
                for job in page.jobs
            ]
            after = page.next
            if after is None:
                break
        for state in State:
            counted = await engine.count(JobFilter(states=frozenset({state})), cap=MOST, tenant=tenant)
            counts[state.value] += counted.number
    return {
        "jobs": jobs,
        "counts": {state: number for state, number in counts.items() if number},
        "events": await _events(engine),
        "epoch": epoch,
        "effects": effects or {},
        "seen": seen,
    }


async def _events(engine: Engine) -> list[list[Any]]:
    events: list[list[Any]] = []
    position = None
    while True:
        page = await engine.tail(position, limit=PAGE)
        events += [
            [str(e.job_id), e.event.value, e.seq, e.attempt, e.at.timestamp(), dict(e.data)] for e in page.events
        ]
        position = page.position
        if page.whole and len(page.events) < PAGE:
            return events


def together(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What several stores hold, as if it were one; all but jobs, events, counts and effects is the last one's."""
    if len(states) == 1:
        return states[0]
    counts: Counter[str] = Counter()
    for state in states:
        counts.update(state["counts"])
    return {
        **states[-1],
        "jobs": [job for state in states for job in state["jobs"]],
        "events": [event for state in states for event in state["events"]],
        "counts": dict(counts),
        "effects": {id: number for state in states for id, number in state["effects"].items()},
    }
