"""Handlers that kill their process or hold it: E12, E13."""

from __future__ import annotations

import asyncio

from chaos.checker import Violation
from chaos.experiment import Experiment, Run, Size
from chaos.facts import Facts
from ropeway.core.states import DeadReason, EventName, State

PILLS = ("chaos.kill", "chaos.exit", "chaos.segfault")
BLOCKERS = ("chaos.block", "chaos.spin", "chaos.bigint")


async def pills(run: Run) -> None:
    """Some jobs of the load kill whoever runs them."""
    kinds = dict.fromkeys(PILLS, 1.0)
    stage = run.stage
    producer = stage.producer("producer-pills", run.size.faults, 1.0, kinds)
    # Each death is written down by the pill itself; here is only that they are coming.
    stage.nemesis.write("fault", "ok", kind="pills", until=float("9e15"))
    await stage.until(lambda: not producer.running, "all pills are in the queue", within=600)
    run.faults = run.size.faults


def pills_are_dead(facts: Facts, run: Run) -> list[Violation]:
    """Every pill is dead by crash limit after exactly three deaths, and everything else has succeeded."""
    found = []
    taken = 0
    for id, final in facts.finals.items():
        if final.type in PILLS:
            taken += 1
            # One that ran apart, or had not started, when its worker died of another pill is given back instead.
            deaths = sum("cause" in event.data for event in facts.events[id])
            if final.state != State.DEAD or final.reason != DeadReason.CRASH_LIMIT:
                found.append(Violation("E12", id, f"a pill is {final.state} ({final.reason})"))
            elif deaths != facts.crash_limit:
                found.append(Violation("E12", id, f"a pill died {deaths} times"))
        elif final.state != State.SUCCEEDED:
            found.append(Violation("E12", id, f"a good job is {final.state} ({final.reason})"))
    run.notes["pills"] = taken
    return found


async def blockers(run: Run) -> None:
    """Jobs hold the event loop, or the interpreter, for five times as long as a lease lasts."""
    stage = run.stage
    seconds = 5 * stage.lease_seconds
    producer = stage.producer(
        "producer-blockers",
        run.size.faults,
        2.0,
        dict.fromkeys(BLOCKERS, 1.0),
        fields={name: {"seconds": seconds} for name in BLOCKERS},
    )
    await stage.until(lambda: not producer.running, "all blockers are in the queue", within=600)
    run.faults = run.size.faults
    await asyncio.sleep(seconds)


def nobody_was_robbed(facts: Facts, run: Run) -> list[Violation]:
    """No lease is lost: somebody beats for whoever cannot."""
    held = sum(final.type in BLOCKERS for final in facts.finals.values())
    run.notes["blocked for five leases"] = held
    return [
        Violation("E13", id, f"attempt {event.attempt} was taken from a worker that was only busy")
        for id, events in facts.events.items()
        for event in events
        if event.name == EventName.RECLAIMED
    ]


EXPERIMENTS = (
    Experiment(
        id="E12",
        title="poison pills",
        small=Size(2_000, 20),
        full=Size(2_000, 20),
        faults=pills,
        bar=pills_are_dead,
        kinds={"chaos.ok": 8, "chaos.slow": 1, "chaos.plain": 2},
        rate=60.0,
    ),
    Experiment(
        id="E13",
        title="handlers that block",
        small=Size(300, 12),
        full=Size(1_000, 200),
        faults=blockers,
        bar=nobody_was_robbed,
        kinds={"chaos.ok": 1},
        rate=20.0,
        concurrency=1,
        engines=("sqlite", "postgres", "http-postgres"),
    ),
)
