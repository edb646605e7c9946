"""What operators did: one record per action, kept apart from the jobs' own events."""

from __future__ import annotations

from datetime import datetime

import msgspec


class NewAction(msgspec.Struct, frozen=True):
    """An action to note. `actor` is a key's id and name, or the operating system's user of a command line."""

    actor: str
    action: str
    target: str
    count: int | None = None
    request_id: str | None = None


class Action(msgspec.Struct, frozen=True):
    """A noted action; `n` numbers the entries of the store in the order they were written."""

    n: int
    at: datetime
    actor: str
    action: str
    target: str
    count: int | None = None
    request_id: str | None = None


class ActionFilter(msgspec.Struct, frozen=True):
    """Which actions. Times are half-open: `after` <= t < `before`."""

    actor: str | None = None
    action: str | None = None
    after: datetime | None = None
    before: datetime | None = None


def matches(action: Action, where: ActionFilter) -> bool:
    """Whether a filter takes an action: the meaning that every engine's SQL has to have."""
    return (
        (where.actor is None or action.actor == where.actor)
        and (where.action is None or action.action == where.action)
        and (where.after is None or action.at >= where.after)
        and (where.before is None or action.at < where.before)
    )
