"""What was accepted is there, once, and nothing else is: C1, C3, C10, C16."""

from __future__ import annotations

from collections import Counter, defaultdict

from chaos.checker.violation import Violation
from chaos.facts import Facts
from chaos.history import FAIL
from ropeway.core.states import TERMINAL_STATES


def nothing_lost(facts: Facts) -> list[Violation]:
    """C1: every accepted job has ended after the drain."""
    found = []
    for id in facts.accepted:
        final = facts.finals.get(id)
        if final is None:
            found.append(Violation("C1", id, "was accepted and is gone"))
        elif final.state not in TERMINAL_STATES:
            found.append(Violation("C1", id, f"was accepted and is {final.state} after the drain"))
    return found


def nothing_unexpected(facts: Facts) -> list[Violation]:
    """C3: nothing exists, and nothing ran, that nobody asked for or that was refused."""
    accepted = facts.accepted
    possible = {each.key for each in facts.enqueues if each.phase != FAIL}
    found = [
        Violation("C3", id, f"exists although nobody asked for it (key {final.key})")
        for id, final in facts.finals.items()
        if id not in accepted and final.key not in possible
    ]
    found += [
        Violation("C3", id, "ran and is not in the engine")
        for id in facts.starts
        if id not in facts.finals and id not in accepted
    ]
    return found


def one_job_per_key(facts: Facts) -> list[Violation]:
    """C10: one key, one job, in the answers and in the engine."""
    told: defaultdict[str, set[str]] = defaultdict(set)
    for each in facts.enqueues:
        if each.key is not None and each.id is not None:
            told[each.key].add(each.id)
    for id, final in facts.finals.items():
        if final.key is not None:
            told[final.key].add(id)
    return [
        Violation("C10", min(ids), f"the key {key} has {len(ids)} jobs: {', '.join(sorted(ids))}")
        for key, ids in told.items()
        if len(ids) > 1
    ]


def conserved(facts: Facts) -> list[Violation]:
    """C16: what the engine counts by state is what it holds and what was accepted; what servers count is too."""
    return [*_counted_by_the_engine(facts), *_counted_by_servers(facts)]


def _counted_by_the_engine(facts: Facts) -> list[Violation]:
    if facts.counts is None:
        return []
    found = []
    held = Counter(final.state for final in facts.finals.values())
    counted = {state: number for state, number in facts.counts.items() if number}
    if dict(held) != counted:
        found.append(Violation("C16", "-", f"the engine counts {counted} and holds {dict(held)}"))
    accepted, more, total = len(facts.accepted), recovered(facts), sum(counted.values())
    if accepted + more != total:
        found.append(Violation("C16", "-", f"{accepted} accepted and {more} recovered jobs, {total} are counted"))
    return found


def _counted_by_servers(facts: Facts) -> list[Violation]:
    """A server counts a job when it has stored it: those that a client was told of, and no more than there are."""
    if facts.served is None:
        return []
    told = len({each.id for each in facts.enqueues if each.id is not None and not each.deduplicated})
    stored, there = facts.served["enqueued"], len(facts.finals.keys() | facts.accepted.keys())
    if told <= stored <= there:
        return []
    return [Violation("C16", "-", f"servers count {stored} new jobs: {told} were told of, {there} are there")]


def recovered(facts: Facts) -> int:
    """Jobs that exist although their enqueue was never answered: allowed, and told."""
    return len(facts.finals.keys() - facts.accepted.keys())
