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
from ropeway.core.states import LIVE_STATES, State
from ropeway.engines.sqlfile import fill, statements
from ropeway.engines.sqlite.rows import micros

SQL = statements("ropeway.engines.sqlite", "sql/inspecting.sql")

#: Up to here jobs of a state are sorted rather than looked for among all others.
FEW = 20_000

_PLAIN = ("queue", "type", "idempotency_key", "worker_id", "error", "reason", "tag", "priority")
_TIMES = ("created_after", "created_before", "finished_after", "finished_before")


class Question:
    """A statement about jobs, growing piece by piece."""

    def __init__(self, what: str, tenant: str, now: int) -> None:
        self._what = what
        self._few = ""
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

    def walk(self, db: sqlite3.Connection, where: JobFilter) -> None:
        """Walk only the jobs in the asked stages, or with the asked key, if they are few."""
        if where.idempotency_key is not None:
            self._among(["few_with_key"])
            return
        few = [f"few_{stage}" for stage in _stages(where)]
        number = 0
        for name in few:
            counted = SQL["counted"].replace("{found}", SQL[name])
            number += db.execute(counted, {**self.parameters, "limit": FEW + 1}).fetchone()[0]
        if few and number <= FEW:
            self._among(few)

    def _among(self, names: list[str]) -> None:
        self._few = SQL["few"].replace("{found}", " UNION ALL ".join(SQL[name] for name in names))
        self.narrow("where_few")

    def statement(self, order: str = "") -> str:
        what = fill(SQL[self._what], {"few": self._few})
        return "\n".join([what, *(f"AND {piece}" for piece in self._pieces), order])


def _stages(where: JobFilter) -> list[str]:
    """The stages that a filter's jobs can be in; none when they can be in all."""
    if where.worker_id is not None:
        return ["leased"]
    if where.reason is not None:
        return ["dead"]
    if where.states is None:
        return []
    return sorted({_STAGES.get(state, state.value) for state in where.states})


_STAGES = dict.fromkeys(LIVE_STATES, "free") | {State.RUNNING: "leased"}


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
