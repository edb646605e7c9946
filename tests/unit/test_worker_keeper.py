"""What the parent does about a child that is late, blocked or too big, by what its ledger tells."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from ropeway.engines.memory import MemoryEngine
from ropeway.observability.logs import logger
from ropeway.observability.metrics import WorkerMetrics
from ropeway.runtime.service import Outage
from ropeway.worker.family import Child
from ropeway.worker.keeper import Keeper
from ropeway.worker.ledger import Ledger
from ropeway.worker.options import WorkerOptions


class FakeChild:
    """A child as the keeper sees it, without a process."""

    guilty = Child.guilty
    went_on_purpose = Child.went_on_purpose

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.alive = self.ready = True
        self.retiring = self.killed_for_time = self.held = self.put_down = False
        self.victim: UUID | None = None
        self.killed = False
        self.sent: list[Any] = []
        self.rss = 1 << 30

    def kill(self) -> None:
        self.killed = True

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def rss_bytes(self) -> int:
        return self.rss


@pytest.fixture
def child() -> Iterator[FakeChild]:
    ledger = Ledger.create(8)
    ledger.alive(time.monotonic())
    ledger.watched(time.monotonic())
    yield FakeChild(ledger)
    ledger.close()


class House:
    """A keeper of that child; `watch` looks once."""

    def __init__(self, child: FakeChild, **options: Any) -> None:
        self.replaced: list[str] = []
        children: Any = {1: child}
        self._keeper = Keeper(
            children,
            MemoryEngine(),
            WorkerOptions(**options),
            WorkerMetrics(),
            Outage(logger("test")),
            types=lambda: (),
            state=lambda _: "running",
            replace=self._replace,
        )

    async def _replace(self, child: Any, reason: str) -> None:
        self.replaced.append(reason)

    async def watch(self) -> None:
        await self._keeper._watch()


async def test_a_limit_below_the_size_of_the_app_replaces_nobody_that_has_done_nothing(child: FakeChild) -> None:
    house = House(child, max_memory_bytes=1 << 20)
    await house.watch()
    assert (house.replaced, child.sent) == ([], [])
    child.ledger.finished(1)
    await house.watch()
    assert house.replaced == ["1024 MiB"]
    assert len(child.sent) == 1


def started(child: FakeChild, slot: int, ago: float, hard_in: float | None) -> UUID:
    """A job in that slot, started so long ago; its hard deadline is then (negative: it is over)."""
    now = time.monotonic()
    id = uuid4()
    child.ledger.start(slot, id, now - ago, 0.0 if hard_in is None else now + hard_in, isolated=False)
    return id


async def test_a_job_that_was_told_to_stop_and_did_not_is_the_only_one_lost(child: FakeChild) -> None:
    """The loop turns: it had its chance."""
    late = started(child, 0, 20.0, -0.1)
    started(child, 1, 20.0, None)
    started(child, 2, 20.0, 60.0)
    await House(child).watch()
    assert child.killed
    assert child.guilty() == {late}


async def test_nobody_is_killed_in_time(child: FakeChild) -> None:
    started(child, 0, 20.0, 0.5)
    await House(child).watch()
    assert not child.killed


async def test_who_is_seen_to_block_the_loop_is_lost_and_not_its_late_neighbour(child: FakeChild) -> None:
    started(child, 0, 6.5, -0.1)
    blocker = started(child, 1, 6.5, None)
    started(child, 2, 6.4, -0.05)
    child.ledger.alive(time.monotonic() - 6.4)
    child.ledger.blocked_by(1)
    await House(child).watch()
    assert child.killed
    assert child.guilty() == {blocker}


async def test_all_are_suspects_when_nobody_can_say_who_blocks(child: FakeChild) -> None:
    """The interpreter is held: the watchdog saw nothing, and others started after the late one."""
    jobs = {started(child, 0, 6.5, -0.1), started(child, 1, 6.4, None), started(child, 2, 30.0, None)}
    child.ledger.alive(time.monotonic() - 6.4)
    await House(child).watch()
    assert child.killed
    assert child.guilty() == jobs


async def test_all_are_suspects_when_several_started_last_at_once(child: FakeChild) -> None:
    now = time.monotonic()
    jobs = {uuid4(), uuid4(), uuid4()}
    for slot, id in enumerate(jobs):
        child.ledger.start(slot, id, now - 6.5, now - 0.1, isolated=False)
    child.ledger.alive(now - 6.4)
    await House(child).watch()
    assert child.killed
    assert child.guilty() == jobs


async def test_who_started_last_before_all_stood_still_is_lost_alone(child: FakeChild) -> None:
    started(child, 0, 30.0, None)
    late = started(child, 1, 6.5, -0.1)
    child.ledger.alive(time.monotonic() - 6.4)
    await House(child).watch()
    assert child.guilty() == {late}


async def test_a_blocker_that_has_let_go_is_forgotten(child: FakeChild) -> None:
    blocker = started(child, 1, 6.5, None)
    child.ledger.blocked_by(1)
    assert child.ledger.blocker() == blocker
    child.ledger.end(1)
    assert child.ledger.blocker() is None
    child.ledger.blocked_by(0)
    started(child, 0, 1.0, None)
    child.ledger.blocked_by(None)
    assert child.ledger.blocker() is None
