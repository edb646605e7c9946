"""The event log: all events of one job, and a tail that never skips a late commit.

Paging by `id > last` skips, for ever, an event whose transaction drew its id early and committed late. So a
position is a snapshot: what it saw has been read. The next read takes a new snapshot and hands out, in id order,
what lies between the two; a page that does not finish the step remembers where in it it stopped, which may be
within a pack (one row for the same step of many jobs, migrations/0017). For one job the order of ids is the order
of `seq`: each of its transactions locks its row.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
from datetime import date
from typing import NamedTuple
from uuid import UUID

import asyncpg
import msgspec
from msgspec.structs import replace

from ropeway.core.errors import BadCursor, EngineError, PositionExpired
from ropeway.core.events import Event, EventPage
from ropeway.core.job import DEFAULT_TENANT
from ropeway.engines.postgres.rows import stored_event
from ropeway.engines.postgres.store import PostgresStore

log = logging.getLogger("ropeway.events")

#: Ids looked at per statement: bounds the sort when a reader is far behind.
STRIDE = 50_000

#: Strides that one call reads in search of one tenant's events; after them it says how far it has come.
MOST_STRIDES = 10

#: Events of a page that is to be whole, in one step: more than a page and the pack that it begins in can have.
WHOLE = 100_000

#: Open transactions no further apart than this are looked for together.
SAME_RANGE = 1_000
LAST_TRANSACTION = 2**63 - 1

#: Events that a reader may find at the end of the log before it sees to it that they are found by their index.
SUMMARISE_EVERY = 5_000


class Position(msgspec.Struct, frozen=True, array_like=True):
    """Everything that `seen` saw has been read; of what `upto` sees beyond it, ids up to `last` have been, of that
    one its first `within` events if it is a pack that was not read to its end."""

    seen: str
    seen_high: int
    upto: str | None = None
    upto_high: int = 0
    last: int = 0
    #: The cluster whose snapshots these are; in another one they mean nothing.
    cluster: str = ""
    within: int = 0


#: Before the first event: a snapshot that saw nothing.
BEGINNING = Position("1:1:", 0)


class Bounds(NamedTuple):
    """How far the log was pruned, up to where it is only history, and the cluster that writes it now."""

    pruned: int
    restored: int
    cluster: str


class PostgresTailing(PostgresStore):
    #: The id up to which the log is summarised, and the day and page of it to go on from.
    _summarised_to = 0
    _summarised_page = (date.min, 0)
    _summarising = False

    async def events_of(self, id: UUID, *, tenant: str = DEFAULT_TENANT) -> list[Event]:
        rows = await self.reads.fetch(self.sql("inspecting", "events_of"), tenant, id, writes=False)
        return [stored_event(row) for row in rows]

    async def tail_position(self) -> str:
        bounds = await self.log_bounds()
        (row,) = await self.reads.fetch(self.sql("inspecting", "log_end"), writes=False)
        return _encode(Position(row["snapshot"], row["high"], cluster=bounds.cluster), await self._secret())

    async def tail(self, position: str | None = None, *, limit: int = 500, tenant: str | None = None) -> EventPage:
        bounds = await self.log_bounds()
        secret = await self._secret()
        if position is None:
            at = replace(BEGINNING, cluster=bounds.cluster)
        else:
            at = _decode(position, secret)
            _check_reach(at, bounds)
        events: list[Event] = []
        looked = False
        strides = 0
        while len(events) < limit:
            if tenant is not None and strides == MOST_STRIDES:
                return EventPage(events, _encode(at, secret), whole=False)
            if at.upto is None:
                # One new snapshot per call: an empty page says that the log was read to its end.
                if looked:
                    break
                looked = True
                (end,) = await self.reads.fetch(self.sql("inspecting", "log_end"), writes=False)
                at = replace(at, upto=end["snapshot"], upto_high=end["high"], last=0, within=0)
                self._keep_up(end["high"])
            strides += 1
            at, found = await self._step(at, limit - len(events), bounds, tenant)
            events += found
        return EventPage(events, _encode(at, secret))

    async def newest_events(self, *, limit: int = 500, tenant: str | None = None) -> EventPage:
        bounds = await self.log_bounds()
        (end,) = await self.reads.fetch(self.sql("inspecting", "log_end"), writes=False)
        after = max(end["high"] - min(limit, STRIDE), bounds.pruned, bounds.restored)
        before = await self.reads.value(
            self.sql("inspecting", "before_newest_events"),
            end["snapshot"], limit, after, end["high"], writes=False,
        )  # fmt: skip
        # As of a reader who began with nothing and has come so far: what commits late is handed out later.
        at = replace(BEGINNING, upto=end["snapshot"], upto_high=end["high"], last=before, cluster=bounds.cluster)
        at, events = await self._step(at, WHOLE, bounds, tenant)
        return EventPage(events[max(0, len(events) - limit) :], _encode(at, await self._secret()))

    async def _secret(self) -> bytes:
        """What signs positions: kept in the store, so that every process takes the positions of the others."""
        return (await self.stored_secret("position_secret")).encode()

    def _keep_up(self, high: int) -> None:
        """Have what was appended summarised, beside the calls, now that the log has grown up to `high`."""
        if high - self._summarised_to >= SUMMARISE_EVERY and not self._summarising:
            self._summarising = True
            self.in_background(self._summarise(high))

    async def _summarise(self, high: int) -> None:
        try:
            today = (await self.now()).date()
            day, page = self._summarised_page
            start = page if day == today else 0
            page = await self.chores.value(self.sql("inspecting", "summarise"), start)
            self._summarised_page = (today, page)
        except (EngineError, asyncpg.PostgresError) as error:
            # The tail is complete without it, only slower: most likely this user does not own the tables.
            log.debug("the event log could not be summarised: %s", error)
        finally:
            self._summarised_to = high
            self._summarising = False

    async def log_bounds(self) -> Bounds:
        """Where the log begins. Notices that the store was copied into another cluster, and notes it there."""
        while True:
            (row,) = await self.reads.fetch(self.sql("inspecting", "log_bounds"), writes=False)
            if row["written_by"] == row["cluster"]:
                return Bounds(row["pruned"], row["restored"], row["cluster"])
            await self.chores.fetch(self.sql("inspecting", "adopt_log"))

    async def _step(
        self, at: Position, limit: int, bounds: Bounds, tenant: str | None
    ) -> tuple[Position, list[Event]]:
        """Read one stride of what lies between the two snapshots of `at`."""
        froms, tos = _unseen(at.seen)
        # Late commits may have any id, so the first stride starts at the beginning.
        start = max(at.last, bounds.restored)
        stop = min(max(start, at.seen_high, bounds.pruned) + STRIDE, at.upto_high)
        within = at.within if start == at.last else 0
        rows = await self.reads.fetch(
            self.sql("inspecting", "tail"),
            at.seen, at.upto, at.seen_high, start, within, stop, froms, tos, limit, tenant, writes=False,
        )  # fmt: skip
        events = [stored_event(row) for row in rows]
        if len(rows) == limit:
            last = rows[-1]
            return replace(at, last=last["id"], within=last["n"] if last["rest"] else 0), events
        if stop >= at.upto_high:
            return Position(at.upto or at.seen, at.upto_high, cluster=at.cluster), events
        return replace(at, last=stop, within=0), events


def _check_reach(at: Position, bounds: Bounds) -> None:
    """Refuse a position that the log cannot be read on from. (Older versions did not note the cluster.)"""
    if at.cluster and at.cluster != bounds.cluster:
        raise PositionExpired(
            "the event log was copied into another database cluster since",
            hint="start again from the oldest kept event",
        )
    # Of a pack that is half read the other half is still wanted.
    read_to = max(at.seen_high, at.last - 1 if at.within else at.last)
    if read_to < max(bounds.pruned, bounds.restored):
        raise PositionExpired(
            "the event log no longer reaches back that far", hint="start again from the oldest kept event"
        )


def _unseen(snapshot: str) -> tuple[list[int], list[int]]:
    """Ranges that hold the transactions a `pg_snapshot` (in text form xmin:xmax:xip,xip) did not see: those that
    were open, the ones close together in one range, and all from its xmax on."""
    _, xmax, open_then = snapshot.split(":")
    froms, tos = [int(xmax)], [LAST_TRANSACTION]
    for xid in sorted((int(xid) for xid in open_then.split(",") if xid), reverse=True):
        if froms[-1] - xid <= SAME_RANGE:
            froms[-1] = xid
        else:
            froms.append(xid)
            tos.append(xid)
    return froms, tos


def _encode(position: Position, secret: bytes) -> str:
    body = base64.urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")
    return f"{body}.{_signature(body, secret)}"


def _decode(text: str, secret: bytes) -> Position:
    """A position that this store made; anything else is refused, so that none can ask for endless work."""
    body, _, signature = text.partition(".")
    if not hmac.compare_digest(signature.encode(), _signature(body, secret).encode()):
        raise BadCursor("this is not a position in the event log")
    raw = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
    return msgspec.json.decode(raw, type=Position)


def _signature(body: str, secret: bytes) -> str:
    return hmac.new(secret, body.encode(), hashlib.sha256).hexdigest()[:32]
