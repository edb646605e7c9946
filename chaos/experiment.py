"""What an experiment is: a load, faults, and what must be true beside the safety rules."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from chaos.checker import Violation
from chaos.facts import Facts
from chaos.stage import ENGINES, Stage

#: Ordinary work: quick and slow, some of it failing, some of it late.
MIXED: Mapping[str, float] = {
    "chaos.ok": 10,
    "chaos.slow": 2,
    "chaos.plain": 2,
    "chaos.flaky": 1,
    "chaos.fail": 0.3,
    "chaos.snooze": 0.5,
}

#: PostgreSQL can also do this: the handler's row and the completion in one transaction.
WITH_EFFECTS: Mapping[str, float] = {**MIXED, "chaos.effect": 3}


@dataclass(frozen=True)
class Size:
    """How much of it: jobs, and faults of the experiment's own kind."""

    jobs: int
    faults: int


@dataclass
class Run:
    """One run under way: what the faults of an experiment get to see and what they have to tell."""

    stage: Stage
    size: Size
    #: Whether producers are still at it.
    producing: Callable[[], bool]
    #: What the experiment's surroundings gave it.
    given: Any = None
    faults: int = 0
    notes: dict[str, float] = field(default_factory=dict)
    #: What a follower of the event log saw: job and seq. None: nobody followed.
    seen: list[tuple[str, int]] | None = None
    #: What stores held that the run has left behind.
    states: list[dict[str, Any]] = field(default_factory=list)


Faults = Callable[[Run], Awaitable[None]]
Bar = Callable[[Facts, Run], list[Violation]]
Forgives = Callable[[Facts, Violation], bool]
Around = Callable[[Stage], AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def nothing_around(_stage: Stage) -> AsyncIterator[None]:
    yield


def nothing_forgiven(_facts: Facts, _violation: Violation) -> bool:
    return False


def no_bar(_facts: Facts, _run: Run) -> list[Violation]:
    return []


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """`faults` is done while the load runs; `bar` is what has to be true beside C1 to C20."""

    id: str
    title: str
    small: Size
    full: Size
    faults: Faults
    bar: Bar = no_bar
    engines: tuple[str, ...] = ENGINES
    #: Jobs per second that the producers ask for together.
    rate: float = 120.0
    kinds: Mapping[str, float] = field(default_factory=lambda: dict(MIXED))
    fields: Mapping[str, object] = field(default_factory=dict)
    workers: int = 4
    concurrency: int = 8
    lease_seconds: float = 3.0
    #: Seconds that the 99th percentile of recovery may take: beyond the lease where whole workers die, and in all
    #: where their children do. None: not asked.
    recovery: float | None = None
    #: What these faults may break: it is told, and not held against the run.
    forgives: Forgives = nothing_forgiven
    #: Done before the first worker starts: what it needs, and what is to be there while the run lasts.
    around: Around = nothing_around
    #: Whether its faults are of the kind that may lose something: kills, crashes, cuts. Others are only told.
    harmful: bool = True
    #: By store: how large a disk of its own it has.
    disk: Mapping[str, str] = field(default_factory=dict)
    #: The experiment asks for, runs and reports its jobs itself: nobody else is on the stage.
    alone: bool = False

    @property
    def may_lose(self) -> bool:
        """Whether it is set up so that something may be lost: that is published, and in no sum."""
        return self.forgives is not nothing_forgiven
