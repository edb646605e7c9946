"""Waiting for jobs to end: however many are awaited, they are asked for together.

Each awaited job is looked at soon (20 ms) and then ever more rarely (up to once a second); looks that fall due at
about the same time are one question to the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

from ropeway.core.errors import NotFound, Unavailable
from ropeway.core.job import Job
from ropeway.core.states import TERMINAL_STATES
from ropeway.engines.protocol import Engine

FIRST_LOOK = 0.02
LAST_LOOK = 1.0
GROWTH = 1.5

#: A look may come earlier than it is due by this share of its delay, to go together with others.
EARLY = 0.25

#: Ids in one question.
BATCH = 500

_Key = tuple[str, UUID]


class _Awaited:
    """One job that someone waits for, and when to look at it next."""

    __slots__ = ("delay", "due", "waiting")

    def __init__(self, now: float) -> None:
        self.waiting: set[asyncio.Future[Job]] = set()
        self.delay = FIRST_LOOK
        self.due = now + FIRST_LOOK

    def look_later(self, now: float) -> None:
        self.delay = min(self.delay * GROWTH, LAST_LOOK)
        self.due = now + self.delay

    def answer(self, answer: Job | Exception) -> None:
        for future in self.waiting:
            if not future.done():
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)


class Results:
    """The one poller of an engine; it runs only while someone waits."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._awaited: dict[_Key, _Awaited] = {}
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def ended(self, id: UUID, tenant: str) -> Job:
        """The job, once it has ended. Raises NotFound when there is no such job (any more)."""
        loop = asyncio.get_running_loop()
        key = (tenant, id)
        awaited = self._awaited.get(key)
        if awaited is None:
            awaited = self._awaited[key] = _Awaited(loop.time())
            self._arrived.set()
        future: asyncio.Future[Job] = loop.create_future()
        awaited.waiting.add(future)
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._poll())
        try:
            return await future
        finally:
            awaited.waiting.discard(future)
            if not awaited.waiting and self._awaited.get(key) is awaited:
                del self._awaited[key]

    async def close(self) -> None:
        """Nobody will look any more: whoever still waits is told so."""
        for awaited in self._awaited.values():
            awaited.answer(Unavailable("the engine was closed while a result was awaited"))
        self._awaited.clear()
        if self._task is not None:
            # A question that is under way is waited for: a connection that is cancelled half-way cannot be closed
            # in good order.
            self._arrived.set()
            await asyncio.wait({self._task})

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        while self._awaited:
            wait = min(awaited.due for awaited in self._awaited.values()) - loop.time()
            if wait > 0:
                self._arrived.clear()
                try:
                    async with asyncio.timeout(wait):
                        await self._arrived.wait()
                except TimeoutError:
                    pass
                continue
            now = loop.time()
            due = [key for key, awaited in self._awaited.items() if awaited.due - now <= awaited.delay * EARLY]
            for tenant in {tenant for tenant, _ in due}:
                await self._look(tenant, [id for its, id in due if its == tenant])

    async def _look(self, tenant: str, ids: Sequence[UUID]) -> None:
        for start in range(0, len(ids), BATCH):
            batch = ids[start : start + BATCH]
            answers: Sequence[Job | Exception | None]
            try:
                answers = await self._engine.get(batch, tenant=tenant)
            except Unavailable:
                answers = []  # the store is away: whoever waits has a time limit of their own
                self._look_later(tenant, batch)
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to those who wait
                answers = [error] * len(batch)
            for id, answer in zip(batch, answers, strict=False):
                self._tell(tenant, id, answer)

    def _tell(self, tenant: str, id: UUID, answer: Job | Exception | None) -> None:
        if isinstance(answer, Job) and answer.state not in TERMINAL_STATES:
            self._look_later(tenant, [id])
            return
        awaited = self._awaited.pop((tenant, id), None)
        if awaited is not None:
            awaited.answer(NotFound(f"there is no job {id}", hint=_GONE) if answer is None else answer)

    def _look_later(self, tenant: str, ids: Sequence[UUID]) -> None:
        now = asyncio.get_running_loop().time()
        for id in ids:
            if awaited := self._awaited.get((tenant, id)):
                awaited.look_later(now)


_GONE = "it was deleted, its time is over, or the transaction that enqueued it has not committed"
