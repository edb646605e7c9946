"""Wake-ups by LISTEN/NOTIFY: hints, coalesced, sent after the commit and never inside anyone's transaction.

NOTIFY serialises commits (13,300 inserts/s fell to 2,000 with 20 listeners), so lanes are gathered and sent at
most every few milliseconds, the last ones too. A lost wake-up costs a poll interval, nothing else.

After a quiet moment the insert of one job takes its wake-up along, to be sent right behind its commit: a round
trip less, 0.3 of the 3.8 ms from an enqueue call to the handler of an idle worker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import asyncpg
import msgspec

from ropeway.core.errors import EngineError
from ropeway.engines.postgres.connection import BROKEN, Address, Channel, connect

#: Seconds between two NOTIFYs of one process.
PAUSE = 0.005

#: NOTIFY takes less than 8,000 bytes: about this many lanes of the longest names.
LANES_PER_NOTIFY = 25

#: Seconds before a listener that lost its connection tries again.
RECONNECT = 1.0

Lane = tuple[str, str]


class Wakeup(NamedTuple):
    """What NOTIFY is given."""

    channel: str
    message: str


class PostgresSubscription:
    """One listener: remembers a signal until it is asked for."""

    def __init__(self, wakeups: Wakeups, lanes: frozenset[Lane]) -> None:
        self._wakeups = wakeups
        self.lanes = lanes
        self.signalled = asyncio.Event()

    async def wait(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self.signalled.wait()
        except TimeoutError:
            return False
        self.signalled.clear()
        return True

    async def close(self) -> None:
        self._wakeups.forget(self)


class Wakeups:
    """Sends this process's wake-ups and hands incoming ones to its subscriptions."""

    def __init__(self, channel: str, sender: Channel, listen: Address, *, pooled: bool) -> None:
        self._channel = channel
        self._sender = sender
        self._listen_address = listen
        #: Behind a transaction pooler LISTEN hears nothing: then only this process's own signals and polling work.
        self._deaf = pooled
        self._subscriptions: set[PostgresSubscription] = set()
        self._pending: set[Lane] = set()
        self._sending: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._listener: asyncpg.Connection[asyncpg.Record] | None = None
        self._ready = asyncio.Event()

    async def subscribe(self, tenant: str, queues: Collection[str]) -> PostgresSubscription:
        subscription = PostgresSubscription(self, frozenset((tenant, queue) for queue in queues))
        self._subscriptions.add(subscription)
        if not self._deaf and (self._listening is None or self._listening.done()):
            self._ready.clear()
            self._listening = asyncio.create_task(self._listen())
            # Without a listener polling still works, so a slow or failed connection is no error here.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RECONNECT):
                    await self._ready.wait()
        return subscription

    def forget(self, subscription: PostgresSubscription) -> None:
        self._subscriptions.discard(subscription)

    def signal(self, lanes: Iterable[Lane], *, told: bool = False) -> None:
        """There may be work in these lanes: tell this process now, and the others soon unless they were `told`."""
        lanes = set(lanes)
        self._wake(lanes)
        if not told:
            self._pending |= lanes
            if self._pending and self._sending is None:
                self._sending = asyncio.create_task(self._send())

    def to_take_along(self, lane: Lane) -> Wakeup | None:
        """What a statement that makes work in this lane is to send right behind its commit; None when something
        was sent just now or is about to be: then `signal` sees to it."""
        if self._sending is not None:
            return None
        self._sending = asyncio.create_task(self._send(after=PAUSE))
        return Wakeup(self._channel, _message([lane]))

    async def close(self) -> None:
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=RECONNECT)
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
        self._listening = None

    def _wake(self, lanes: set[Lane]) -> None:
        for subscription in self._subscriptions:
            if subscription.lanes & lanes:
                subscription.signalled.set()

    async def _send(self, *, after: float = 0.0) -> None:
        """Send what is pending, then wait a little so that a burst becomes one message, with a trailing one."""
        try:
            if after:
                await asyncio.sleep(after)
            while self._pending:
                lanes = sorted(self._pending)
                self._pending.clear()
                for start in range(0, len(lanes), LANES_PER_NOTIFY):
                    message = _message(lanes[start : start + LANES_PER_NOTIFY])
                    # A hint that cannot be sent is dropped: pollers find the job.
                    with contextlib.suppress(EngineError, asyncpg.PostgresError):
                        await self._sender.value("SELECT pg_notify($1, $2)", self._channel, message)
                await asyncio.sleep(PAUSE)
        finally:
            self._sending = None

    async def _listen(self) -> None:
        """Hold the listening connection; after a loss connect again and wake everyone, for signals were missed."""
        while True:
            try:
                self._listener = await connect(self._listen_address)
            except EngineError:
                await asyncio.sleep(RECONNECT)
                continue
            lost = asyncio.Event()
            self._listener.add_termination_listener(lambda *_, lost=lost: lost.set())
            try:
                await self._listener.add_listener(self._channel, self._heard)
                self._ready.set()
                for subscription in self._subscriptions:
                    subscription.signalled.set()
                await lost.wait()
            except (*BROKEN, asyncpg.PostgresError):
                await asyncio.sleep(RECONNECT)
            finally:
                self._listener.terminate()

    def _heard(self, _connection: object, _pid: int, _channel: str, message: object) -> None:
        with contextlib.suppress(msgspec.MsgspecError):
            self._wake(set(msgspec.json.decode(str(message), type=list[tuple[str, str]])))


def _message(lanes: Sequence[Lane]) -> str:
    return msgspec.json.encode(lanes).decode()
