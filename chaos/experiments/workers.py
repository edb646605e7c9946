"""Workers that die, sleep and are told to stop: E01, E02, E33."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from chaos import nemesis
from chaos.checker import Violation
from chaos.checker.leasing import stale_calls
from chaos.experiment import Experiment, Run, Size
from chaos.facts import Facts
from chaos.stage import Stage
from ropeway.core.states import EventName

#: Where a death is the most awkward: between a commit and whoever has to hear of it.
AWKWARD = ("lease.committed", "settle.before", "settle.committed", "rescue.before", "rescue.committed")


@asynccontextmanager
async def dying_at_awkward_points(stage: Stage) -> AsyncIterator[None]:
    """Workers also kill themselves, now and then, at fault points in the code."""
    log = stage.histories / "faultpoints.jsonl"
    stage.worker_env |= {
        "ROPEWAY_FAULTS": ",".join(f"{point}=kill:0.002" for point in AWKWARD),
        "ROPEWAY_FAULTS_LOG": str(log),
    }
    stage.at_heal(log.with_name(f"{log.name}.healed").touch)
    yield


async def kill_storm(run: Run) -> None:
    """Every second or so a worker dies: its child alone, or all of it."""
    stage = run.stage
    while run.faults < run.size.faults:
        await asyncio.sleep(stage.chance.uniform(0.4, 1.2))
        worker = stage.chance.choice(stage.named("worker"))
        kill = nemesis.kill_child if stage.chance.random() < 0.5 else nemesis.kill_whole
        run.faults += kill(stage, worker)


async def zombies(run: Run) -> None:
    """Workers stop for longer than their leases last, go on, and report what they did."""
    stage = run.stage
    workers = stage.named("worker")

    async def one() -> None:
        while run.faults < run.size.faults:
            await asyncio.sleep(stage.chance.uniform(0.2, 1.0))
            worker = stage.chance.choice(workers)
            if worker in stopped:
                continue
            stopped.add(worker)
            try:
                seconds = stage.lease_seconds * stage.chance.uniform(1.5, 3.0)
                run.faults += await nemesis.pause(stage, worker, seconds)
            finally:
                stopped.discard(worker)

    stopped: set[object] = set()
    # At least one of them works at any time.
    await asyncio.gather(*(one() for _ in range(max(1, len(workers) - 1))))


def zombies_were_refused(facts: Facts, run: Run) -> list[Violation]:
    sent, accepted = stale_calls(facts)
    run.notes["stale calls sent"], run.notes["stale calls accepted"] = sent, accepted
    return [] if sent else [Violation("E02", "-", "no stale call was made: the run proves nothing")]


async def graceful_stops(run: Run) -> None:
    """Workers are told to stop in the middle of their work, and are there again at once."""
    stage = run.stage
    longest = 0.0
    while run.faults < run.size.faults:
        await asyncio.sleep(stage.chance.uniform(0.5, 1.5))
        worker = stage.chance.choice([each for each in stage.named("worker") if each.running])
        process = worker.process
        stage.nemesis.write("fault", "ok", kind="term", target_pid=process.pid)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, 60)
        longest = max(longest, time.monotonic() - began)
        run.faults += 1
    run.notes["longest stop, s"] = round(longest, 2)


def nothing_wasted(facts: Facts, run: Run) -> list[Violation]:
    """A worker that is told to stop finishes or gives back: nobody loses a lease, and it is gone in time."""
    found = [
        Violation("E33", id, f"lost attempt {event.attempt} to a graceful stop")
        for id, events in facts.events.items()
        for event in events
        if event.name == EventName.RECLAIMED
    ]
    if run.notes["longest stop, s"] > DRAIN_SECONDS + 1:
        found.append(Violation("E33", "-", f"a stop took {run.notes['longest stop, s']} s"))
    return found


#: The default of --drain-seconds.
DRAIN_SECONDS = 25.0

EXPERIMENTS = (
    Experiment(
        id="E01",
        title="workers killed",
        small=Size(6_000, 45),
        full=Size(20_000, 300),
        faults=kill_storm,
        around=dying_at_awkward_points,
        recovery=2.0,
    ),
    Experiment(
        id="E02",
        title="workers stopped for longer than their leases",
        small=Size(1_500, 20),
        full=Size(12_000, 300),
        faults=zombies,
        bar=zombies_were_refused,
        kinds={"chaos.ok": 4, "chaos.slow": 6, "chaos.flaky": 1},
        # At any time most of the workers stand still.
        rate=15.0,
        concurrency=8,
    ),
    Experiment(
        id="E33",
        title="workers told to stop",
        small=Size(4_000, 25),
        full=Size(10_000, 50),
        faults=graceful_stops,
        bar=nothing_wasted,
    ),
)
