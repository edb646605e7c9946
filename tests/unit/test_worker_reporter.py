"""Progress and log lines on their way to the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from ropeway.core.errors import Unavailable
from ropeway.core.job import Progress
from ropeway.core.joblog import LogLine
from ropeway.core.lease import Lease
from ropeway.worker.reporter import Reporter


class Engine:
    """Takes lines when the test lets it."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.away = False
        self.lines: list[str] = []
        self.newest: dict[Lease, Progress] = {}

    async def progress(self, updates: Sequence[tuple[Lease, Progress]], *, tenant: str) -> list[None]:
        await self._answer()
        self.newest.update(updates)
        return [None] * len(updates)

    async def log(self, lines: Sequence[tuple[Lease, LogLine]], *, tenant: str) -> list[None]:
        await self._answer()
        self.lines += [line.message for _, line in lines]
        return [None] * len(lines)

    async def _answer(self) -> None:
        await self.open.wait()
        if self.away:
            raise Unavailable("away")


def a_lease() -> Lease:
    return Lease(uuid4(), 1, uuid4())


async def test_the_newest_progress_wins_and_all_lines_come_in_order() -> None:
    engine: Any = Engine()
    reporter, lease = Reporter(engine, "default"), a_lease()
    for n in range(1_700):
        reporter.log(lease, "info", str(n))
        reporter.progress(lease, Progress(done=n))
    await reporter.flush()
    assert engine.lines == [str(n) for n in range(1_700)]
    assert engine.newest == {lease: Progress(done=1_699)}


async def test_a_flush_waits_for_what_another_took_along() -> None:
    engine: Any = Engine()
    reporter = Reporter(engine, "default")
    engine.open.clear()
    reporter.log(a_lease(), "info", "one")
    reporter.log(a_lease(), "info", "two")
    first = asyncio.create_task(reporter.flush())
    second = asyncio.create_task(reporter.flush())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not second.done(), "its line is on its way with the first flush"
    engine.open.set()
    await asyncio.gather(first, second)
    assert engine.lines == ["one", "two"]


async def test_an_engine_that_is_away_stops_no_handler() -> None:
    engine: Any = Engine()
    reporter = Reporter(engine, "default")
    engine.away = True
    reporter.log(a_lease(), "info", "lost")
    await reporter.flush()
    engine.away = False
    await asyncio.to_thread(reporter.log, a_lease(), "info", "kept")
    await reporter.flush()
    assert engine.lines == ["kept"]
