"""Blocking calls of async code in the caller's own thread.

A sync test drains handlers of both kinds. `async def` needs a running loop; `def` must not see one, and must run
in the test's own thread, where the test's database transaction and its thread-locals are. So the loop belongs to
that thread and is left each time a plain function is wanted: the function runs, then the loop goes on.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ropeway.core.errors import UsageError

T = TypeVar("T")

_current: contextvars.ContextVar[_Stage | None] = contextvars.ContextVar("ropeway_stage", default=None)


class Stages:
    """A loop for each thread that makes blocking calls, kept until `close`."""

    def __init__(self) -> None:
        self._here = threading.local()
        self._runners: list[asyncio.Runner] = []

    def run(self, work: Callable[[], Coroutine[Any, Any, T]], *, instead: str) -> T:
        """Await `work()`. `instead` is what to call where an event loop is running."""
        __tracebackhide__ = True
        if _loop_is_running():
            raise UsageError("this call would block the event loop that is running here", hint=f"await {instead}")
        return _Stage(self._loop()).run(work())

    def _loop(self) -> asyncio.AbstractEventLoop:
        runner: asyncio.Runner | None = getattr(self._here, "runner", None)
        if runner is None:
            # With a factory the runner leaves the thread's current event loop, which may be another's, alone.
            runner = self._here.runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
            self._runners.append(runner)
        return runner.get_loop()

    def close(self) -> None:
        """Cancel what handlers left behind and close the loops."""
        runners, self._runners, self._here = self._runners, [], threading.local()
        if not _loop_is_running():
            _close_all(runners)
        elif runners:
            closing = threading.Thread(target=_close_all, args=(runners,))
            closing.start()
            closing.join()


class _Stage:
    """One blocking call. One may be made inside another, by a plain function: the outer loop stands still then."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._asked: deque[tuple[Callable[[], Any], contextvars.Context, asyncio.Future[Any]]] = deque()
        self._wake: asyncio.Future[None] = loop.create_future()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        __tracebackhide__ = True
        context = contextvars.copy_context()
        context.run(_current.set, self)
        task = self.loop.create_task(work, context=context)
        try:
            while not task.done():
                self._wake = self.loop.create_future()
                self.loop.run_until_complete(asyncio.wait((task, self._wake), return_when=asyncio.FIRST_COMPLETED))
                while self._asked:
                    self._perform(*self._asked.popleft())
        finally:
            if not task.done():  # Ctrl-C
                task.cancel()
                self.loop.run_until_complete(asyncio.wait((task,)))
        return task.result()

    async def call(self, function: Callable[[], T]) -> T:
        answer: asyncio.Future[T] = self.loop.create_future()
        self._asked.append((function, contextvars.copy_context(), answer))
        if not self._wake.done():
            self._wake.set_result(None)
        return await answer

    def _perform(self, function: Callable[[], T], context: contextvars.Context, answer: asyncio.Future[T]) -> None:
        try:
            answer.set_result(context.run(function))
        except StopIteration as error:
            answer.set_exception(RuntimeError(f"the handler raised {error!r}"))  # a future cannot hold it
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asked for the call
            answer.set_exception(error)


async def call_plain(function: Callable[[], T]) -> T:
    """Call a plain function: in the thread that waits for this coroutine, or in another one if none does."""
    stage = _current.get()
    # A plain handler may run a loop of its own; that one cannot wait for the stage's, which stands still.
    if stage is not None and stage.loop is asyncio.get_running_loop():
        return await stage.call(function)
    return await asyncio.to_thread(function)


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _close_all(runners: list[asyncio.Runner]) -> None:
    for runner in runners:
        # A thread that the test has left behind may still be at it; its loop ends with its thread.
        if not runner.get_loop().is_running():
            runner.close()
