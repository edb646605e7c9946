"""Sync handlers: threads that can be told to stop."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ropeway.worker.run import Run, StopReason


class JobInterrupted(BaseException):
    """Raised inside a sync handler that must stop: its timeout is over, it was cancelled, or the worker stops.

    It is not an Exception, so that a handler's own `except Exception` lets it pass; `finally` and `with` work.
    """


class Threads:
    """A pool with one thread per slot; a thread is started when it is first needed."""

    def __init__(self, size: int) -> None:
        self._pool = ThreadPoolExecutor(max_workers=size, thread_name_prefix="ropeway-job")

    async def call(
        self, run: Run, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """What the function returns or raises. The caller must not be cancelled: the thread cannot be."""
        call = _Call(function, args, kwargs)
        run.place = call
        try:
            if run.stop is not None:
                call.interrupt(run.stop)
            context = contextvars.copy_context()
            return await asyncio.get_running_loop().run_in_executor(self._pool, context.run, call)
        finally:
            run.place = None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Call:
    """One call on a thread. An exception can be put into a thread only between two steps of Python: a call
    into C that does not return cannot be interrupted, only its process killed."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._interrupted = False

    def __call__(self) -> Any:
        with self._lock:
            if self._interrupted:
                raise JobInterrupted
            self._thread = threading.get_ident()
        try:
            return self._function(*self._args, **self._kwargs)
        except StopIteration as error:
            # No future may hold one: whoever awaits it would wait for ever.
            raise RuntimeError("the handler raised StopIteration") from error
        finally:
            with self._lock:
                if self._interrupted:
                    # It may not have arrived yet; the thread's next job must not get it.
                    _raise_in(self._thread, None)
                self._thread = None

    def interrupt(self, reason: StopReason) -> None:
        with self._lock:
            if not self._interrupted:
                self._interrupted = True
                _raise_in(self._thread, JobInterrupted)


def _raise_in(thread: int | None, error: type[BaseException] | None) -> None:
    if thread is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread), None if error is None else ctypes.py_object(error)
        )
