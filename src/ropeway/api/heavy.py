"""Work on large bodies, beside the event loop: nobody with a small one waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

#: A body with more bytes is read in a thread. A smaller one is read sooner than a thread can be told of it.
SLOW_BYTES: Final = 262_144
#: Large bodies that are read at once. More would not be faster, and each takes memory; the others wait their turn.
THREADS: Final = 2


class Heavy:
    """The threads of one application. They start with the first large body."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="ropeway-bodies")

    async def run(self, work: Callable[..., T], *given: object) -> T:
        """What `work` says of `given`, or raises. It must not touch what belongs to the loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *given)

    async def by_size(self, size: int, work: Callable[..., T], *given: object) -> T:
        """As `run`, but here and now when it is about a body of so few bytes."""
        return work(*given) if size <= SLOW_BYTES else await self.run(work, *given)

    def close(self) -> None:
        """What waits its turn is dropped; what is under way ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)
