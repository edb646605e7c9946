"""Filters to conditions: an allow-list of columns, every value a parameter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ropeway.core.query import JobFilter
from ropeway.core.states import LIVE_STATES, TERMINAL_STATES, State

_LIVE = {
    State.RUNNING: "j.lease_token IS NOT NULL",
    State.WAITING: "(j.lease_token IS NULL AND j.blockers > 0)",
    State.SCHEDULED: "(j.lease_token IS NULL AND j.blockers = 0 AND j.run_at > {now} AND j.failures = 0)",
    State.RETRYING: "(j.lease_token IS NULL AND j.blockers = 0 AND j.run_at > {now} AND j.failures > 0)",
    State.QUEUED: "(j.lease_token IS NULL AND j.blockers = 0 AND j.run_at <= {now})",
}


class Conditions:
    """Collects conditions and their parameters, numbered as they come."""

    def __init__(self) -> None:
        self.parameters: list[Any] = []
        self._parts: list[str] = []

    def add(self, condition: str, *values: Any) -> None:
        """`condition` with `?` for each value."""
        for value in values:
            self.parameters.append(value)
            condition = condition.replace("?", f"${len(self.parameters)}", 1)
        self._parts.append(condition)

    def add_all(self, conditions: Iterable[tuple[str, Any]]) -> None:
        """Conditions of one value each."""
        for condition, value in conditions:
            self.add(condition, value)

    def where(self) -> str:
        return " WHERE " + " AND ".join(self._parts)

    def mark(self, value: Any) -> str:
        """A parameter outside the conditions."""
        self.parameters.append(value)
        return f"${len(self.parameters)}"

    def part(self) -> Conditions:
        """Another WHERE clause of the same statement: it shares the numbering."""
        other = Conditions()
        other.parameters = self.parameters
        return other


def live_conditions(into: Conditions, where: JobFilter, tenant: str, now: str) -> bool:
    """Conditions on live jobs; False when the filter takes none of them."""
    states = LIVE_STATES if where.states is None else where.states & LIVE_STATES
    if not states or where.reason is not None or where.finished_after or where.finished_before:
        return False
    _common(into, where, tenant)
    if states != LIVE_STATES:
        into.add("(" + " OR ".join(_LIVE[state].format(now=now) for state in sorted(states)) + ")")
    if where.worker_id is not None:
        into.add("j.worker = ?", where.worker_id)
    return True


def ended_conditions(into: Conditions, where: JobFilter, tenant: str) -> bool:
    """Conditions on ended jobs; False when the filter takes none of them."""
    states = TERMINAL_STATES if where.states is None else where.states & TERMINAL_STATES
    if not states or where.worker_id is not None:
        return False
    _common(into, where, tenant)
    if states != TERMINAL_STATES:
        into.add("j.state = ANY(?::text[])", [state.value for state in sorted(states)])
    if where.reason is not None:
        into.add("j.state = 'dead' AND j.reason = ?", where.reason.value)
    if where.finished_after is not None:
        into.add("j.finished_at >= ?", where.finished_after)
    if where.finished_before is not None:
        into.add("j.finished_at < ?", where.finished_before)
    return True


def _common(into: Conditions, where: JobFilter, tenant: str) -> None:
    into.add("j.tenant = ?", tenant)
    for column in ("queue", "type", "idempotency_key", "priority"):
        value = getattr(where, column)
        if value is not None:
            into.add(f"j.{column} = ?", value)
    if where.error is not None:
        into.add(
            "(position(?::text in j.last_error::json ->> 'message') > 0"
            " OR position(?::text in j.last_error::json ->> 'type') > 0)",
            where.error,
            where.error,
        )
    if where.tag is not None:
        into.add("?::text = ANY(j.tags)", where.tag)
    if where.created_after is not None:
        into.add("j.created_at >= ?", where.created_after)
    if where.created_before is not None:
        into.add("j.created_at < ?", where.created_before)
