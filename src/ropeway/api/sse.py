"""Server-sent events: the text of streams. `id:` is where to go on from; a comment now and then keeps the line."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from ropeway.api.listeners import Listener, News, Wants
from ropeway.api.streams import Streams
from ropeway.core.errors import BadCursor, NotFound, RopewayError
from ropeway.core.states import TERMINAL_STATES, State
from ropeway.service.jobs import Jobs
from ropeway.wire.objects import event_object, log_object, progress_object

if TYPE_CHECKING:
    from ropeway.core.events import Event
    from ropeway.core.job import Job, Progress
    from ropeway.engines.protocol import Engine
    from ropeway.service.access import Principal

#: Seconds after which a quiet stream says that it is still there.
COMMENT_SECONDS = 15.0

COMMENT = b": still here\n\n"

Sign = Callable[[str], str]

_encode = msgspec.json.Encoder().encode


class Chunks:
    """A stream's text, and what is to be done when nobody wants it any more, also when nobody ever took any."""

    def __init__(self, text: AsyncGenerator[bytes, None], listener: Listener, streams: Streams) -> None:
        self._text = text
        self._listener = listener
        self._streams = streams
        self._afterwards: Callable[[], None] | None = None

    def afterwards(self, do: Callable[[], None]) -> None:
        """What is to be done once, when the stream is closed."""
        self._afterwards = do

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._listener.cut:
            # Also in the middle of what there was before.
            raise StopAsyncIteration
        return await self._text.__anext__()

    async def aclose(self) -> None:
        try:
            await self._text.aclose()
        finally:
            self._streams.detach(self._listener)
            if self._afterwards is not None:
                afterwards, self._afterwards = self._afterwards, None
                afterwards()


def frame(name: str, data: Any, id: str | None = None) -> bytes:
    """One event. JSON has no bare line breaks, so its text is one line of data."""
    head = f"event: {name}\ndata: " if id is None else f"id: {id}\nevent: {name}\ndata: "
    return head.encode() + _encode(data) + b"\n\n"


# ── One job ──


async def job_stream(
    engine: Engine,
    streams: Streams,
    tenant: str,
    id: UUID,
    after: int,
    *,
    missing: Callable[[], NotFound],
    principal: Principal | None = None,
) -> Chunks | None:
    """All past events of a job with a `seq` beyond `after`, then what happens, until it ends.

    None when it has ended and nothing is left to tell: whoever asks need not ask again. Raises `missing()`.
    """
    listener = Listener(tenant, job_id=id, principal=principal)
    streams.open(listener)
    try:
        await streams.attach(listener)
        (job,) = await engine.get([id], tenant=tenant)
        # After the job: what ended it is then among the events.
        events = [] if job is None else await engine.events_of(id, tenant=tenant)
    except BaseException:
        streams.detach(listener)
        raise
    past = [event for event in events if event.seq > after]
    if job is None or (not past and job.state in TERMINAL_STATES):
        streams.detach(listener)
        if job is None:
            raise missing()
        return None
    telling = _JobTelling(engine, listener, job, after)
    return Chunks(telling.text(past), listener, streams)


class _JobTelling:
    """What one listener has been told of its job."""

    def __init__(self, engine: Engine, listener: Listener, job: Job, after: int) -> None:
        self._jobs = Jobs(engine, tenant=listener.tenant)
        self._listener = listener
        self._job = job
        self._seq = after
        self._line = 0
        self._progress: Progress | None = None

    async def text(self, past: list[Event]) -> AsyncGenerator[bytes, None]:
        listener = self._listener
        ended = self._job.state in TERMINAL_STATES
        listener.running = self._job.state is State.RUNNING
        try:
            for event in past[:-1] if ended else past:
                yield self._told(event)
            for chunk in await self._notes(self._job):
                yield chunk
            if ended:
                # What the last run said comes before its end, for nothing comes after it.
                yield self._told(past[-1])
            while not ended:
                news = await listener.take(COMMENT_SECONDS)
                if listener.cut:
                    return
                if not news:
                    yield COMMENT
                for one in news:
                    for event in one.events:
                        if event.seq <= self._seq:
                            continue
                        if listener.running:
                            for chunk in await self._notes(await self._jobs.get(event.job_id)):
                                yield chunk
                        yield self._told(event)
                        ended = event.state in TERMINAL_STATES
                        listener.running = event.state is State.RUNNING
                    if one.job is not None and not ended:
                        for chunk in await self._notes(one.job):
                            yield chunk
        except RopewayError:
            # The status has been sent: the stream ends, and the client comes back for the rest.
            return

    def _told(self, event: Event) -> bytes:
        self._seq = event.seq
        return frame(event.event.value, event_object(event), str(event.seq))

    async def _notes(self, job: Job) -> list[bytes]:
        """Log lines and progress that were not told yet. They have no id: they are no events of the log."""
        ids = {"job_id": str(job.id), "run_id": str(job.id)}
        told = []
        for line in await self._jobs.logs(job.id, after=self._line):
            self._line = line.n
            told.append(frame("job.log", {**ids, **log_object(line)}))
        if job.progress is not None and job.progress != self._progress:
            self._progress = job.progress
            told.append(frame("job.progress", {**ids, **progress_object(job.progress)}))
        return told


# ── All jobs of a tenant ──


async def tail_stream(
    engine: Engine,
    streams: Streams,
    tenant: str,
    position: str | None,
    wants: Wants,
    sign: Sign,
    *,
    live: bool = False,
    principal: Principal | None = None,
) -> Chunks:
    """The tenant's events after `position` (None: the oldest kept), or `live`: from now on.

    Raises BadCursor, PositionExpired.
    """
    listener = Listener(tenant, wants=wants, principal=principal)
    streams.open(listener)
    first: list[Event] = []
    try:
        if live:
            await streams.attach(listener)
        else:
            page = await engine.tail(position, tenant=tenant)
            first, position = page.events, page.position
    except BaseException:
        streams.detach(listener)
        raise
    telling = _Tail(engine, streams, listener, sign)
    return Chunks(telling.text(first, position), listener, streams)


class _Tail:
    def __init__(self, engine: Engine, streams: Streams, listener: Listener, sign: Sign) -> None:
        self._engine = engine
        self._streams = streams
        self._listener = listener
        self._sign = sign
        #: Events that were told while the listener was being attached: it may be given them again.
        self._twice: set[tuple[UUID, int]] = set()

    async def text(self, first: list[Event], position: str | None) -> AsyncGenerator[bytes, None]:
        listener = self._listener
        try:
            if position is not None:
                if first:
                    yield self._told(first, position)
                async for events, place in self._older(position):
                    position = place
                    yield self._told(events, place)
                await self._streams.attach(listener)
                async for events, place in self._older(position):
                    self._twice |= {(event.job_id, event.seq) for event in events}
                    yield self._told(events, place)
            yield self._place(listener.position)
            while True:
                news = await listener.take(COMMENT_SECONDS)
                if listener.cut:
                    return
                text = b"".join(self._fresh(news))
                yield text or self._place(listener.position)
        except RopewayError:
            # The status has been sent: the stream ends, and the client comes back with its last id.
            return

    async def _older(self, position: str) -> AsyncIterator[tuple[list[Event], str]]:
        while True:
            page = await self._engine.tail(position, tenant=self._listener.tenant)
            position = page.position
            if not page.events and page.whole:
                return
            yield page.events, position

    def _fresh(self, news: Iterable[News]) -> Iterable[bytes]:
        for one in news:
            events = []
            for event in one.events:
                if (event.job_id, event.seq) in self._twice:
                    self._twice.discard((event.job_id, event.seq))
                else:
                    events.append(event)
            yield self._told(events, one.position)

    def _told(self, events: list[Event], position: str) -> bytes:
        """Only the last of a page carries its place: from there on nothing is missing."""
        wants = self._listener.wants
        wanted = [event for event in events if wants is None or wants(event)]
        parts = [frame(event.event.value, event_object(event)) for event in wanted[:-1]]
        parts += [frame(event.event.value, event_object(event), self._sign(position)) for event in wanted[-1:]]
        return b"".join(parts) or self._place(position)

    def _place(self, position: str) -> bytes:
        """No event, but where to go on from: a stream in which little happens must not grow too old to resume."""
        return b": still here\nid: " + self._sign(position).encode() + b"\n\n"


def parse_seq(text: str | None) -> int:
    """The `Last-Event-ID` of a job's stream."""
    if text is None or text == "":
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise BadCursor("Last-Event-ID is not the id of an event of this stream", hint="start without it")
    return int(text)
