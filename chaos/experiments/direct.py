"""Calls made by the experiment itself, in orders that no load would find: E11, E28, E29."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from uuid import UUID

from chaos.checker import Violation
from chaos.experiment import Experiment, Run, Size
from chaos.facts import Facts
from chaos.history import Recorder
from chaos.recording import RecordingEngine
from ropeway.core.errors import EngineError, RopewayError
from ropeway.core.job import NewJob
from ropeway.core.lease import Lease
from ropeway.core.outcome import Done, Failed, Outcome
from ropeway.core.payload import JobError
from ropeway.core.states import EventName
from ropeway.engines.protocol import Leased, Settled, Settlement, WorkerRef
from ropeway.runtime.ids import token

BATCH = 100


def somebody(name: str) -> WorkerRef:
    return WorkerRef(name, token())


async def leased_here(engine: RecordingEngine, run: Run, queue: str, count: int) -> list[Leased]:
    batch = await engine.lease([queue], count, somebody("direct"), lease_seconds=60.0)
    for each in batch.leases:
        run.stage.nemesis.write("start", "ok", job=str(each.lease.job_id), attempt=each.lease.attempt)
    return batch.leases


# ── E28: a batch of outcomes of which one is stale ──


async def partial_batches(run: Run) -> None:
    """A hundred acks in one call, and one of the tickets is void."""
    engine = await run.stage.recorded()
    wrong = 0
    for turn in range(run.size.faults):
        queue = f"batch{turn}"
        keys = [f"{queue}-{index}" for index in range(BATCH)]
        await engine.enqueue([NewJob("chaos.ok", queue=queue, idempotency_key=key) for key in keys])
        leases = await leased_here(engine, run, queue, BATCH)
        stale = run.stage.chance.randrange(BATCH)
        await engine.cancel([leases[stale].lease.job_id])
        answers = await engine.settle([Settlement(each.lease, Done()) for each in leases])
        done = [isinstance(answer, Settled) and not answer.already for answer in answers]
        wrong += done != [index != stale for index in range(BATCH)]
        run.faults += 1
    run.notes["batches answered wrongly"] = wrong


def batches_were_right(_facts: Facts, run: Run) -> list[Violation]:
    wrong = run.notes["batches answered wrongly"]
    return [Violation("E28", "-", f"{wrong:g} batches were answered wrongly")] if wrong else []


# ── E29: the same few calls in every order, one after the other and all at once ──

Step = Callable[[RecordingEngine, UUID, Lease], Awaitable[object]]


def _settling(outcome: Outcome) -> Step:
    return lambda engine, _id, lease: engine.settle([Settlement(lease, outcome)])


async def _lease_again(engine: RecordingEngine, id: UUID, _lease: Lease) -> None:
    await engine.lease([_queue_of(id)], 1, somebody("second"), lease_seconds=60.0)


def _queue_of(id: UUID) -> str:
    return f"race-{QUEUES[id]}"


#: The queue of each job under way.
QUEUES: dict[UUID, int] = {}

STEPS: dict[str, Step] = {
    "ack": _settling(Done()),
    "nack": _settling(Failed(JobError("Trouble", "as asked"), retry_after=0.0)),
    "give up": _settling(Failed(JobError("Trouble", "as asked"), retry=False)),
    "beat": lambda engine, _id, lease: engine.heartbeat([lease]),
    "cancel": lambda engine, id, _lease: engine.cancel([id]),
    "redrive": lambda engine, id, _lease: engine.redrive([id]),
    "lease": _lease_again,
}

DEPTH = 4


async def every_order(run: Run) -> None:
    """Every sequence of four of the calls on a job that runs; each also with all four at the same time."""
    engine = await run.stage.recorded()
    orders = list(itertools.product(STEPS, repeat=DEPTH))
    run.stage.chance.shuffle(orders)
    for number, order in enumerate(orders[: run.size.faults]):
        at_once = number % 2 == 1
        (answer,) = await engine.enqueue(
            [NewJob("chaos.ok", queue=f"race-{number}", idempotency_key=f"race-{number}", max_attempts=25)]
        )
        QUEUES[answer.id] = number
        (leased,) = await leased_here(engine, run, f"race-{number}", 1)
        steps = [STEPS[name](engine, answer.id, leased.lease) for name in order]
        if at_once:
            await asyncio.gather(*steps)
        else:
            for step in steps:
                await step
        # Whatever it has come to, it ends: nothing is left over for the drain.
        await engine.cancel([answer.id])
        run.faults += 1


# ── E11: batches that take too long ──


#: Seconds that a thousand jobs take, more or less: some of the batches get through.
SHORT_OF_TIME = 0.01


async def slow_batches(run: Run) -> None:
    """A thousand keyed jobs in one call with hardly any time for it: all of them, or none, and then all."""
    from ropeway.engines.postgres import PostgresEngine
    from ropeway.engines.postgres.connection import Bounds

    stage = run.stage
    hurried_engine = PostgresEngine(stage.direct, bounds=Bounds(statement=SHORT_OF_TIME, lock=0.05, idle=10.0))
    patient = await stage.recorded()
    hurried = RecordingEngine(hurried_engine, Recorder(stage.histories, "hurried"))
    await hurried_engine.open()
    try:
        for turn in range(run.size.faults):
            jobs = [
                NewJob("chaos.ok", queue=f"slow{turn}", idempotency_key=f"slow-{turn}-{index}")
                for index in range(1_000)
            ]
            try:
                await hurried.enqueue(jobs)
            except EngineError:
                run.faults += 1
                stage.nemesis.write("fault", "ok", kind="timeout")
                await patient.enqueue(jobs)
            await finish(patient, run, f"slow{turn}")
    finally:
        await hurried_engine.close()
    run.notes["batches refused for time"] = run.faults


def some_were_refused(_facts: Facts, run: Run) -> list[Violation]:
    return [] if run.faults else [Violation("E11", "-", "no batch ran out of time: the run proves nothing")]


async def finish(engine: RecordingEngine, run: Run, queue: str) -> None:
    """Run and ack all of a queue, so that the run ends with everything ended."""
    while leases := await leased_here(engine, run, queue, 1_000):
        answers = await engine.settle([Settlement(each.lease, Done()) for each in leases])
        for answer in answers:
            if isinstance(answer, RopewayError):
                raise answer


# ── E27: very many dead jobs ──

#: Seconds that a page of the dead may take at the 99th percentile.
LIST_SECONDS = 0.1


async def many_dead(run: Run) -> None:
    """A great heap of dead jobs is listed, and a part of it made to run again by somebody who is killed."""
    stage = run.stage
    engine = await stage.recorded()
    for turn in range(run.size.jobs // 1_000):
        # A tenth of them is to run again.
        queue = "again" if turn % 10 == 0 else "dead"
        jobs = [NewJob("chaos.ok", queue=queue, idempotency_key=f"dead-{turn}-{i}") for i in range(1_000)]
        await engine.enqueue(jobs)
        leases = await leased_here(engine, run, queue, 1_000)
        refused = Failed(JobError("Trouble", f"of kind {turn % 7}"), retry=False)
        await engine.settle([Settlement(each.lease, refused) for each in leases])
    times = []
    for _ in range(100):
        began = time.perf_counter()
        await engine.find(order="died", limit=50)
        times.append(time.perf_counter() - began)
    run.notes["list of the dead p99, s"] = round(sorted(times)[98], 4)
    command = [sys.executable, "-m", "chaos.redriving", stage.direct, "again"]
    while True:
        member = stage.add(f"redrive{run.faults}", command, kept=False)
        if run.faults < run.size.faults:
            await asyncio.sleep(stage.chance.uniform(0.4, 0.9))
            stage.nemesis.write("fault", "ok", kind="kill", target_pid=member.process.pid)
            member.signal_all(signal.SIGKILL)
            run.faults += 1
        await asyncio.to_thread(member.process.wait)
        if member.process.returncode == 0:
            break
    await finish(engine, run, "again")


def redriven_once(facts: Facts, run: Run) -> list[Violation]:
    found = []
    p99 = run.notes["list of the dead p99, s"]
    if p99 > LIST_SECONDS:
        found.append(Violation("E27", "-", f"a page of the dead takes {p99:g} s"))
    for id, events in facts.events.items():
        again = sum(event.name == EventName.RETRIED for event in events)
        if again > 1:
            found.append(Violation("E27", id, f"was made to run again {again} times"))
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
    Experiment(
        id="E11",
        title="batches that run out of time",
        small=Size(40_000, 40),
        full=Size(500_000, 500),
        faults=slow_batches,
        bar=some_were_refused,
        engines=("postgres",),
        alone=True,
    ),
    Experiment(
        id="E28",
        harmful=False,
        title="one stale ticket in a batch of a hundred",
        small=Size(5_000, 50),
        full=Size(50_000, 500),
        faults=partial_batches,
        bar=batches_were_right,
        alone=True,
    ),
    Experiment(
        id="E29",
        harmful=False,
        title="cancel, ack, nack, beat, redrive and lease in every order",
        small=Size(800, 800),
        full=Size(2_401, 2_401),
        faults=every_order,
        alone=True,
    ),
)
