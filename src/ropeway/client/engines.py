"""Which engine a call uses: one per event loop, opened when it is first needed.

Async code uses an engine of the loop it runs on; sync code goes through one background thread with a loop of its
own. Only a store that lives in the process (`memory://`) is the same for all of them.

Engines are closed by `aclose`, and otherwise when their loop ends the way `asyncio.run` ends it, or with the
program.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ropeway.client.hopping import hopping
from ropeway.client.portal import Portal
from ropeway.client.results import Results
from ropeway.core.errors import UsageError
from ropeway.engines.capabilities import Capability
from ropeway.engines.protocol import Engine

T = TypeVar("T")
Loop = asyncio.AbstractEventLoop

#: What a forked process has inherited. It belongs to the parent: nothing of it may be closed here, not even by
#: the garbage collector.
_inherited: list[object] = []


class _Place:
    """An event loop's engine and what hangs on it."""

    __slots__ = ("closer", "engine", "opening", "results")

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.results: Results | None = None
        self.opening: asyncio.Task[None] | None = None
        self.closer: AsyncGenerator[None, None] | None = None

    def use(self, engine: Engine) -> None:
        self.engine = engine
        self.results = Results(engine)


class Engines:
    """All engines of one app in this process. `make` makes one, not yet opened."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._start_over()

    def _start_over(self) -> None:
        self._places: dict[Loop, _Place] = {}
        self._portal: Portal | None = None
        #: The only engine there is, if it lives in the process.
        self._shared: Engine | None = None
        #: The process that has opened something.
        self._pid: int | None = None

    # ── From async code ──

    def ready(self) -> Engine | None:
        """The running loop's engine, if it is open."""
        place = self._places.get(asyncio.get_running_loop())
        return None if place is None or os.getpid() != self._pid else place.engine

    async def here(self) -> Engine:
        """The running loop's engine, opened if it is not. What opening raises passes through."""
        engine = (await self._place()).engine
        assert engine is not None  # noqa: S101 - the place is open
        return engine

    async def results(self) -> Results:
        """Where results are awaited on the running loop."""
        results = (await self._place()).results
        assert results is not None  # noqa: S101 - the place is open
        return results

    async def _place(self) -> _Place:
        self._check_fork()
        loop = asyncio.get_running_loop()
        place = self._places.get(loop)
        if place is None:
            self._forget_closed_loops()
            place = self._places[loop] = _Place()
            self._pid = os.getpid()
            place.opening = loop.create_task(self._open(loop, place))
            # Callers are told; if all of them have gone, nobody needs to be.
            place.opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        if place.engine is None and place.opening is not None:
            # One caller's cancellation is not the others'.
            await asyncio.shield(place.opening)
        return place

    async def _open(self, loop: Loop, place: _Place) -> None:
        try:
            engine = self._shared or self._make()
            if Capability.SHARED not in engine.capabilities:
                engine = self._share(engine)
            try:
                await engine.open()
            except BaseException:
                await engine.close()
                raise
        except BaseException:
            self._places.pop(loop, None)  # the next call tries again
            raise
        place.use(engine)
        place.closer = self._closed_with_loop(loop, place, engine)
        await anext(place.closer)

    async def _closed_with_loop(self, loop: Loop, place: _Place, engine: Engine) -> AsyncGenerator[None, None]:
        """A generator left half-way is finished by asyncio before it closes a loop: here the engine is closed."""
        pid = os.getpid()
        try:
            yield
        finally:
            if os.getpid() == pid:
                if self._places.get(loop) is place:
                    del self._places[loop]
                if place.results is not None:
                    await place.results.close()
                await engine.close()

    def adopt(self, engine: Engine) -> None:
        """Use this open engine, which stays its owner's to close, on the running loop from now on."""
        self._check_fork()
        loop = asyncio.get_running_loop()
        before = self._places.get(loop)
        if Capability.SHARED not in engine.capabilities:
            engine = hopping(engine, loop)
            self._shared = engine
        if before is not None and before.engine is engine:
            return  # it is the app's own
        place = self._places[loop] = _Place()
        place.use(engine)
        self._pid = os.getpid()
        if before is not None and before.closer is not None:
            place.opening = loop.create_task(before.closer.aclose())  # kept, or it might be collected half-way

    async def aclose(self) -> None:
        """Close the running loop's engine (an adopted one is only let go of) and the background thread."""
        place = self._places.pop(asyncio.get_running_loop(), None)
        if place is not None and place.opening is not None:
            await asyncio.wait({place.opening})
        if place is not None and place.closer is not None:
            await place.closer.aclose()
        if self._portal is not None:
            await asyncio.to_thread(self.close)

    # ── From sync code ──

    def run(self, work: Callable[[], Coroutine[Any, Any, T]], *, instead: str) -> T:
        """Await `work()` on the background thread. `instead` is what to call where an event loop is running."""
        return self._the_portal(instead).run(work())

    def start(self, work: Callable[[], Coroutine[Any, Any, T]], *, instead: str) -> concurrent.futures.Future[T]:
        return self._the_portal(instead).start(work())

    def _the_portal(self, instead: str) -> Portal:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise UsageError("this call would block the event loop that is running here", hint=f"await {instead}")
        self._check_fork()
        with self._lock:
            if self._portal is None:
                self._pid = os.getpid()
                self._portal = Portal(self._close_here)
            return self._portal

    def close(self) -> None:
        """Close the background thread and its engine, if there is one. It is started again when it is needed."""
        with self._lock:
            portal, self._portal = self._portal, None
        if portal is not None:
            portal.close()

    async def _close_here(self) -> None:
        place = self._places.pop(asyncio.get_running_loop(), None)
        if place is not None and place.closer is not None:
            await place.closer.aclose()

    # ── The one store of memory:// ──

    def _share(self, engine: Engine) -> Engine:
        with self._lock:
            if self._shared is None:
                self._shared = hopping(engine)
            return self._shared

    # ── Tests ──

    @contextmanager
    def replaced(self, stand_in: Engines) -> Iterator[None]:
        """Inside the block, whatever is asked of these engines is asked of `stand_in`, from every thread."""
        if "here" in vars(self):
            raise UsageError(
                "another test kit has taken hold of this app already", hint="use one `ropeway` fixture per test"
            )
        asked = ("ready", "here", "results", "adopt", "aclose", "run", "start", "close")
        vars(self).update({name: getattr(stand_in, name) for name in asked})
        try:
            yield
        finally:
            for name in asked:
                del vars(self)[name]

    # ── Forks ──

    def _check_fork(self) -> None:
        if self._pid is not None and self._pid != os.getpid():
            raise UsageError(
                f"this app was opened in process {self._pid} and is used in {os.getpid()}, after a fork",
                hint="call app.after_fork() first thing in the new process, or fork before the app is used",
            )

    def after_fork(self) -> None:
        """In a process that was forked: forget what belongs to the parent, and start afresh."""
        if self._pid is not None and self._pid != os.getpid():
            _inherited.append((self._places, self._portal, self._shared, self._lock))
            self._lock = threading.Lock()  # the parent may have held it
            self._start_over()

    def _forget_closed_loops(self) -> None:
        for loop in list(self._places):  # a copy, because other threads come and go meanwhile
            if loop.is_closed():
                self._places.pop(loop, None)
