"""Many concurrent single calls, one batch: whatever arrived while the last batch was under way goes next."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Batches(Generic[Item, Answer]):
    """Hands items to `answer` in batches of at most `limit`, one batch at a time, without ever waiting for more.

    Waiting to gather a bigger batch is slower than going at once: while one batch is under way the next one
    gathers by itself. `answer` gets each item with its caller's future and sees to all of them; some may be
    answered after it has returned. If it raises, all callers of the batch get the error. An item whose caller gave
    up before its batch began is in no batch.
    """

    def __init__(
        self,
        answer: Callable[[list[tuple[Item, asyncio.Future[Answer]]]], Awaitable[None]],
        *,
        limit: int = 500,
    ) -> None:
        self._see_to = answer
        self._limit = limit
        self._waiting: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._task: asyncio.Task[None] | None = None

    def submit(self, item: Item) -> asyncio.Future[Answer]:
        """The answer for `item`, as a future: cheaper than a coroutine, and the caller has it at once."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._task is None:
            self._start()
        return future

    def cancel(self) -> None:
        """Give up the batch that is under way and all that waits; their callers are cancelled."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Wait for what was submitted."""
        while self._task is not None:
            await asyncio.wait([self._task])

    def _start(self) -> None:
        self._task = asyncio.create_task(self._run())
        # Not at the end of the coroutine: a task that is cancelled before its first step never gets there.
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and task.exception() is None:
            if self._waiting:  # since its last look
                self._start()
            return
        # Nobody is left to see to what waits behind a batch that was cancelled.
        while self._waiting:
            self._waiting.popleft()[1].cancel()

    async def _run(self) -> None:
        while self._waiting:
            size = min(self._limit, len(self._waiting))
            taken = [self._waiting.popleft() for _ in range(size)]
            batch = [entry for entry in taken if not entry[1].cancelled()]
            if not batch:
                continue
            try:
                await self._see_to(batch)
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the callers
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
            except BaseException:
                for _, future in batch:
                    future.cancel()
                raise


class Coalescer(Batches[Item, Answer]):
    """Batches that are answered all at once: `flush` answers per item, in order; an exception in place of an
    answer is raised to that item's caller."""

    def __init__(
        self,
        flush: Callable[[Sequence[Item]], Awaitable[Sequence[Answer | Exception]]],
        *,
        limit: int = 500,
    ) -> None:
        super().__init__(self._answer, limit=limit)
        self._flush = flush

    async def _answer(self, batch: list[tuple[Item, asyncio.Future[Answer]]]) -> None:
        answers = await self._flush([item for item, _ in batch])
        if len(answers) != len(batch):
            raise RuntimeError(f"{len(answers)} answers to {len(batch)} items")
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
