"""The one shape of every loop: `run_once()` again and again, started and stopped the same way.

A loop never dies silently and never floods the log. While the engine is away it tries again with growing,
varied delays, and one `engine_away` and one `engine_back` line tell of it, however many loops share the engine
(they share an `Outage`). Anything else that `run_once` raises is a defect: it is logged with its traceback, once,
and the loop goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from ropeway.core.errors import ConfigurationError, EngineError, RopewayError
from ropeway.runtime.backoff import Backoff


class Log(Protocol):
    """The part of a logger that loops need; `ropeway.observability.logs.Logger` has it."""

    @property
    def debug(self) -> Callable[..., None]: ...
    @property
    def info(self) -> Callable[..., None]: ...
    @property
    def warning(self) -> Callable[..., None]: ...
    @property
    def error(self) -> Callable[..., None]: ...


class Outage:
    """Whether the engine answers, as seen by all who share it: one line when it goes, one when it is back."""

    def __init__(self, log: Log, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._missing: set[str] = set()
        self._since = 0.0

    @property
    def away(self) -> bool:
        return bool(self._missing)

    @property
    def seconds(self) -> float:
        """How long the engine has been away; 0 while it is there."""
        return self._clock() - self._since if self._missing else 0.0

    def failed(self, who: str, error: RopewayError) -> None:
        """`who` could not reach the engine."""
        if not self._missing:
            self._since = self._clock()
            self._log.warning("engine_away", error=str(error), seen_by=who)
        self._missing.add(who)

    def worked(self, who: str) -> None:
        """`who` had an answer. The engine is back when all who missed it had one."""
        if who not in self._missing:
            return
        self._missing.discard(who)
        if not self._missing:
            self._log.info("engine_back", away_seconds=round(self._clock() - self._since, 3))

    def forget(self, who: str) -> None:
        """`who` will not ask any more."""
        self._missing.discard(who)


class Loop:
    """Calls `run_once` every `interval` seconds, varied by `jitter` (a share of it) so that fleets spread out.

    `run_once` answers whether there is more to do: then it is called again at once. The first call comes within
    the first interval, or within a second if that is less and the loop is not `patient`. `wake()` calls it now.
    """

    def __init__(
        self,
        name: str,
        interval: float,
        run_once: Callable[[], Awaitable[object]],
        *,
        log: Log,
        jitter: float = 0.1,
        patient: bool = False,
        outage: Outage | None = None,
        backoff: Backoff | None = None,
        chance: Callable[[], float] = random.random,
        pause: Callable[[asyncio.Event, float], Awaitable[None]] | None = None,
    ) -> None:
        self.name = name
        self.interval = interval
        self._run_once = run_once
        self._jitter = jitter
        #: Seconds within which the first call comes.
        self.first_within = interval if patient else min(interval, 1.0)
        self._log = log
        self._outage = Outage(log) if outage is None else outage
        self._backoff = Backoff() if backoff is None else backoff
        self._chance = chance
        self._pause = wait_for if pause is None else pause
        self._wake = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        #: What was last logged of a defect: the same one again is not news.
        self._last_defect = ""

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Start it on the running event loop; once."""
        if self._task is not None:
            raise RuntimeError(f"the loop {self.name} was started before")
        self._task = asyncio.create_task(self._run(), name=f"ropeway {self.name}")

    def wake(self) -> None:
        """Run now instead of after the rest of the interval."""
        self._wake.set()

    async def stop(self, *, within: float = 5.0) -> None:
        """Let a call that is under way finish for at most `within` seconds, then cancel it. May be repeated."""
        self._stopping = True
        self._wake.set()
        if self._task is None:
            return
        done, _ = await asyncio.wait({self._task}, timeout=within)
        if not done:
            self._task.cancel()
            await asyncio.wait({self._task})
        self._outage.forget(self.name)

    async def _run(self) -> None:
        await self._pause(self._wake, self.first_within * self._chance())
        while not self._stopping:
            self._wake.clear()
            delay = await self._turn()
            if delay is None:
                # Others on this event loop get their turn too.
                await asyncio.sleep(0)
            elif not self._stopping:
                await self._pause(self._wake, delay)

    async def _turn(self) -> float | None:
        """One call; seconds until the next, None for at once."""
        try:
            more = await self._run_once()
        except EngineError as error:
            self._outage.failed(self.name, error)
            return self._backoff.next()
        except Exception as error:  # noqa: BLE001 - a loop that dies of a defect takes a promise with it
            if (defect := repr(error)) != self._last_defect:
                self._last_defect = defect
                self._log.error("loop_failed", loop=self.name, error=defect, exc_info=error)
            return self._backoff.next()
        self._outage.worked(self.name)
        self._backoff.reset()
        self._last_defect = ""
        return None if more else self.interval * (1 + self._jitter * (2 * self._chance() - 1))


async def wait_for(event: asyncio.Event, seconds: float) -> None:
    """Until the event is set, at most `seconds`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def patiently(
    call: Callable[[], Awaitable[object]],
    *,
    name: str,
    outage: Outage,
    stopping: asyncio.Event,
    backoff: Backoff | None = None,
) -> bool:
    """Try `call`, such as an engine's `open`, until it works; False when `stopping` was set before, also while a
    call is waiting for its answer.

    What waiting cannot put right (a wrong URL, a missing schema) is raised at once.
    """
    backoff = Backoff() if backoff is None else backoff
    while not stopping.is_set():
        try:
            if not await _unless(stopping, call):
                break
        except ConfigurationError:
            raise
        except EngineError as error:
            outage.failed(name, error)
            await wait_for(stopping, backoff.next())
        else:
            outage.worked(name)
            return True
    outage.forget(name)
    return False


async def _unless(stopping: asyncio.Event, call: Callable[[], Awaitable[object]]) -> bool:
    """Whether the call was done before the event was set; otherwise it is cancelled."""
    calling = asyncio.ensure_future(call())
    stopped = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait([calling, stopped], return_when=asyncio.FIRST_COMPLETED)
        if calling.done():
            calling.result()
            return True
        return False
    finally:
        for task in (calling, stopped):
            task.cancel()
        await asyncio.wait([calling, stopped])


async def stop_all(loops: Iterable[Loop], *, within: float = 5.0) -> None:
    """Stop loops together, so that the slowest one decides how long it takes."""
    await asyncio.gather(*(loop.stop(within=within) for loop in loops))
