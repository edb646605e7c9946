"""What may be asked in a URL: one struct per list, every parameter from an allow-list."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ropeway.core.auditlog import MAX_ACTION, MAX_ACTOR
from ropeway.core.errors import FieldError
from ropeway.core.query import DEFAULT_PAGE, MAX_PAGE, JobFilter, parse_state
from ropeway.core.states import DeadReason, EventName, State
from ropeway.wire.requests import FilterBody, JobId, Key, Name, Priority, Time, text_of
from ropeway.wire.times import parse_time

Limit = Annotated[int, Meta(ge=1, le=MAX_PAGE)]
Cap = Annotated[int, Meta(ge=1, le=1_000_000)]

#: What a list leaves out unless it is asked for.
INCLUDED = ("payload", "result", "traceback")

_TIMES = ("created_after", "created_before", "finished_after", "finished_before")


class Query(msgspec.Struct, forbid_unknown_fields=True):
    """Base of all queries."""


class FilterQuery(Query):
    """Which jobs. `status` takes several, with commas between them, and the older words too."""

    queue: Name | None = None
    type: Name | None = None
    status: str | None = None
    idempotency_key: Key | None = None
    worker_id: str | None = None
    error: Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 256})] | None = None
    reason: DeadReason | None = None
    tag: str | None = None
    priority: Priority | None = None
    created_after: Time | None = None
    created_before: Time | None = None
    finished_after: Time | None = None
    finished_before: Time | None = None


class ListQuery(FilterQuery):
    """A page of jobs; `include` names what is otherwise left out, with commas between."""

    limit: Limit = DEFAULT_PAGE
    cursor: str | None = None
    include: str | None = None

    def included(self) -> frozenset[str]:
        """Raises FieldError."""
        if self.include is None:
            return frozenset()
        names = self.include.split(",")
        if any(name not in INCLUDED for name in names):
            raise FieldError(f"include takes {', '.join(INCLUDED)}, nothing else", pointer="/include")
        return frozenset(names)

    def question(self) -> str:
        """What was asked, apart from the place in the answer: a cursor is good for one question."""
        asked = {
            name: value
            for name, value in msgspec.structs.asdict(self).items()
            if value is not None and name not in ("limit", "cursor", "include", "after_id")
        }
        return msgspec.json.encode(asked, order="sorted").decode()


class JobsQuery(ListQuery):
    """`after_id` begins the list behind an id, which need not be a job's; from there on cursors go on."""

    order: Literal["newest", "oldest"] = "newest"
    after_id: JobId | None = None


class DeadQuery(ListQuery):
    order: Literal["died"] = "died"


class CountQuery(FilterQuery):
    cap: Cap = 10_000


class PlaceQuery(Query):
    cap: Cap = 10_000


class LogsQuery(Query):
    after: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 500


class QueuesQuery(Query):
    """`queues`: only these, with commas between them. `cap`: where counting stops."""

    queues: str | None = None
    cap: Cap = 10_000


class GroupsQuery(Query):
    queue: Name | None = None


class WorkersQuery(Query):
    seen_within: Annotated[float, Meta(ge=0, le=315_619_200)] = 60.0


class AuditQuery(Query):
    actor: Annotated[str, text_of(MAX_ACTOR)] | None = None
    action: Annotated[str, text_of(MAX_ACTION)] | None = None
    after: Time | None = None
    before: Time | None = None
    limit: Limit = DEFAULT_PAGE
    cursor: str | None = None


class KeysQuery(Query):
    """`tenant`: the keys of another tenant, for whoever looks after tenants."""

    tenant: Name | None = None


class EventsQuery(Query):
    """`after` is a place that was given out, or `start` or `end` for the oldest kept event and for now. `last`
    begins so many events before the end instead, those of other tenants counted; it is for pages."""

    queue: Name | None = None
    type: Name | None = None
    event: EventName | None = None
    after: str | None = None
    last: Limit | None = None
    limit: Limit = 100


def filter_of(asked: FilterQuery | FilterBody) -> JobFilter:
    """The filter that a URL or a body asks for. Raises FieldError."""
    times = {name: parse_time(text, name) for name in _TIMES if (text := getattr(asked, name)) is not None}
    return JobFilter(
        queue=asked.queue,
        type=asked.type,
        states=None if asked.status is None else states_of(asked.status),
        idempotency_key=asked.idempotency_key,
        worker_id=asked.worker_id,
        error=asked.error,
        reason=asked.reason,
        tag=asked.tag,
        priority=asked.priority,
        **times,
    )


def states_of(words: str) -> frozenset[State]:
    """States by their names or by the older words, with commas between them."""
    return frozenset(parse_state(word) for word in words.split(","))
