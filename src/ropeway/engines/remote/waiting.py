"""Wake-ups: one long poll for all listeners of this process, under way as long as anybody listens.

The server says with each answer how far it has heard, and is told so with the next question: what happens between
two questions is not missed. It is a hint all the same; whoever waits also looks by itself now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ropeway.core import fields
from ropeway.core.errors import RopewayError
from ropeway.core.job import DEFAULT_TENANT
from ropeway.engines.remote.connection import RemoteConnection, reader
from ropeway.observability import names
from ropeway.observability.logs import logger
from ropeway.runtime.backoff import Backoff
from ropeway.wire import models, paths
from ropeway.wire.requests import MAX_WAIT

if TYPE_CHECKING:
    from ropeway.engines.protocol import Subscription

#: Queues that one poll may name; listeners of more are left to their own looks.
MOST_QUEUES = 100


class RemoteSubscription:
    """A listener's place. A signal is kept for it until it waits."""

    def __init__(self, waiting: RemoteWaiting, queues: frozenset[str]) -> None:
        self._waiting = waiting
        self.queues = queues
        self.heard = asyncio.Event()

    async def wait(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self.heard.wait()
        except TimeoutError:
            return False
        self.heard.clear()
        return True

    async def close(self) -> None:
        await self._waiting.forget(self)


class RemoteWaiting(RemoteConnection):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._listeners: set[RemoteSubscription] = set()
        self._polled: frozenset[str] = frozenset()
        self._number: int | None = None
        self._poll: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()

    async def subscribe(self, queues: Collection[str], *, tenant: str = DEFAULT_TENANT) -> Subscription:
        self.check_tenant(tenant)
        for queue in queues:
            fields.check_name(queue, "queue")
        listener = RemoteSubscription(self, frozenset(queues))
        async with self._changing:
            if self._poll is None or not listener.queues <= self._polled:
                await self._listen_to(listener.queues | self._polled)
            self._listeners.add(listener)
        return listener

    async def _listen_to(self, queues: frozenset[str]) -> None:
        await self._stop()
        self._polled = queues
        # From here on the server knows what was heard: no signal is missed before the first poll has reached it.
        self._number = (await self._ask(0.0)).number
        self._poll = asyncio.create_task(self._go_on(), name="ropeway-wait")

    async def _go_on(self) -> None:
        backoff = Backoff(0.1, 5.0)
        while True:
            try:
                reply = await self._ask(MAX_WAIT)
            except RopewayError:
                # Whoever waits looks by itself meanwhile, and tells people that the server is away.
                await asyncio.sleep(backoff.next())
                continue
            except Exception as error:  # noqa: BLE001 - a listener that has silently gone deaf is worse than any error
                logger("ropeway.engine").error(names.LOOP_FAILED, loop="wait", error=repr(error), exc_info=error)
                await asyncio.sleep(backoff.next())
                continue
            backoff.reset()
            self._number = reply.number
            if reply.signalled:
                for listener in self._listeners:
                    listener.heard.set()

    async def _ask(self, wait: float) -> models.WaitReply:
        body = {"queues": sorted(self._polled)[:MOST_QUEUES], "wait": wait, "after": self._number}
        return await self.tell("POST", paths.WAIT, reader(models.WaitReply), body, repeatable=True, waits=wait)

    async def forget(self, listener: RemoteSubscription) -> None:
        self._listeners.discard(listener)
        async with self._changing:
            if not self._listeners:
                await self._stop()
                self._polled = frozenset()

    async def _stop(self) -> None:
        poll, self._poll = self._poll, None
        if poll is not None:
            poll.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await poll

    async def close(self) -> None:
        await self._stop()
        await super().close()
