"""The checker: from the facts of a run to what must not have happened (C1 to C20)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from chaos.checker import accepting, ending, events, leasing, linear, timing
from chaos.checker.violation import Violation
from chaos.facts import Facts

Rule = Callable[[Facts], Sequence[Violation]]

#: By id. C12 comes with ordering keys, C14 has a bar per experiment (timing.recovery), C15 is the tenant matrix's.
RULES: Mapping[str, Rule] = {
    "C1": accepting.nothing_lost,
    "C2": ending.one_end,
    "C3": accepting.nothing_unexpected,
    "C4": leasing.starts_have_leases,
    "C5": leasing.stale_calls_refused,
    "C6": leasing.attempts_and_tokens,
    "C7": leasing.leases_do_not_overlap,
    "C8": leasing.second_leases_have_causes,
    "C9": ending.effects_once,
    "C10": accepting.one_job_per_key,
    "C11": events.complete_and_in_order,
    "C13": timing.not_early,
    "C16": accepting.conserved,
    "C17": ending.succeeded_was_run,
    "C18": ending.acks_stay,
    "C19": ending.crash_limit_kept,
    "C20": linear.linearizable,
}


def check(facts: Facts) -> list[Violation]:
    """All that is wrong with a run."""
    return [violation for rule in RULES.values() for violation in rule(facts)]


__all__ = ["RULES", "Violation", "check"]
