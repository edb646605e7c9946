"""Single calls that travel together, as one batch that is stored whole or not at all: what each caller is told.

An HTTP library spends far more on a request than Ropeway on a job, so jobs that are enqueued at the same time
share one. Nobody can tell by the answers: when a batch is refused, each job is sent by itself.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

from ropeway.core.errors import AccessError, ConfigurationError, EngineError, RopewayError

Item = TypeVar("Item")
Told = TypeVar("Told")

#: Bytes of jobs in one request: more of them gain nothing, and large ones would keep small ones waiting.
MOST_BYTES = 262_144


async def told_each(
    items: Sequence[Item],
    together: Callable[[Sequence[Item]], Awaitable[Sequence[Told]]],
    alone: Callable[[Item], Awaitable[Told]],
    *,
    size: Callable[[Item], int],
) -> list[Told | Exception]:
    """An answer, or what to raise, for each of them, in order. `size` is about how many bytes one takes."""
    told: list[Told | Exception] = []
    for part in _parts(items, size):
        told += await _told(part, together, alone)
    return told


async def _told(
    items: Sequence[Item],
    together: Callable[[Sequence[Item]], Awaitable[Sequence[Told]]],
    alone: Callable[[Item], Awaitable[Told]],
) -> Sequence[Told | Exception]:
    if len(items) == 1:
        return [await _or_error(alone(items[0]))]
    try:
        return await together(items)
    except (EngineError, AccessError, ConfigurationError) as error:
        # The same would be said to each of them; nobody shares an error with somebody else.
        return [copy.copy(error) for _ in items]
    except RopewayError:
        return await asyncio.gather(*(_or_error(alone(item)) for item in items))


async def _or_error(call: Awaitable[Told]) -> Told | Exception:
    try:
        return await call
    except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to that caller
        return error


def _parts(items: Sequence[Item], size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """In order, each part small enough for one request; an item that is larger goes alone."""
    part: list[Item] = []
    taken = 0
    for item in items:
        length = size(item)
        if part and taken + length > MOST_BYTES:
            yield part
            part, taken = [], 0
        part.append(item)
        taken += length
    if part:
        yield part
