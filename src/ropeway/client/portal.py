"""A thread with an event loop of its own, through which code without a loop awaits."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

#: How long the end of the program may wait for connections to be closed in good order.
CLOSING_SECONDS = 2.0


class Portal:
    """Starts on first use; `close` ends it, and so does the end of the program."""

    def __init__(self, closing: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._closing = closing
        self._pid = os.getpid()
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        # A daemon, because a program that forgets to close must still end; atexit closes for it.
        self._thread = threading.Thread(target=self._run, name="ropeway-client", daemon=True)
        self._thread.start()
        self._started.wait()
        atexit.register(self._at_exit)

    def start(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run `work` on the loop of the thread, in the caller's context."""
        assert self._loop is not None  # noqa: S101 - set before `__init__` returned
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end and return what it returns."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # someone pressed Ctrl-C; of a future that is done this does nothing
            raise

    def close(self) -> None:
        """Close what the loop holds and end the thread. Blocks for as long as that takes, within limits."""
        atexit.unregister(self._at_exit)
        loop = self._loop
        # Of a forked process's parent there is only the memory here, no thread.
        if loop is None or os.getpid() != self._pid or not self._thread.is_alive():
            return
        self.start(self._close())
        self._thread.join(CLOSING_SECONDS + 1)

    def _at_exit(self) -> None:
        if self._loop is not None and os.getpid() == self._pid and not self._loop.is_closed():
            # By now Python starts no more work on its thread pools, and closing a file is such work.
            self._loop.call_soon_threadsafe(self._loop.set_default_executor, _AtOnce())
        self.close()

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(CLOSING_SECONDS):
                await self._closing()
        except Exception:  # noqa: BLE001, S110 - the end of a connection is no reason to fail
            pass
        asyncio.get_running_loop().stop()

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._started.set()
            self._loop.run_forever()


class _AtOnce(concurrent.futures.ThreadPoolExecutor):
    """No pool at all: what is submitted is done by the submitter."""

    def submit(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[T]:
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        try:
            future.set_result(work(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - it belongs to whoever awaits the future
            future.set_exception(error)
        return future
