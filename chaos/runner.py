"""One run from the first process to the verdict: warm, faults, heal, drain, check."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaos import history
from chaos.checker import Violation, check
from chaos.checker.timing import recovery_times, within
from chaos.experiment import Experiment, Run, Size
from chaos.facts import Facts, gather
from chaos.figures import figures
from chaos.idling import LOAD, LOAD_OVER, idle_faults
from chaos.served import lives, served
from chaos.snapshot import snapshot, together
from chaos.stage import DRAIN_SECONDS, ROOT, START_SECONDS, RunBroken, Stage, effects_of, finished, staged

Say = Callable[[str], None]

#: Jobs that show that every worker is at work, before the first fault.
WARM_JOBS = 40

#: How often a person who watches is told how it goes.
TELL_EVERY = 10.0


def folder_of(out: Path, experiment: str, engine: str, seed: int, size: str, jobs: int | None = None) -> Path:
    """Where a run leaves its files. One of another size is another run: a small one leaves a full one alone."""
    return out / f"{experiment}-{engine}-{seed}-{size if jobs is None else f'{jobs}jobs'}"


async def run(
    experiment: Experiment, kind: str, *, seed: int, size: str, out: Path, say: Say, jobs: int | None = None
) -> dict[str, Any]:
    """Do it, check it, and leave histories, state and figures in `out`; the figures."""
    asked = experiment.small if size == "small" else experiment.full
    if jobs is not None:
        asked = Size(jobs, max(1, asked.faults * jobs // asked.jobs))
    folder = folder_of(out, experiment.id, kind, seed, size, jobs)
    if folder.exists():
        shutil.rmtree(folder)
    began = time.monotonic()
    disk = experiment.disk.get(kind.removeprefix("http-"))
    async with staged(kind, folder, seed, lease_seconds=experiment.lease_seconds, disk=disk) as stage:
        async with experiment.around(stage) as given:
            done, servers = Run(stage, asked, lambda: False, given), lives(stage)
            await (_alone if experiment.alone else _play)(experiment, done, say)
        state = {**await _state(stage, done), "served": await served(stage, servers)}
    (folder / "state.json").write_text(json.dumps(state))
    lines = history.read(folder / "histories")
    # Deaths and lost answers at fault points are told by those that they happened to.
    done.faults += sum(line["process"] == "faultpoint" for line in lines)
    facts = gather(lines, state)
    found = verdict(experiment, facts, done)
    idle = 0 if experiment.alone else idle_faults(facts)
    told = figures(
        experiment,
        facts,
        found,
        engine=kind,
        seed=seed,
        size=size,
        seconds=time.monotonic() - began,
        faults=max(0, done.faults - idle),
        idle=idle,
        notes=done.notes,
        commit=commit(),
    )
    (folder / "figures.json").write_text(json.dumps(told, indent=1) + "\n")
    return told


def verdict(experiment: Experiment, facts: Facts, done: Run) -> list[Violation]:
    """What breaks the safety rules, and what the experiment asks for besides; also what it forgives."""
    found = check(facts)
    found += experiment.bar(facts, done)
    if experiment.recovery is not None:
        times = recovery_times(facts)
        found += within(times.whole, experiment.lease_seconds + experiment.recovery, "a whole worker")
        found += within(times.child, experiment.recovery, "a child under its supervisor")
    return found


async def _play(experiment: Experiment, run: Run, say: Say) -> None:
    stage, size = run.stage, run.size
    for number in range(experiment.workers):
        stage.worker(f"worker{number}", concurrency=experiment.concurrency)
    say("warm: waiting until every worker is at work")
    warm = stage.producer("producer-warm", WARM_JOBS, 50.0, {"chaos.ok": 1.0})
    await finished([warm])
    await stage.until(lambda: _nothing_live(stage), "the first jobs have ended", within=START_SECONDS)
    producers = []
    if experiment.rate:
        half = size.jobs // 2
        producers = [
            stage.producer(
                f"producer{number}", half, experiment.rate / 2, experiment.kinds, fields=experiment.fields
            )
            for number in range(2)
        ]
    stage.nemesis.write("phase", "ok", name=LOAD)
    run.producing = lambda: any(producer.running for producer in producers)
    telling = asyncio.create_task(_tell(run, say))
    try:
        say(f"faults: {size.faults} on {size.jobs:,} jobs")
        faults = asyncio.ensure_future(experiment.faults(run))
        await finished(producers)
        if producers:
            stage.nemesis.write("phase", "ok", name=LOAD_OVER)
        await faults
    finally:
        telling.cancel()
    say("heal and drain: no more faults, everything has to end")
    stage.heal()
    try:
        await stage.until(lambda: _nothing_live(stage), "every job has ended", within=DRAIN_SECONDS)
    except RunBroken as error:
        say(f"{error}: the checker will say which")
    # What is reported twice is reported by now.
    await asyncio.sleep(stage.lease_seconds)


async def _alone(experiment: Experiment, run: Run, say: Say) -> None:
    """Nobody else is there: the experiment does it all."""
    telling = asyncio.create_task(_tell(run, say))
    try:
        await experiment.faults(run)
    finally:
        telling.cancel()


async def _nothing_live(stage: Stage) -> bool:
    return await stage.live() == 0


async def _tell(run: Run, say: Say) -> None:
    while True:
        await asyncio.sleep(TELL_EVERY)
        say(f"{run.faults} of {run.size.faults} faults so far")


async def _state(stage: Stage, run: Run) -> dict[str, Any]:
    engine = await stage.engine()
    epoch = time.time() - time.monotonic()
    held = await snapshot(engine, epoch=epoch, effects=await effects_of(stage), seen=run.seen)
    return together([*run.states, held])


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"
