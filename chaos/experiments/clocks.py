"""The database's own clock steps by an hour, forward and back: E15."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from chaos import nemesis
from chaos.checker import Violation
from chaos.experiment import MIXED, Experiment, Run, Size
from chaos.facts import CLOCK_STEP, EventFact, Facts, Grant
from chaos.preloaded import NoCompiler, built, turn_clock
from chaos.stage import RunBroken, Stage

#: Seconds of a step: far more than a lease or a run takes, so that every time tells by itself how wrong it is.
STEP: Final = 3_600.0


class DatabaseClock:
    """The clock that PostgreSQL and all its processes live by."""

    def __init__(self, stage: Stage, file: Path) -> None:
        self.offset = 0.0
        self.steps = 0
        self._stage = stage
        self._file = file

    def turn(self, offset: float) -> None:
        """So many seconds off from now on."""
        self._stage.nemesis.write("fault", "ok", kind=CLOCK_STEP, offset=offset)
        turn_clock(self._file, offset)
        self.offset = offset
        self.steps += 1


@asynccontextmanager
async def clock_of_its_own(stage: Stage) -> AsyncIterator[DatabaseClock]:
    """PostgreSQL is started again with a clock that can be wrong."""
    assert stage.server is not None
    # In the server's own folder: its user may read nothing else of ours.
    try:
        library = await asyncio.to_thread(built, "skew", stage.server.folder)
    except NoCompiler as error:
        raise RunBroken(str(error)) from None
    file = stage.server.folder / "clock"
    turn_clock(file, 0.0)
    stage.server.environment |= {"LD_PRELOAD": str(library), "SKEW_FILE": str(file)}
    await asyncio.to_thread(stage.server.restart)
    await stage.serving()
    yield DatabaseClock(stage, file)


async def steps(run: Run) -> None:
    """An hour forward or back, every few seconds, and never more than an hour wrong.

    After each step back a worker is killed: its leases end an hour late, and what it had is not lost. In the end
    the clock is as far ahead as it has ever been: what was put off by it is due then, and not an hour later.
    """
    stage, clock = run.stage, run.given
    while clock.steps < run.size.faults - 1 and run.producing():
        await asyncio.sleep(stage.chance.uniform(4.0, 6.0))
        before = clock.offset
        clock.turn(0.0 if before else stage.chance.choice((-STEP, STEP)))
        run.faults += 1
        if clock.offset < before:
            run.faults += nemesis.kill_whole(stage, stage.chance.choice(stage.named("worker")))
    while clock.offset < STEP:
        await asyncio.sleep(stage.chance.uniform(4.0, 6.0))
        clock.turn(clock.offset + STEP)
        run.faults += 1


def only_steps_forward_take_leases(facts: Facts, run: Run) -> list[Violation]:
    """Each step forward ends a lease once; a step back ends none; and some of both did happen.

    An attempt holds one lease, and leases of a job follow one another: so an expiry that has a step forward within
    its own lease is the only one of that job that this step explains.
    """
    forward = [at for at, ahead in facts.directions if ahead]
    found, taken = [], 0
    for id, event, grant in _expiries(facts):
        at = facts.when(event.at)
        if any(grant.asked <= step <= at for step in forward):
            taken += 1
        elif not _killed(facts, grant, at):
            found.append(Violation("E15", id, f"attempt {event.attempt} expired, and no step forward took it"))
    seen: dict[str, float] = {
        "steps forward": len(forward),
        "steps back": len(facts.directions) - len(forward),
        "leases taken by steps forward": taken,
    }
    run.notes |= seen
    found += [
        Violation("E15", "-", f"no {name}: the run proves nothing") for name, number in seen.items() if not number
    ]
    return found


def _expiries(facts: Facts) -> list[tuple[str, EventFact, Grant]]:
    """Every lease that expired, of those that somebody was told of."""
    return [
        (id, event, grant)
        for id, events in facts.events.items()
        for event in events
        if event.data.get("cause") == "expired"
        for grant in facts.grants.get(id, ())
        if grant.attempt == event.attempt
    ]


def _killed(facts: Facts, grant: Grant, by: float) -> bool:
    """Whether whoever had the lease was killed with it."""
    return any(
        fault.kind == "kill" and fault.pid == grant.pid and grant.asked <= fault.at <= by for fault in facts.faults
    )


EXPERIMENTS = (
    Experiment(
        id="E15",
        title="the database's clock steps by an hour, forward and back",
        small=Size(7_000, 8),
        full=Size(16_000, 20),
        faults=steps,
        bar=only_steps_forward_take_leases,
        around=clock_of_its_own,
        engines=("postgres", "http-postgres"),
        kinds=MIXED,
    ),
)
