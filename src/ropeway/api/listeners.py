"""Those who listen to events: each has a place for what it has not taken yet, and the place is small."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

if TYPE_CHECKING:
    from ropeway.core.events import Event
    from ropeway.core.job import Job
    from ropeway.service.access import Principal

#: Pages and events that a slow listener may be behind.
MOST_BEHIND = 2_000

Wants = Callable[["Event"], bool]


class News(msgspec.Struct):
    """What a listener is told at once: events, and the place in the log after them; or a look at its job."""

    events: list[Event]
    position: str
    job: Job | None = None


class Listener:
    """One stream's place: what it wants, and what it has not taken yet."""

    def __init__(
        self,
        tenant: str,
        *,
        job_id: UUID | None = None,
        wants: Wants | None = None,
        principal: Principal | None = None,
    ) -> None:
        self.tenant = tenant
        #: Who listens, if that can change: the stream ends when the key is good no more.
        self.principal = principal
        self.job_id = job_id
        self.wants = wants
        #: Whether it is worth looking for progress and log lines.
        self.running = False
        #: The place in the log up to which this listener has been served, whether or not something was for it.
        self.position = ""
        #: It did not keep up, or the log was lost, or its key is good no more: it gets nothing more.
        self.cut = False
        self._news: list[News] = []
        self._behind = 0
        self._waiting: asyncio.Future[None] | None = None

    def give(self, news: News) -> None:
        if self.cut:
            return
        if news.job is not None and self._news and self._news[-1].job is not None:
            # Of two looks at a job only the newer one is worth telling.
            self._news[-1] = news
            return
        self._behind += max(1, len(news.events))
        if self._behind > MOST_BEHIND:
            self.cut_off()
            return
        self._news.append(news)
        self._wake()

    def cut_off(self) -> None:
        self.cut = True
        self._news = []
        self._wake()

    async def take(self, timeout: float) -> list[News]:
        """All that came since the last time; empty when nothing did within `timeout` seconds."""
        if not self._news and not self.cut:
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            timer = loop.call_later(timeout, self._wake)
            try:
                await self._waiting
            finally:
                timer.cancel()
                self._waiting = None
        news, self._news, self._behind = self._news, [], 0
        return news

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
