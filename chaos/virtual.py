"""Virtual time: tasks that run one at a time, in an order that a seed decides, and never wait for real."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Awaitable, Callable, Coroutine, Generator
from datetime import UTC, datetime, timedelta
from typing import Any

#: When every simulation begins.
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class Sleep:
    """Awaited by a task: it goes on so many seconds later."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __await__(self) -> Generator[Sleep, None, None]:
        yield self


class Task:
    """One process of the simulation. It can be ended at any point where it waits, or kept from going on."""

    def __init__(self, name: str, pid: int) -> None:
        self.name = name
        self.pid = pid
        self.alive = True
        self.paused_until = 0.0


class World:
    """The clock and the tasks. Two tasks that are due at the same time go in the order that the seed draws."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.time = 0.0
        self._order = itertools.count()
        self._pids = itertools.count(1)
        self._due: list[tuple[float, float, int, Task, Coroutine[Any, Any, None]]] = []

    def now(self) -> datetime:
        """For engines: a clock."""
        return BEGIN + timedelta(seconds=self.time)

    def seconds(self) -> float:
        """For recorders."""
        return self.time

    def start(
        self, name: str, work: Callable[[Task], Coroutine[Any, Any, None]], *, pid: int | None = None
    ) -> Task:
        task = Task(name, next(self._pids) if pid is None else pid)
        self._later(0.0, task, work(task))
        return task

    def beside(self, task: Task, work: Coroutine[Any, Any, None]) -> None:
        """Another thread of the same process: it ends and stands still with it."""
        self._later(0.0, task, work)

    def run(self, until: float) -> None:
        """Go on until that time, or until nothing is left to do."""
        while self._due and self._due[0][0] <= until:
            at, _, _, task, work = heapq.heappop(self._due)
            if not task.alive:
                work.close()
                continue
            self.time = max(self.time, at)
            if task.paused_until > self.time:
                self._later(task.paused_until - self.time, task, work)
                continue
            try:
                waited = work.send(None)
            except StopIteration:
                continue
            self._later(waited.seconds, task, work)
        self.time = max(self.time, until)

    def finish(self) -> None:
        """End what still waits."""
        for *_, work in self._due:
            work.close()
        self._due.clear()

    def _later(self, seconds: float, task: Task, work: Coroutine[Any, Any, None]) -> None:
        due = (self.time + max(0.0, seconds), self.chance.random(), next(self._order), task, work)
        heapq.heappush(self._due, due)


def at_once(work: Awaitable[Any]) -> Any:
    """The result of something that never waits (every call of the memory engine)."""
    running = work.__await__()
    try:
        next(running)
    except StopIteration as done:
        return done.value
    raise RuntimeError("it waited")
