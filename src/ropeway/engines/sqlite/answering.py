"""Answers from the database's threads to the event loops that asked: one wake-up of a loop per batch."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from typing import Any

from ropeway.core.errors import ConfigurationError

#: A caller's future, and its answer; an exception is raised to that caller.
Answer = tuple["asyncio.Future[Any]", Any]


def deliver(answers: Sequence[Answer]) -> None:
    """Resolve futures in the loops they belong to. Called from any thread."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Answer]] = {}
    for answer in answers:
        by_loop.setdefault(answer[0].get_loop(), []).append(answer)
    for loop, batch in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, batch)
        except RuntimeError:
            # The loop was closed: nobody waits there any more.
            continue


def _resolve(answers: Iterable[Answer]) -> None:
    for future, answer in answers:
        if future.done():
            continue
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(answer)


def check_process(opened_in: int) -> None:
    """An open database cannot be carried into a forked process: its threads and locks stay behind."""
    if os.getpid() != opened_in:
        raise ConfigurationError(
            f"this engine was opened in process {opened_in} and is used in {os.getpid()}, after a fork",
            hint="open an engine in each process, after it was started",
        )
