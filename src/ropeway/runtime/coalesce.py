"""Many concurrent single calls, one batch: whatever arrived while the last batch was under way goes next."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Coalescer(Generic[Item, Answer]):
    """Hands items to `flush` in batches of at most `limit`, one batch at a time, without ever waiting for more.

    Waiting to gather a bigger batch is slower than flushing at once: while one batch is under way the next one
    gathers by itself. `flush` answers per item, in order; an exception in place of an answer is raised to that
    item's caller. If `flush` itself raises, all callers of the batch get the error.
    """

    def __init__(
        self,
        flush: Callable[[Sequence[Item]], Awaitable[Sequence[Answer | Exception]]],
        *,
        limit: int = 500,
    ) -> None:
        self._flush = flush
        self._limit = limit
        self._waiting: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._task: asyncio.Task[None] | None = None

    def submit(self, item: Item) -> asyncio.Future[Answer]:
        """The answer for `item`, as a future: cheaper than a coroutine, and the caller has it at once."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return future

    async def close(self) -> None:
        """Wait for what was submitted."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._waiting:
                size = min(self._limit, len(self._waiting))
                batch = [self._waiting.popleft() for _ in range(size)]
                await self._answer(batch)
        except BaseException:
            # Nobody is left to flush what waits behind a batch that was cancelled.
            while self._waiting:
                self._waiting.popleft()[1].cancel()
            raise
        finally:
            self._task = None

    async def _answer(self, batch: list[tuple[Item, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._flush([item for item, _ in batch])
            if len(answers) != len(batch):
                raise RuntimeError(f"{len(answers)} answers to {len(batch)} items")  # noqa: TRY301
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the callers
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
