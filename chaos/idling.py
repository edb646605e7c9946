"""Faults that met nobody: those that came when no job was asked for and none was live."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from chaos.checker.ending import ENDS
from chaos.facts import Facts

#: The phases in which producers are at work, as a run writes them down.
LOAD, LOAD_OVER = "load", "load over"

#: Faults that are done to a copy, when all is over, of what was written while there was work.
AFTERWARDS = frozenset({"power"})


def idle_faults(facts: Facts) -> int:
    """How many faults came when there was nothing to lose: they show nothing, and are not counted."""
    busy = list(_together(sorted(_busy(facts))))
    idle = [
        fault
        for fault in facts.faults
        if fault.kind not in AFTERWARDS and not any(begin <= fault.at <= end for begin, end in busy)
    ]
    return len({(fault.kind, fault.act) for fault in idle if fault.act}) + sum(not fault.act for fault in idle)


def _busy(facts: Facts) -> Iterator[tuple[float, float]]:
    """When the load was on, when each producer was at work, and when each job was live."""
    if {LOAD, LOAD_OVER} <= facts.phases.keys():
        yield facts.phases[LOAD], facts.phases[LOAD_OVER]
    producers: dict[str, tuple[float, float]] = {}
    for each in facts.enqueues:
        end = each.asked if each.ended is None else each.ended
        first, last = producers.get(each.process, (each.asked, end))
        producers[each.process] = min(first, each.asked), max(last, end)
    yield from producers.values()
    for id, each in facts.accepted.items():
        if events := facts.events.get(id):
            newest = max(events, key=lambda event: event.seq)
            yield each.asked, facts.when(newest.at) if newest.name in ENDS else inf


def _together(spans: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Spans that overlap as one; they are given by their beginnings."""
    if not spans:
        return
    begin, end = spans[0]
    for later, its_end in spans[1:]:
        if later > end:
            yield begin, end
            begin, end = later, its_end
        end = max(end, its_end)
    yield begin, end
