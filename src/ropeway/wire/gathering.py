"""Single calls that travel together, as one batch that is stored whole or not at all: what each caller is told.

An HTTP library spends far more on a request than Ropeway on a job, so jobs that are enqueued at the same time
share one. Nobody can tell by the answers: when a batch is refused, each job is sent by itself, and one that has to
wait keeps no other waiting.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from ropeway.core.errors import AccessError, EngineError, Indeterminate, RopewayError
from ropeway.wire.calls import Divisible, of_a_part

Item = TypeVar("Item")
Told = TypeVar("Told")

#: Bytes of jobs in one request: more of them gain nothing, and large ones would keep small ones waiting.
MOST_BYTES = 262_144

#: Jobs of refused requests that are sent alone for the first time, at once: fewer than a transport sends, so that
#: later calls find a turn.
ALONE_AT_ONCE = 4


class Together(Generic[Item, Told]):
    """Answers batches of single calls.

    `together` sends some of them, or one, as one request; what may be of one of them is raised at once, not waited
    for (`Call.hasty`). `alone` sends one with all patience: it goes on from the error that a request with it ended
    with. `size` is about how many bytes one takes. `keyed`: all have keys, so that one that may have been stored
    may be sent again.
    """

    def __init__(
        self,
        together: Callable[[Sequence[Item]], Awaitable[Sequence[Told]]],
        alone: Callable[[Item, RopewayError], Awaitable[Told]],
        *,
        size: Callable[[Item], int],
        keyed: bool,
    ) -> None:
        self._together = together
        self._alone = alone
        self._size = size
        self._keyed = keyed
        self._turns = asyncio.Semaphore(ALONE_AT_ONCE)
        self._apart: set[asyncio.Task[Told]] = set()

    async def answer(self, batch: Sequence[tuple[Item, asyncio.Future[Told]]]) -> None:
        """See to these callers. It does not wait for those that are sent alone."""
        for part in _parts(batch, self._size):
            # Some may have given up while the parts before theirs were under way.
            if waiting := [(item, future) for item, future in part if not future.done()]:
                await self._send(waiting)

    def cancel(self) -> None:
        """Give up what is sent alone; the callers are cancelled."""
        for task in self._apart:
            task.cancel()

    async def close(self) -> None:
        """Wait for what is sent alone."""
        while self._apart:
            await asyncio.wait(self._apart)

    async def _send(self, part: Sequence[tuple[Item, asyncio.Future[Told]]]) -> None:
        try:
            answers = await self._together([item for item, _ in part])
            told = list(zip(part, answers, strict=True))
        except RopewayError as error:
            self._refused(part, error)
        except Exception as error:  # noqa: BLE001 - it belongs to the callers of this part, not of the others
            for _, future in part:
                _raise_to(future, error)
        else:
            for (_, future), answer in told:
                if not future.done():
                    future.set_result(answer)

    def _refused(self, part: Sequence[tuple[Item, asyncio.Future[Told]]], error: RopewayError) -> None:
        if isinstance(error, EngineError | AccessError) and not (self._keyed and isinstance(error, Divisible)):
            # The same would be said to each of them; nobody shares an error with somebody else.
            for _, future in part:
                _raise_to(future, copy.copy(error))
            return
        # What one was told is the end of its first try. What several were told only leaves each its doubt.
        told_each = len(part) == 1 or isinstance(error, Indeterminate)
        for item, future in part:
            if not future.done():
                self._send_alone(item, future, copy.copy(error) if told_each else None)

    def _send_alone(self, item: Item, future: asyncio.Future[Told], after: RopewayError | None) -> None:
        task = asyncio.create_task(self._by_itself(item, after))
        self._apart.add(task)
        task.add_done_callback(lambda task: self._tell(task, future))
        # As with any call: nobody wants the answer, so no more is tried.
        future.add_done_callback(lambda _: task.cancel())

    async def _by_itself(self, item: Item, after: RopewayError | None) -> Told:
        if after is None:
            # Not for longer: one that waits for its next try must not keep those behind it from their first.
            async with self._turns:
                try:
                    (answer,) = await self._together([item])
                except RopewayError as error:
                    if not of_a_part(error):
                        raise
                    after = error
                else:
                    return answer
        return await self._alone(item, after)

    def _tell(self, task: asyncio.Task[Told], future: asyncio.Future[Told]) -> None:
        self._apart.discard(task)
        if task.cancelled():
            future.cancel()
        elif (error := task.exception()) is not None:
            _raise_to(future, error)
        elif not future.done():
            future.set_result(task.result())


def _raise_to(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _parts(
    batch: Sequence[tuple[Item, asyncio.Future[Told]]], size: Callable[[Item], int]
) -> Iterator[list[tuple[Item, asyncio.Future[Told]]]]:
    """In order, each part small enough for one request; an item that is larger goes alone."""
    part: list[tuple[Item, asyncio.Future[Told]]] = []
    taken = 0
    for item, future in batch:
        length = size(item)
        if part and taken + length > MOST_BYTES:
            yield part
            part, taken = [], 0
        part.append((item, future))
        taken += length
    if part:
        yield part
