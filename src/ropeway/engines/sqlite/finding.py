"""Filters to SQL: fixed pieces put together, every value bound. And the way to walk: by id, or by state.

Few jobs in a state: walk that state's index and sort them. Many: walk the ids, newest or oldest first, and leave
out what does not match; then a page is found soon. Which of the two is known after counting a little.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from ropeway.core import query
from ropeway.core.query import JobFilter, Order
from ropeway.core.states import LIVE_STATES, TERMINAL_STATES, State
from ropeway.engines.sqlfile import fill, statements
from ropeway.engines.sqlite.rows import micros

SQL = statements("ropeway.engines.sqlite", "sql/inspecting.sql")

#: Up to here jobs of a state are sorted rather than looked for among all others.
FEW = 20_000

_PLAIN = ("queue", "type", "idempotency_key", "worker_id", "error", "reason")
_TIMES = ("created_after", "created_before", "finished_after", "finished_before")


class Question:
    """A statement about jobs, growing piece by piece."""

    def __init__(self, what: str, tenant: str, now: int) -> None:
        self._what = what
        self._by = ""
        self._pieces: list[str] = []
        self.parameters: dict[str, Any] = {"tenant": tenant, "now": now}

    def narrow(self, piece: str, **parameters: Any) -> None:
        self._pieces.append(SQL[piece])
        self.parameters.update(parameters)

    def match(self, where: JobFilter) -> None:
        """Only jobs that a filter takes (see `query.matches` for what each field means)."""
        for field in _PLAIN:
            if (value := getattr(where, field)) is not None:
                self.narrow(f"where_{field}", **{field: value})
        for field in _TIMES:
            if (at := getattr(where, field)) is not None:
                self.narrow(f"where_{field}", **{field: micros(at)})
        if where.states is not None:
            either = " OR ".join(SQL[f"where_{state.value}"] for state in sorted(where.states))
            self._pieces.append(f"({either})" if either else "FALSE")

    def walk_states(self, db: sqlite3.Connection, states: frozenset[State] | None) -> None:
        """Choose the index of the asked states if they hold few jobs; the ids otherwise."""
        counts = {"tenant": self.parameters["tenant"], "limit": FEW + 1}
        if states == frozenset({State.RUNNING}):
            self._by = "INDEXED BY jobs_leased"
            self.narrow("where_leased")
        elif states and states <= LIVE_STATES - {State.RUNNING}:
            if db.execute(SQL["free_jobs"], counts).fetchone()[0] <= FEW:
                self._by = "INDEXED BY jobs_free"
                self.narrow("where_free")
        elif states == frozenset({State.DEAD}):
            if db.execute(SQL["ended_jobs"], {**counts, "stage": "dead"}).fetchone()[0] <= FEW:
                self._by = "INDEXED BY jobs_dead"
        elif states and states <= TERMINAL_STATES and State.SUCCEEDED not in states:
            stages = [{**counts, "stage": state.value} for state in states]
            if sum(db.execute(SQL["ended_jobs"], stage).fetchone()[0] for stage in stages) <= FEW:
                self._by = "INDEXED BY jobs_ended"
                self._pieces.append("j.finished_at IS NOT NULL")

    def statement(self, order: str = "") -> str:
        what = fill(SQL[self._what], {"by": self._by})
        return "\n".join([what, *(f"AND {piece}" for piece in self._pieces), order])


def page(order: Order, after: str | None) -> tuple[str | None, dict[str, Any]]:
    """The piece and parameters that start a page after a position; raises BadCursor."""
    if after is None:
        return None, {}
    if order == "died":
        at, id = query.parse_death_position(after)
        return "died_before", {"edge_at": micros(at), "edge": id.bytes}
    return "before_id" if order == "newest" else "after_id", {"edge": query.parse_id_position(after).bytes}


def by_ids(ids: Sequence[UUID], tenant: str, now: int) -> Question:
    """The jobs with these ids."""
    question = Question("jobs", tenant, now)
    question.narrow("where_ids", ids=b"".join([id.bytes for id in ids]), numbers=f"[{','.join('0' * len(ids))}]")
    return question
