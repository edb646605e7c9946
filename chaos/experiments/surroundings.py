"""What is wrong lies outside: wake-ups, the other side, clocks and disks: E10, E14, E16, E18."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from chaos.checker import Violation
from chaos.experiment import MIXED, Experiment, Run, Size
from chaos.facts import Facts
from chaos.preloaded import NoCompiler, built
from chaos.proxy import FaultProxy, Trouble
from chaos.stage import RunBroken, Stage, serving
from ropeway.settings import Settings

# ── E10: wake-ups are lost ──

#: How long beyond a poll's interval a job may wait for its start.
SLACK = 0.2


@asynccontextmanager
async def deaf(stage: Stage) -> AsyncIterator[None]:
    """Workers listen through a proxy that lets nothing come back."""
    address = urlsplit(stage.direct)
    assert address.port is not None
    async with FaultProxy(address.port, stage.chance, share=1.0, kinds=[Trouble(swallow=True)]) as proxy:
        hole = address._replace(netloc=address.netloc.replace(str(address.port), str(proxy.port))).geturl()
        stage.worker_env["ROPEWAY_LISTEN_URL"] = hole
        yield


async def count_as_faults(run: Run) -> None:
    """Every wake-up is lost, so every job is a fault."""
    run.faults = run.size.faults
    run.stage.nemesis.write("fault", "ok", kind="deaf")


def found_by_polling(facts: Facts, run: Run) -> list[Violation]:
    """Without wake-ups a job starts when somebody looks next."""
    waits = sorted(
        min(start.at for start in facts.starts[id]) - each.ended
        for id, each in facts.accepted.items()
        if each.ended is not None and not each.delay and facts.starts.get(id)
    )
    p99 = waits[int(0.99 * (len(waits) - 1))]
    bar = Settings().poll_seconds + SLACK
    run.notes["pickup p99, s"] = round(p99, 3)
    return [] if p99 <= bar else [Violation("E10", "-", f"pickup p99 {p99:.2f} s is over {bar:g} s")]


# ── E16: everybody fails at once ──

#: Of all that failed together, no more than this share may come back within one second.
HERD_SHARE = 0.05


@asynccontextmanager
async def downstream(stage: Stage) -> AsyncIterator[None]:
    stage.worker_env["CHAOS_DOWN"] = str(stage.folder / "down")
    (stage.folder / "down").touch()
    yield


async def outage(run: Run) -> None:
    """The other side is down while everything is tried for the first time, and comes back."""
    stage = run.stage
    stage.nemesis.write("fault", "ok", kind="downstream")
    await stage.until(lambda: not run.producing(), "all jobs are in the queue", within=300)
    await asyncio.sleep(20.0)
    (stage.folder / "down").unlink()
    run.faults = 1


def herd_was_spread(facts: Facts, run: Run) -> list[Violation]:
    failed = sum(final.type == "chaos.downstream" for final in facts.finals.values())
    # Attempt by attempt: what failed together must not come back together.
    worst = 0.0
    for attempt in (2, 3):
        seconds = Counter(
            int(start.at) for starts in facts.starts.values() for start in starts if start.attempt == attempt
        )
        worst = max(worst, max(seconds.values(), default=0) / max(1, failed))
    run.notes["largest share of the herd in one second"] = round(worst, 4)
    return [] if worst <= HERD_SHARE else [Violation("E16", "-", f"{worst:.1%} came back within one second")]


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
    """Workers live ten minutes ahead, the servers ten minutes ahead and behind; the database's clock is right.

    SQLite has no clock but its server's, so there the servers are left alone.
    """
    try:
        clocks = Clocks(stage, await asyncio.to_thread(built, "skew", stage.folder))
    except NoCompiler as error:
        raise RunBroken(str(error)) from None
    stage.worker_env |= clocks.of("clock-workers", TEN_MINUTES)
    if stage.store == "postgres":
        for number, server in enumerate(stage.named("api")):
            wrong = clocks.of(f"clock-{server.name}", TEN_MINUTES * (-1) ** number)
            await asyncio.to_thread(server.started_with, wrong)
        if stage.over_http:
            await serving(stage, stage.url)
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


async def fill_and_free(run: Run) -> None:
    """Fill what is left of the disk, wait, and free it again: nothing is accepted that is not kept."""
    stage = run.stage
    assert stage.disk is not None
    ballast = stage.disk / "ballast"
    while run.faults < run.size.faults:
        await asyncio.sleep(stage.chance.uniform(1.0, 2.0))
        stage.nemesis.write("fault", "ok", kind="disk")
        await asyncio.to_thread(_fill, ballast)
        await asyncio.sleep(stage.chance.uniform(1.5, 3.0))
        ballast.unlink(missing_ok=True)
        run.faults += 1


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 65_536)
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        while True:
            file.write(b"\0" * 512)


EXPERIMENTS = (
    Experiment(
        id="E10",
        harmful=False,
        title="wake-ups are lost",
        small=Size(1_000, 1_000),
        full=Size(2_000, 2_000),
        faults=count_as_faults,
        bar=found_by_polling,
        around=deaf,
        engines=("postgres",),
        kinds={"chaos.ok": 1.0},
        rate=20.0,
    ),
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
        full=Size(10_000, 1),
        faults=outage,
        bar=herd_was_spread,
        around=downstream,
        engines=("sqlite", "postgres", "http-postgres"),
        kinds={"chaos.downstream": 1.0},
        rate=210.0,
    ),
    Experiment(
        id="E18",
        title="the disk is full and free again",
        small=Size(3_000, 10),
        full=Size(6_000, 30),
        faults=fill_and_free,
        engines=("sqlite", "http-sqlite", "postgres", "http-postgres"),
        disk={"sqlite": "32m", "postgres": "256m"},
        rate=60.0,
    ),
)
