"""What is wrong lies outside: the other side, clocks and disks: E14, E16, E18."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import struct
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from chaos.checker import Violation
from chaos.experiment import MIXED, Experiment, Run, Size
from chaos.facts import Facts
from chaos.history import OK
from chaos.preloaded import NoCompiler, built
from chaos.producing import new_job
from chaos.stage import DRAIN_SECONDS, RunBroken, Stage
from ropeway.core.query import JobFilter
from ropeway.core.states import State

# ── E16: everybody fails at once ──

#: Of all that failed together, no more than this share may come back within one second.
HERD_SHARE = 0.05
#: The task of the herd. Its retry policy spreads over 50 s what failed in the same instant, so that the bar can be
#: met; who has the default policy comes back within 2.5 s.
HERD = "chaos.downstream"
#: So many are asked for in one call.
HERD_BATCH = 1_000
#: Seconds that the other side stays down when all have failed.
DOWN_SECONDS = 30.0


@asynccontextmanager
async def downstream(stage: Stage) -> AsyncIterator[Path]:
    """The file that says for as long as it is there that the other side is down."""
    down = stage.folder / "down"
    stage.worker_env["CHAOS_DOWN"] = str(down)
    yield down


async def outages(run: Run) -> None:
    """The other side is down while everything is tried for the first time, and comes back; again and again."""
    stage = run.stage
    engine = await stage.recorded()
    few = int(HERD_SHARE * run.size.jobs)
    while run.faults < run.size.faults:
        run.given.touch()
        keys = [f"herd-{run.faults}-{index}" for index in range(run.size.jobs)]
        for first in range(0, len(keys), HERD_BATCH):
            await engine.enqueue([new_job(HERD, key) for key in keys[first : first + HERD_BATCH]])
        began = time.monotonic()
        await stage.until(lambda: _due_at_most(stage, few), "nearly everything has failed once", within=120)
        await asyncio.sleep(DOWN_SECONDS)
        run.given.unlink()
        stage.nemesis.write("fault", "ok", kind="downstream", began=began, until=time.monotonic())
        run.faults += 1
        await stage.until(lambda: _none_live(stage), "everything has succeeded", within=DRAIN_SECONDS)


async def _due_at_most(stage: Stage, few: int) -> bool:
    """Whether no more than a few wait to be run, or are run; the others wait for their next time."""
    engine = await stage.engine()
    due = frozenset({State.QUEUED, State.RUNNING})
    return (await engine.count(JobFilter(type=HERD, states=due), cap=few + 1)).number <= few


async def _none_live(stage: Stage) -> bool:
    return await stage.live() == 0


def herd_was_spread(facts: Facts, run: Run) -> list[Violation]:
    """What failed together does not come back together, and comes to its end."""
    herd = {id for id, final in facts.finals.items() if final.type == HERD}
    starts = [start for id in herd for start in facts.starts.get(id, ())]
    together = most_in_a_second([start.at for start in starts if start.attempt == 1]) / run.size.jobs
    worst = most_in_a_second([start.at for start in starts if start.attempt > 1]) / run.size.jobs
    run.notes["largest share of the herd that failed in one second"] = round(together, 4)
    run.notes["largest share of the herd in one second"] = round(worst, 4)
    found = [
        Violation("E16", id, f"is {facts.finals[id].state} although the other side came back")
        for id in herd
        if facts.finals[id].state != State.SUCCEEDED
    ]
    if worst > HERD_SHARE:
        found.append(Violation("E16", "-", f"{worst:.1%} came back within one second"))
    if together <= HERD_SHARE or not worst:
        words = f"{together:.1%} of the herd failed together: the run proves nothing"
        found.append(Violation("E16", "-", words))
    return found


def most_in_a_second(times: Sequence[float]) -> int:
    """How many lie within one second, wherever it begins."""
    times = sorted(times)
    return max((bisect_left(times, first + 1.0) - place for place, first in enumerate(times)), default=0)


# ── E14: clocks that are wrong ──

#: Seconds that the clocks are wrong by, to begin with.
TEN_MINUTES = 600.0


class Clocks:
    """The clocks of the workers, and of each server: files that say how wrong they are."""

    def __init__(self, stage: Stage, library: Path) -> None:
        self._folder = stage.folder
        self._library = library
        self.names: list[str] = []

    def of(self, name: str, seconds: float) -> dict[str, str]:
        """What a process is started with that lives by that clock."""
        self.names.append(name)
        self.turn(name, seconds)
        return {"LD_PRELOAD": str(self._library), "SKEW_FILE": str(self._folder / name)}

    def turn(self, name: str, seconds: float) -> None:
        # In place, in one write: they have it mapped.
        with os.fdopen(os.open(self._folder / name, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
            file.write(struct.pack("d", seconds))


@asynccontextmanager
async def skewed(stage: Stage) -> AsyncIterator[Clocks]:
    """Workers live ten minutes ahead, producers ten minutes behind, the servers ten minutes ahead and behind; the
    database's clock is right.

    SQLite has no clock but its server's, so there the servers are left alone.
    """
    try:
        clocks = Clocks(stage, await asyncio.to_thread(built, "skew", stage.folder))
    except NoCompiler as error:
        raise RunBroken(str(error)) from None
    stage.worker_env |= clocks.of("clock-workers", TEN_MINUTES)
    stage.producer_env |= clocks.of("clock-producers", -TEN_MINUTES)
    if stage.store == "postgres":
        for number, server in enumerate(stage.named("api")):
            wrong = clocks.of(f"clock-{server.name}", TEN_MINUTES * (-1) ** number)
            await asyncio.to_thread(server.started_with, wrong)
        await stage.serving()
    yield clocks


async def jumps(run: Run) -> None:
    stage, clocks = run.stage, run.given
    while run.faults < run.size.faults:
        await asyncio.sleep(stage.chance.uniform(0.5, 1.0))
        offset = stage.chance.choice([-600.0, 600.0, -3_600.0, 3_600.0, 0.0])
        clocks.turn(stage.chance.choice(clocks.names), offset)
        stage.nemesis.write("fault", "ok", kind="clock", offset=offset)
        run.faults += 1


def nothing_expired(facts: Facts, _run: Run) -> list[Violation]:
    """A clock that is wrong takes nobody's lease."""
    return [
        Violation("E14", id, f"attempt {event.attempt} was taken back")
        for id, events in facts.events.items()
        for event in events
        if event.data.get("cause") == "expired"
    ]


# ── E18: the disk is full ──

SOUND = "the file is sound"
STARTED_AGAIN = "times that PostgreSQL gave up and was started again"


async def fill_and_free(run: Run) -> None:
    """Fill what is left of the disk, wait, and free it again: nothing is accepted that is not kept."""
    stage = run.stage
    assert stage.disk is not None
    ballast = stage.disk / "ballast"
    if stage.store == "sqlite":
        # When nobody writes any more, and the disk is still there.
        stage.afterwards(lambda: _examine(run))
    while run.faults < run.size.faults:
        await asyncio.sleep(stage.chance.uniform(1.0, 2.0))
        if not run.producing():
            break
        began = time.monotonic()
        await asyncio.to_thread(_fill, ballast)
        await asyncio.sleep(stage.chance.uniform(1.5, 3.0))
        ballast.unlink(missing_ok=True)
        stage.nemesis.write("fault", "ok", kind="disk", began=began, until=time.monotonic())
        run.faults += 1
        await _see_to_the_server(run)
    await _see_to_the_server(run)


async def _see_to_the_server(run: Run) -> None:
    """A PostgreSQL that finds no room while it recovers ends for good: a service manager starts it again."""
    server = run.stage.server
    if server is not None and not await asyncio.to_thread(lambda: server.running):
        await asyncio.to_thread(server.start)
        run.notes[STARTED_AGAIN] = run.notes.get(STARTED_AGAIN, 0) + 1


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 65_536)
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        while True:
            file.write(b"\0" * 512)


async def _examine(run: Run) -> None:
    path = run.stage.direct.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (verdict,) = connection.execute("PRAGMA integrity_check").fetchone()
    run.notes[SOUND] = float(verdict == "ok")


def refused_and_went_on(facts: Facts, run: Run) -> list[Violation]:
    """While the disk is full somebody is refused, and when it is free again everybody goes on by himself."""
    full = [fault for fault in facts.faults if fault.kind == "disk"]
    refused = [each for each in facts.enqueues if each.phase != OK]
    met = sum(any(fault.at <= each.asked <= fault.until for each in refused) for fault in full)
    run.notes["enqueues refused"] = len(refused)
    run.notes["full disks that refused some"] = met
    found = [
        Violation("E18", member.name, f"was started {member.starts} times")
        for member in run.stage.members
        if member.starts > 1
    ]
    if not met:
        found.append(Violation("E18", "-", "nothing was refused by a full disk: the run proves nothing"))
    if run.stage.store == "sqlite" and run.notes.get(SOUND) != 1.0:
        found.append(Violation("E18", "-", "integrity_check finds SQLite's file broken, or was not made"))
    return found


EXPERIMENTS = (
    Experiment(
        id="E14",
        title="clocks of workers and servers that are wrong and jump",
        small=Size(4_000, 30),
        full=Size(8_000, 60),
        faults=jumps,
        bar=nothing_expired,
        around=skewed,
        engines=("postgres", "http-sqlite", "http-postgres"),
        kinds=MIXED,
    ),
    Experiment(
        id="E16",
        harmful=False,
        title="everything fails at once and is tried again",
        small=Size(6_000, 1),
        full=Size(10_000, 3),
        faults=outages,
        bar=herd_was_spread,
        around=downstream,
        engines=("sqlite", "postgres", "http-postgres"),
        # The herd is asked for by itself, and all at once.
        rate=0.0,
        concurrency=50,
    ),
    Experiment(
        id="E18",
        title="the disk is full and free again",
        small=Size(2_500, 10),
        full=Size(6_000, 30),
        faults=fill_and_free,
        bar=refused_and_went_on,
        engines=("sqlite", "http-sqlite", "postgres", "http-postgres"),
        disk={"sqlite": "32m", "postgres": "256m"},
        # As long as so many of them take.
        rate=42.0,
    ),
)
