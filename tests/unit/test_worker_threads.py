"""Sync handlers on threads, and how they are stopped."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ropeway.worker.run import Run, StopReason
from ropeway.worker.threads import JobInterrupted, Threads


@asynccontextmanager
async def threads(size: int = 1) -> AsyncIterator[Threads]:
    made = Threads(size)
    yield made
    made.close()


def a_run() -> Run:
    return Run(None, None)  # type: ignore[arg-type]


class Spinner:
    """A handler that runs until it is interrupted, or for ever."""

    def __init__(self) -> None:
        self.at_work = threading.Event()
        self.cleaned_up = threading.Event()

    def __call__(self) -> None:
        try:
            self.at_work.set()
            while True:
                pass
        except Exception:  # noqa: BLE001 - a handler that means to swallow everything
            return
        finally:
            self.cleaned_up.set()


async def test_what_it_returns_and_raises() -> None:
    async with threads() as pool:
        assert await pool.call(a_run(), lambda a, b: a + b, (1,), {"b": 2}) == 3
        with pytest.raises(ZeroDivisionError):
            await pool.call(a_run(), lambda: 1 / 0, (), {})
        with pytest.raises(SystemExit):
            await pool.call(a_run(), exit, (3,), {})


async def test_stop_iteration_does_not_hang() -> None:
    async with threads() as pool:
        with pytest.raises(RuntimeError, match="StopIteration"):
            await asyncio.wait_for(pool.call(a_run(), next, (iter([]),), {}), 10)


async def test_a_handler_is_interrupted_past_its_own_except() -> None:
    async with threads() as pool:
        run, handler = a_run(), Spinner()
        call = asyncio.create_task(pool.call(run, handler, (), {}))
        await asyncio.to_thread(handler.at_work.wait, 10)
        run.interrupt(StopReason.TIMEOUT)
        with pytest.raises(JobInterrupted):
            await asyncio.wait_for(call, 10)
        assert handler.cleaned_up.is_set()
        assert run.place is None


async def test_who_was_told_to_stop_before_its_turn_is_not_called() -> None:
    async with threads() as pool:
        first, second = Spinner(), a_run()
        running = a_run()
        busy = asyncio.create_task(pool.call(running, first, (), {}))
        await asyncio.to_thread(first.at_work.wait, 10)
        called: list[Any] = []
        waiting = asyncio.create_task(pool.call(second, called.append, (1,), {}))
        await asyncio.sleep(0)
        second.interrupt(StopReason.SHUTDOWN)
        running.interrupt(StopReason.SHUTDOWN)
        for task in (busy, waiting):
            with pytest.raises(JobInterrupted):
                await asyncio.wait_for(task, 10)
        assert called == []


async def test_an_interrupt_never_hits_the_next_job_of_the_thread() -> None:
    """Told to stop in the very moment in which it ends, hundreds of times."""
    async with threads() as pool:
        for _ in range(300):
            run, started = a_run(), threading.Event()
            call = asyncio.create_task(pool.call(run, started.set, (), {}))
            while not started.is_set():  # noqa: ASYNC110 - as tight as can be: the handler is about to end
                await asyncio.sleep(0)
            run.interrupt(StopReason.TIMEOUT)
            with contextlib.suppress(JobInterrupted):
                await call
            assert await pool.call(a_run(), sum, (range(200),), {}) == 19_900
