"""What operators did: one record per action, kept apart from the jobs' own events."""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec.structs import force_setattr

from ropeway.core import fields
from ropeway.core.payload import clean_text

#: How long the texts of an entry, and of a question for some, may be.
MAX_ACTOR = 256
MAX_ACTION = 64
_MAX_TEXT = 1_024


class NewAction(msgspec.Struct, frozen=True):
    """An action to note. `actor` is a key's id and name, or the operating system's user of a command line."""

    actor: str
    action: str
    target: str
    count: int | None = None
    request_id: str | None = None

    def __post_init__(self) -> None:
        """What was done is noted whatever it was done to: what no store can keep is replaced, not refused."""
        for name in ("actor", "action", "target", "request_id"):
            text = getattr(self, name)
            if text is not None:
                force_setattr(self, name, clean_text(text, _MAX_TEXT))


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
    """Which actions. Times are half-open: `after` <= t < `before`. Raises FieldError."""

    actor: str | None = None
    action: str | None = None
    after: datetime | None = None
    before: datetime | None = None

    def __post_init__(self) -> None:
        if self.actor is not None:
            fields.check_text(self.actor, "actor", limit=MAX_ACTOR)
        if self.action is not None:
            fields.check_text(self.action, "action", limit=MAX_ACTION)


def matches(action: Action, where: ActionFilter) -> bool:
    """Whether a filter takes an action: the meaning that every engine's SQL has to have."""
    return (
        (where.actor is None or action.actor == where.actor)
        and (where.action is None or action.action == where.action)
        and (where.after is None or action.at >= where.after)
        and (where.before is None or action.at < where.before)
    )
