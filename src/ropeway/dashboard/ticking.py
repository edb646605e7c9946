"""The pulse of a page: a stream of server-sent events, one for each new look at the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Final

from starlette.responses import StreamingResponse

from ropeway.core.errors import RopewayError, Unavailable

if TYPE_CHECKING:
    from starlette.responses import Response

    from ropeway.dashboard.frame import Visit

#: Streams that one process holds open; pages beyond that ask now and then instead.
MOST_STREAMS: Final = 500

#: Seconds after which a stream says that it is still there. A page takes one that is silent for more than twice
#: as long to be held back by a proxy, or gone. It is an event: comments do not reach a page.
STILL_THERE: Final = 5.0


def stream(stopping: asyncio.Event) -> Callable[[Visit], Awaitable[Response]]:
    """The handler of the stream's address; its streams end when the server stops."""
    opened = 0

    async def ticks(visit: Visit) -> AsyncIterator[bytes]:
        nonlocal opened
        opened += 1
        try:
            yield b"retry: 2000\n\n"
            version = -1
            while not stopping.is_set():
                newest = await visit.frame.live.changed(visit.tenant, version, within=STILL_THERE)
                if newest == version:
                    yield b"event: still\ndata: %d\n\n" % version
                    continue
                version = newest
                yield b"event: tick\ndata: %d\n\n" % version
                visit.viewer = await visit.frame.sessions.viewer(visit.request)
        except RopewayError:
            # Signed out, or the store is away: the page asks again by itself and is told.
            return
        finally:
            opened -= 1

    async def handler(visit: Visit) -> Response:
        if opened >= MOST_STREAMS:
            raise Unavailable("too many pages are open", hint="this one goes on by asking now and then")
        return StreamingResponse(ticks(visit), media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    return handler
