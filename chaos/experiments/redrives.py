"""Very many dead jobs: a page of them, and a part of them made to run again by somebody who is killed: E27."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path
from typing import Final

from chaos.checker import Violation
from chaos.experiment import Experiment, Run, Size
from chaos.experiments.direct import finish, leased_here
from chaos.facts import Facts
from chaos.stage import Member, RunBroken
from ropeway.core.job import NewJob
from ropeway.core.outcome import Failed
from ropeway.core.payload import JobError
from ropeway.core.query import JobFilter
from ropeway.core.states import EventName, State
from ropeway.engines.protocol import Engine, Settlement

#: Seconds that a page of the dead may take at the 99th percentile.
LIST_SECONDS: Final = 0.1

#: Bytes that the checker needs for what is known of one job.
BYTES_PER_JOB: Final = 8_000

#: The queue of those that are to run again: one thousand of every ten.
AGAIN: Final = "again"
ONE_IN: Final = 10


async def many_dead(run: Run) -> None:
    """A great heap of dead jobs is listed, and a part of it made to run again by somebody who is killed."""
    enough_memory(run.size.jobs)
    engine = await run.stage.recorded()
    for turn in range(run.size.jobs // 1_000):
        queue = AGAIN if turn % ONE_IN == 0 else "dead"
        jobs = [NewJob("chaos.ok", queue=queue, idempotency_key=f"dead-{turn}-{i}") for i in range(1_000)]
        await engine.enqueue(jobs)
        leases = await leased_here(engine, run, queue, 1_000)
        refused = Failed(JobError("Trouble", f"of kind {turn % 7}"), retry=False)
        await engine.settle([Settlement(each.lease, refused) for each in leases])
    run.notes["list of the dead p99, s"] = await _page_of_the_dead(await run.stage.engine())
    await _redriven(run)
    await finish(engine, run, AGAIN)


def enough_memory(jobs: int) -> None:
    """A run that its own checker cannot hold would end without a verdict, hours later."""
    told = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    there, needed = int(told["MemAvailable"].split()[0]) * 1_024, jobs * BYTES_PER_JOB
    if there < needed:
        raise RunBroken(
            f"to check {jobs:,} jobs takes {needed / 1e9:.1f} GB of memory, {there / 1e9:.1f} are free"
        )


async def _page_of_the_dead(engine: Engine) -> float:
    times = []
    for _ in range(100):
        began = time.perf_counter()
        await engine.find(order="died", limit=50)
        times.append(time.perf_counter() - began)
    return round(sorted(times)[98], 4)


async def _redriven(run: Run) -> None:
    """Until nobody is left to run again; whoever is at it is killed in the middle, as often as was asked for."""
    store = await run.stage.engine()
    command = [sys.executable, "-m", "chaos.redriving", run.stage.direct, AGAIN]
    left = await _dead(store)
    run.notes["to be redriven"] = left
    while left:
        redriver = run.stage.add(f"redrive{run.faults}", command, kept=False)
        if run.faults < run.size.faults:
            await _killed_in_the_middle(run, redriver, left)
        await asyncio.to_thread(redriver.process.wait)
        before, left = left, await _dead(store)
        if redriver.process.returncode == -signal.SIGKILL:
            run.faults += 0 < left < before
        elif redriver.process.returncode != 0:
            raise RunBroken(f"the redrive ended with {redriver.process.returncode}: {redriver.log()[-400:]}")


async def _killed_in_the_middle(run: Run, redriver: Member, left: int) -> None:
    """Kill it as soon as some are redriven, if there is time for that before it is done."""
    store = await run.stage.engine()
    while redriver.running:
        if await _dead(store) < left:
            run.stage.nemesis.write("fault", "ok", kind="kill", target_pid=redriver.process.pid)
            redriver.signal_all(signal.SIGKILL)
            return
        await asyncio.sleep(0.002)


async def _dead(store: Engine) -> int:
    where = JobFilter(queue=AGAIN, states=frozenset({State.DEAD}))
    return (await store.count(where, cap=1_000_000)).number


def redriven_once(facts: Facts, run: Run) -> list[Violation]:
    """Pages are quick; everybody was made to run again once, although whoever did it was killed in the middle."""
    found = []
    p99 = run.notes["list of the dead p99, s"]
    if p99 > LIST_SECONDS:
        found.append(Violation("E27", "-", f"a page of the dead takes {p99:g} s"))
    redriven = 0
    for id, events in facts.events.items():
        again = sum(event.name == EventName.RETRIED for event in events)
        redriven += again > 0
        if again > 1:
            found.append(Violation("E27", id, f"was made to run again {again} times"))
    if redriven != run.notes["to be redriven"]:
        found.append(Violation("E27", "-", f"{redriven:,} of {run.notes['to be redriven']:g} ran again"))
    if not run.faults:
        found.append(Violation("E27", "-", "no redrive was killed in the middle: the run proves nothing"))
    return found


EXPERIMENTS = (
    Experiment(
        id="E27",
        title="very many dead jobs, and a redrive that is killed",
        small=Size(30_000, 3),
        full=Size(1_000_000, 10),
        faults=many_dead,
        bar=redriven_once,
        engines=("sqlite", "postgres"),
        alone=True,
    ),
)
