"""A store that is restored from a copy while its old workers live on: E34."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from chaos.checker import Violation
from chaos.experiment import Experiment, Run, Size
from chaos.experiments.direct import leased_here, somebody
from chaos.facts import Facts
from chaos.recording import RecordingEngine
from chaos.stage import RunBroken, Stage
from devtools.postgres import PrivatePostgres
from ropeway.core.errors import LeaseLost, RopewayError
from ropeway.core.job import NewJob
from ropeway.core.outcome import Done
from ropeway.engines.open import engine_for
from ropeway.engines.protocol import Engine, Leased, Settled, Settlement
from ropeway.settings import Settings

# ── E34 ──

#: Jobs of one cycle that have the same history: leased for long or for a moment before the copy is made, leased
#: after it, and not at all.
SHARE: Final = 20

#: Seconds of a lease that is over when the copy is looked at.
BRIEF: Final = 1.0
#: Seconds within which leases that are over have to be taken back.
RESCUE: Final = 30.0

#: What must not be, and how often it was: the names of a run's notes.
WRONG: Final = (
    "younger tickets accepted",
    "older tickets refused",
    "jobs missing after a restore",
    "older tickets accepted after another lease",
    "new tickets refused",
)
TRIED: Final = "tickets tried on copies"


async def restored(run: Run) -> None:
    """Copy, go on, restore: tickets that are younger than the copy are void there. Older ones are still good,
    until their lease is over and somebody else has the job."""
    engine = await run.stage.recorded()
    run.notes |= dict.fromkeys((*WRONG, TRIED), 0)
    for cycle in range(run.size.faults):
        queue = f"copy{cycle}"
        jobs = [NewJob("chaos.ok", queue=queue, idempotency_key=f"{queue}-{i}") for i in range(4 * SHARE)]
        await engine.enqueue(jobs)
        older = await _leased(engine, run, queue)
        brief = await _leased(engine, run, queue, seconds=BRIEF)
        copy = await asyncio.to_thread(_copied, run.stage, cycle)
        younger = await _leased(engine, run, queue)
        async with engine_for(
            Settings.load({"url": await asyncio.to_thread(_restored, run.stage, cycle, copy)})
        ) as other:
            await _try_tickets(run, other, queue, older=older, brief=brief, younger=younger)
        await engine.settle(_acks([*older, *brief, *younger, *await _leased(engine, run, queue)]))
        run.faults += 1


async def _leased(engine: RecordingEngine, run: Run, queue: str, *, seconds: float = 60.0) -> list[Leased]:
    leases = await leased_here(engine, run, queue, SHARE, seconds=seconds)
    if len(leases) != SHARE:
        raise RunBroken(f"{len(leases)} jobs of {SHARE} could be leased")
    return leases


async def _try_tickets(
    run: Run, copy: Engine, queue: str, *, older: list[Leased], brief: list[Leased], younger: list[Leased]
) -> None:
    """Report what the old workers have done to the restored store, and take what is there to be taken."""
    notes = run.notes
    notes["younger tickets accepted"] += _accepted(await copy.settle(_acks(younger)))
    notes["older tickets refused"] += SHARE - _accepted(await copy.settle(_acks(older)))
    taken_back: set[object] = set()

    async def all_taken_back() -> bool:
        taken_back.update(each.id for each in await copy.rescue())
        return len(taken_back) >= SHARE

    await run.stage.until(all_taken_back, "leases that are over are taken back on a copy", within=RESCUE)
    again: list[Leased] = []
    while leases := (await copy.lease([queue], 100, somebody("after the restore"), lease_seconds=60.0)).leases:
        again += leases
    # Those that nobody had, those that were leased after the copy was made, and those that were taken back.
    notes["jobs missing after a restore"] += 3 * SHARE - len(again)
    answers = await copy.settle(_acks(brief))
    notes["older tickets accepted after another lease"] += sum(not isinstance(each, LeaseLost) for each in answers)
    notes["new tickets refused"] += len(again) - _accepted(await copy.settle(_acks(again)))
    notes[TRIED] += len(younger) + len(older) + len(brief) + len(again)


def _acks(leases: Sequence[Leased]) -> list[Settlement]:
    return [Settlement(each.lease, Done()) for each in leases]


def _accepted(answers: Sequence[Settled | RopewayError]) -> int:
    return sum(isinstance(answer, Settled) and not answer.already for answer in answers)


def fenced_after_restore(_facts: Facts, run: Run) -> list[Violation]:
    found = [Violation("E34", "-", f"{name}: {run.notes[name]:g}") for name in WRONG if run.notes[name]]
    if not run.notes[TRIED]:
        found.append(Violation("E34", "-", "no ticket was tried on a copy: the run proves nothing"))
    return found


# ── copies, as docs/operations.md has them ──


def _copied(stage: Stage, cycle: int) -> Path:
    """Everything in the store, in a file."""
    if stage.server is not None:
        path = stage.folder / f"{cycle}.sql"
        dump(stage.server, stage.direct, path)
        return path
    path = stage.folder / f"copy{cycle}.db"
    source = stage.direct.removeprefix("sqlite:///")
    with closing(sqlite3.connect(source)) as store, closing(sqlite3.connect(path)) as copy:
        store.backup(copy)
    return path


def _restored(stage: Stage, cycle: int, copy: Path) -> str:
    """The address of a store that is made from the copy."""
    if stage.server is None:
        return f"sqlite:///{copy}"
    url = stage.server.create_database(f"restored{cycle}")
    _restore(stage.server, url, copy)
    return url


def dump(server: PrivatePostgres, url: str, path: Path, *options: str) -> None:
    """Everything in a database, as text; with `options` a part of it."""
    _program(server, ["pg_dump", "--dbname", url, "--file", str(path), *options])


def _restore(server: PrivatePostgres, url: str, path: Path) -> None:
    strict = ["--quiet", "--no-psqlrc", "-v", "ON_ERROR_STOP=1"]
    _program(server, ["psql", *strict, "--dbname", url, "--file", str(path)])


def _program(server: PrivatePostgres, command: list[str]) -> None:
    program = server.bindir / command[0]
    env = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}
    done = subprocess.run([str(program), *command[1:]], capture_output=True, text=True, check=False, env=env)
    if done.returncode != 0:
        raise RunBroken(f"{command[0]} failed: {done.stderr[-400:]}")


EXPERIMENTS = (
    Experiment(
        id="E34",
        title="restored from a copy",
        small=Size(400, 5),
        full=Size(800, 10),
        faults=restored,
        bar=fenced_after_restore,
        engines=("sqlite", "postgres"),
        alone=True,
    ),
)
