"""Batches of a thousand jobs that run out of time or into a deadlock: all of a batch is stored, or none: E11."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import asyncpg

from chaos.checker import Violation
from chaos.experiment import Experiment, Run, Size
from chaos.experiments.direct import finish
from chaos.facts import Facts
from chaos.history import Recorder
from chaos.recording import RecordingEngine
from chaos.stage import Stage
from ropeway.core.errors import EngineError, Indeterminate, KeyInFlight, RopewayError
from ropeway.core.job import NewJob
from ropeway.engines.postgres import PostgresEngine
from ropeway.engines.postgres.connection import Bounds

#: Seconds that a batch has, in turn: on any machine some are too short for a thousand jobs and some are not.
TIMES: Final = (0.015, 0.02, 0.025, 0.05, 0.5)

#: For so many batches that are short of time there is one that meets a deadlock.
PER_DEADLOCK: Final = 4

#: PostgreSQL looks for a deadlock after so long. Less than the engine waits for a key that somebody holds.
DEADLOCK_AFTER: Final = "60ms"

#: What must not be, and what there must be some of.
WRONG: Final = ("stored in part", "refused and stored")
WANTED: Final = ("refused for time", "in time", "deadlocks")


async def all_or_none(run: Run) -> None:
    """Batches with hardly any time, and batches whose keys somebody takes in the opposite order."""
    stage = run.stage
    run.notes |= dict.fromkeys((*WRONG, *WANTED), 0.0)
    await _on_the_database(stage, f"ALTER DATABASE chaos SET deadlock_timeout = '{DEADLOCK_AFTER}'")
    patient = await stage.recorded()
    async with _hurried(stage) as engines:
        for turn in range(run.size.faults):
            await _short_of_time(run, engines[turn % len(engines)], patient, f"slow{turn}")
            if turn % PER_DEADLOCK == PER_DEADLOCK - 1:
                await _crossed(run, patient, f"crossed{turn}")
    run.faults = int(run.notes["refused for time"] + run.notes["deadlocks"])


@asynccontextmanager
async def _hurried(stage: Stage) -> AsyncIterator[list[RecordingEngine]]:
    """One engine for each of the times."""
    async with contextlib.AsyncExitStack() as stack:
        engines = []
        for place, seconds in enumerate(TIMES):
            engine = PostgresEngine(stage.direct, bounds=Bounds(statement=seconds, lock=0.05, idle=10.0))
            stack.push_async_callback(engine.close)
            await _opened(engine)
            engines.append(RecordingEngine(engine, Recorder(stage.histories, f"hurried{place}")))
        yield engines


async def _opened(engine: PostgresEngine) -> None:
    """The questions of an engine that opens are under the same short time."""
    for _ in range(20):
        with contextlib.suppress(EngineError):
            await engine.open()
            return
    await engine.open()


def _thousand(queue: str) -> list[NewJob]:
    return [NewJob("chaos.ok", queue=queue, idempotency_key=f"{queue}-{index:04}") for index in range(1_000)]


async def _short_of_time(run: Run, hurried: RecordingEngine, patient: RecordingEngine, queue: str) -> None:
    jobs = _thousand(queue)
    try:
        await hurried.enqueue(jobs)
        run.notes["in time"] += 1
    except EngineError as error:
        run.notes["refused for time"] += 1
        run.stage.nemesis.write("fault", "ok", kind="timeout")
        await _asked_again(run, patient, jobs, error)
    await finish(patient, run, queue)


async def _asked_again(run: Run, patient: RecordingEngine, jobs: list[NewJob], error: RopewayError) -> None:
    """Who of a batch that was refused is known tells how much of it was stored."""
    answers = await patient.enqueue(jobs)
    wrong = what_is_wrong([answer.deduplicated for answer in answers], error)
    if wrong is not None:
        run.notes[wrong] += 1


def what_is_wrong(known: Sequence[bool], error: RopewayError) -> str | None:
    """What is wrong with a batch that was refused, by which of its jobs are known afterwards."""
    if any(known) and not all(known):
        return "stored in part"
    # Only who says that it does not know may have stored it.
    if all(known) and not isinstance(error, Indeterminate):
        return "refused and stored"
    return None


async def _crossed(run: Run, engine: RecordingEngine, queue: str) -> None:
    """A batch takes its keys in their order; somebody else's transaction has the last one and wants the first."""
    stage = run.stage
    jobs = _thousand(queue)
    before = _deadlocks(stage)
    async with _somebody_else(stage) as connection:
        await engine.enqueue_in(connection, jobs[-1:])
        stage.nemesis.write("fault", "ok", kind="deadlock")
        batch = asyncio.create_task(engine.enqueue(jobs))
        await _waiting(stage, batch)
        await engine.enqueue_in(connection, jobs[:1])
    try:
        await batch
    except (EngineError, KeyInFlight) as error:
        await _asked_again(run, engine, jobs, error)
    run.notes["deadlocks"] += _deadlocks(stage) > before
    await finish(engine, run, queue)


@asynccontextmanager
async def _somebody_else(stage: Stage) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A transaction that comes to nothing. It does not look for deadlocks: the batch is to be the victim."""
    connection = await asyncpg.connect(stage.direct)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("SET LOCAL deadlock_timeout = '60s'")
        yield connection
        await transaction.rollback()
    finally:
        await connection.close()


async def _waiting(stage: Stage, batch: asyncio.Task[object]) -> None:
    """Until the batch waits for a key, or is over. It waits for no longer than a moment: look closely."""
    connection = await asyncpg.connect(stage.direct)
    try:
        while not batch.done():
            if await connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                return
            await asyncio.sleep(0.002)
    finally:
        await connection.close()


def _deadlocks(stage: Stage) -> int:
    assert stage.server is not None
    return stage.server.log().count("deadlock detected")


async def _on_the_database(stage: Stage, statement: str) -> None:
    connection = await asyncpg.connect(stage.direct)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def whole_batches(_facts: Facts, run: Run) -> list[Violation]:
    """No batch was stored in part, none that was said not to be; and all three cases did occur."""
    found = [
        Violation("E11", "-", f"{run.notes[name]:g} batches were {name}") for name in WRONG if run.notes[name]
    ]
    found += [
        Violation("E11", "-", f"no batches of the kind '{name}': the run proves nothing")
        for name in WANTED
        if not run.notes[name]
    ]
    return found


EXPERIMENTS = (
    Experiment(
        id="E11",
        title="batches that run out of time or into a deadlock",
        small=Size(30_000, 30),
        full=Size(500_000, 500),
        faults=all_or_none,
        bar=whole_batches,
        engines=("postgres",),
        alone=True,
    ),
)
