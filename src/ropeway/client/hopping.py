"""A store that lives in one process belongs to one event loop; callers on other loops hop there."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from ropeway.engines.protocol import Engine, Subscription

T = TypeVar("T")

#: How often someone who waits for the home loop looks whether it is still there.
LOOK_SECONDS = 0.5


class Hopping:
    """Looks like the engine it holds. The first loop that uses it is its home; when that is gone, the next one."""

    def __init__(self, engine: Engine, home: asyncio.AbstractEventLoop | None = None) -> None:
        self._engine = engine
        self._home = home
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._engine, name)
        if not inspect.iscoroutinefunction(value):
            return value
        return lambda *args, **kwargs: self._hop(lambda: value(*args, **kwargs))

    async def subscribe(self, *args: Any, **kwargs: Any) -> Subscription:
        subscription = await self._hop(lambda: self._engine.subscribe(*args, **kwargs))
        return _HoppingSubscription(self._hop, subscription)

    def move(self, home: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._home = home

    async def _hop(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        here = asyncio.get_running_loop()
        while True:
            home = self._home_for(here)
            if home is here:
                return await call()
            away = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), home))
            try:
                while not (await asyncio.wait({away}, timeout=LOOK_SECONDS))[0] and home.is_running():
                    pass
            except asyncio.CancelledError:
                away.cancel()
                raise
            if away.done() and not away.cancelled():
                return away.result()
            # The loop ended before the call's turn came: a call is one step, so nothing of it was done.

    def _home_for(self, here: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._home is None or not self._home.is_running():
                self._home = here
            return self._home


class _HoppingSubscription:
    def __init__(self, hop: Callable[[Callable[[], Any]], Any], subscription: Subscription) -> None:
        self._hop = hop
        self._subscription = subscription

    async def wait(self, timeout: float) -> bool:
        return cast("bool", await self._hop(lambda: self._subscription.wait(timeout)))

    async def close(self) -> None:
        await self._hop(self._subscription.close)


def hopping(engine: Engine, home: asyncio.AbstractEventLoop | None = None) -> Engine:
    """That engine, usable from any loop."""
    if isinstance(engine, Hopping):
        if home is not None:
            engine.move(home)
        return cast("Engine", engine)
    return cast("Engine", Hopping(engine, home))
