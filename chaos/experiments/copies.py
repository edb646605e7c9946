"""A store that is restored from a dump while its old workers live on: E34."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

from chaos.checker import Violation
from chaos.experiment import Experiment, Run, Size
from chaos.experiments.direct import leased_here, somebody
from chaos.facts import Facts
from chaos.stage import RunBroken
from devtools.postgres import PrivatePostgres
from ropeway.core.errors import RopewayError
from ropeway.core.job import NewJob
from ropeway.core.outcome import Done
from ropeway.engines.postgres import PostgresEngine
from ropeway.engines.protocol import Settlement

# ── E34 ──

#: Jobs of one cycle: leased before the dump, leased after it, and not at all.
SHARE = 20


async def restored(run: Run) -> None:
    """Dump, go on, restore: tickets that are younger than the dump are void, older ones are still good."""
    stage = run.stage
    assert stage.server is not None
    engine = await stage.recorded()
    younger_accepted = older_refused = 0
    for cycle in range(run.size.faults):
        queue = f"copy{cycle}"
        jobs = [NewJob("chaos.ok", queue=queue, idempotency_key=f"{queue}-{i}") for i in range(3 * SHARE)]
        await engine.enqueue(jobs)
        older = await leased_here(engine, run, queue, SHARE)
        copied = stage.folder / f"{cycle}.sql"
        await asyncio.to_thread(dump, stage.server, stage.direct, copied)
        younger = await leased_here(engine, run, queue, SHARE)
        url = stage.server.create_database(f"restored{cycle}")
        await asyncio.to_thread(_restore, stage.server, url, copied)
        async with PostgresEngine(url) as copy:
            answers = await copy.settle([Settlement(each.lease, Done()) for each in younger])
            younger_accepted += sum(not isinstance(answer, RopewayError) for answer in answers)
            answers = await copy.settle([Settlement(each.lease, Done()) for each in older])
            older_refused += sum(isinstance(answer, RopewayError) for answer in answers)
            # The rest of the queue, and what was leased after the dump, is there to be taken.
            batch = await copy.lease([queue], 100, somebody("after the restore"), lease_seconds=60.0)
            missing = 2 * SHARE - len(batch.leases)
            run.notes["jobs missing after a restore"] = run.notes.get("jobs missing after a restore", 0) + missing
        await engine.settle([Settlement(each.lease, Done()) for each in (*older, *younger)])
        rest = await leased_here(engine, run, queue, SHARE)
        await engine.settle([Settlement(each.lease, Done()) for each in rest])
        run.faults += 1
    run.notes["younger tickets accepted"] = younger_accepted
    run.notes["older tickets refused"] = older_refused


def fenced_after_restore(_facts: Facts, run: Run) -> list[Violation]:
    return [
        Violation("E34", "-", f"{name}: {run.notes[name]:g}")
        for name in ("younger tickets accepted", "older tickets refused", "jobs missing after a restore")
        if run.notes[name]
    ]


def dump(server: PrivatePostgres, url: str, path: Path) -> None:
    """Everything in a database, as text."""
    _program(server, ["pg_dump", "--dbname", url, "--file", str(path)])


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
        title="restored from a dump",
        small=Size(300, 5),
        full=Size(600, 10),
        faults=restored,
        bar=fenced_after_restore,
        engines=("postgres",),
        alone=True,
    ),
)
