"""The events of one job as they happen: server-sent events, read without touching the network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ropeway.core.fields import parse_id
from ropeway.core.states import TERMINAL_STATES
from ropeway.sdk.parts import JobId
from ropeway.wire import paths
from ropeway.wire.calls import Answer, Call

_ENDED = frozenset(state.value for state in TERMINAL_STATES)


class StreamEvent(msgspec.Struct, frozen=True):
    """One piece of news. `event` is its name; `seq` numbers transitions (progress and log lines have none)."""

    event: str
    data: dict[str, Any]
    seq: int | None = None


class JobStream:
    """Where a stream is. A connection that broke is followed by another one that goes on behind the last event."""

    def __init__(self, id: JobId, after: int | None = None) -> None:
        self._path = paths.job(parse_id(str(id)), "stream")
        self._last = after
        self._name = ""
        self._id: str | None = None
        self._data: list[str] = []
        #: The job has ended: there is nothing more to come.
        self.ended = False

    def call(self) -> Call[None]:
        headers = {"Accept": "text/event-stream"}
        if self._last is not None:
            headers["Last-Event-ID"] = str(self._last)
        return Call("GET", self._path, self._over, headers=headers, repeatable=True)

    def _over(self, _answer: Answer) -> None:
        """There is nothing left to tell."""
        self.ended = True

    def feed(self, line: str) -> Iterator[StreamEvent]:
        """Take one line; an empty one ends an event."""
        if line:
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                self._name = value
            elif field == "id":
                self._id = value
            elif field == "data":
                self._data.append(value)
            return
        name, id, text = self._name, self._id, "\n".join(self._data)
        self._name, self._id, self._data = "", None, []
        if not text:
            return
        data = msgspec.json.decode(text, type=dict[str, Any])
        seq = None if id is None else int(id)
        if seq is not None:
            self._last = seq
            self.ended = data.get("status") in _ENDED
        yield StreamEvent(name, data, seq)

    def broken(self) -> None:
        """The connection is gone: half an event is none."""
        self._name, self._id, self._data = "", None, []
