"""Whether the one who asked is still there. Once the whole body has been read: both take what comes after it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]


async def until_gone(receive: Receive) -> None:
    """Returns when the client has gone; whatever else comes after the body is nothing to anybody."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return


async def is_present(receive: Receive) -> bool:
    """Whether the client is still there, as far as can be told without waiting."""
    asking = asyncio.ensure_future(receive())
    # One turn: a server answers at once that a client has gone, and otherwise has nothing more to say.
    await asyncio.sleep(0)
    if asking.done():
        return bool(asking.result()["type"] != "http.disconnect")
    asking.cancel()
    await asyncio.wait([asking])
    return True
