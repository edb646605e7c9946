"""A producer of a fault run: a job that is refused for good ends it, and does not just go missing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from chaos.producing import _fewer, accepted, new_job
from ropeway.core.errors import FieldError, KeyInFlight, Unavailable
from ropeway.core.job import NewJob
from ropeway.engines.memory import MemoryEngine
from ropeway.engines.protocol import Enqueued


async def _refused() -> None:
    raise FieldError("no")


async def _done() -> None: ...


@pytest.mark.parametrize("most", [0, 5])
async def test_what_is_refused_is_told(most: int) -> None:
    waiting = {asyncio.create_task(_done()), asyncio.create_task(_refused())}
    await asyncio.wait(waiting)
    with pytest.raises(FieldError):
        await _fewer(waiting, most)


async def test_it_waits_until_so_many_are_left() -> None:
    never = asyncio.create_task(asyncio.Event().wait())
    waiting: set[asyncio.Task[None]] = {asyncio.create_task(_done()), asyncio.create_task(_done())}
    await _fewer({*waiting, never}, 1)  # type: ignore[arg-type]
    assert all(task.done() for task in waiting)
    never.cancel()


class Reluctant(MemoryEngine):
    """Says two times that it cannot tell yet."""

    def __init__(self) -> None:
        super().__init__()
        self.troubles = [Unavailable("away"), KeyInFlight("somebody else asks for it")]

    async def enqueue(self, jobs: Sequence[NewJob], **options: str) -> list[Enqueued]:
        if self.troubles:
            raise self.troubles.pop()
        return await super().enqueue(jobs, **options)


async def test_what_may_still_come_true_is_asked_again() -> None:
    async with Reluctant() as engine:
        await accepted(engine, new_job("chaos.ok", "k"), random.Random(1))
        assert (await engine.count()).number == 1
