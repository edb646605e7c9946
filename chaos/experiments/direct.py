"""Calls made by the experiment itself, in orders that no load would find: E28, E29."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from chaos.checker import Violation
from chaos.experiment import Experiment, Run, Size
from chaos.facts import Facts
from chaos.history import token_hash
from chaos.recording import RecordingEngine
from ropeway.core.errors import JobEnded, LeaseLost, RopewayError
from ropeway.core.job import NewJob
from ropeway.core.lease import Lease
from ropeway.core.outcome import Done, Failed, Outcome
from ropeway.core.payload import JobError
from ropeway.engines.protocol import Leased, Settled, Settlement, WorkerRef
from ropeway.runtime.ids import token

BATCH = 100


def somebody(name: str) -> WorkerRef:
    return WorkerRef(name, token())


async def leased_here(
    engine: RecordingEngine, run: Run, queue: str, count: int, *, seconds: float = 60.0
) -> list[Leased]:
    batch = await engine.lease([queue], count, somebody("direct"), lease_seconds=seconds)
    for each in batch.leases:
        ticket = {"attempt": each.lease.attempt, "token": token_hash(each.lease.token)}
        run.stage.nemesis.write("start", "ok", job=str(each.lease.job_id), **ticket)
    return batch.leases


async def finish(engine: RecordingEngine, run: Run, queue: str) -> None:
    """Run and ack all of a queue, so that the run ends with everything ended."""
    while leases := await leased_here(engine, run, queue, 1_000):
        answers = await engine.settle([Settlement(each.lease, Done()) for each in leases])
        for answer in answers:
            if isinstance(answer, RopewayError):
                raise answer


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
        wrong += not answered_right(answers, stale)
        run.faults += 1
    run.notes["batches answered wrongly"] = wrong


def answered_right(answers: Sequence[Settled | RopewayError], stale: int) -> bool:
    """Whether all are done now but the stale one, which is told that its ticket is void (409)."""
    return all(
        isinstance(answer, LeaseLost | JobEnded)
        if place == stale
        else isinstance(answer, Settled) and not answer.already
        for place, answer in enumerate(answers)
    )


def batches_were_right(_facts: Facts, run: Run) -> list[Violation]:
    wrong = run.notes["batches answered wrongly"]
    return [Violation("E28", "-", f"{wrong:g} batches were answered wrongly")] if wrong else []


# ── E29: the same few calls in every order, one after the other and all at once ──

#: Seconds of a lease that is left to expire: the shortest there is. All others outlast their race.
SHORT, LONG = 1.0, 60.0

#: Seconds beyond the lease after which it has expired, and within which a server has noticed by itself.
PAST, SWEPT = 0.05, 1.5

#: Races that are under way at a time: most of those with an expiry do nothing but wait for it.
AT_A_TIME: Final = 16


@dataclass(frozen=True)
class Race:
    """One job that runs, and whoever does something with it."""

    engine: RecordingEngine
    #: Takes back what has expired; by itself where only the server can.
    rescue: Callable[[], Awaitable[object]]
    queue: str
    id: UUID
    lease: Lease
    seconds: float
    at_once: bool


Step = Callable[[Race], Awaitable[object]]


def _settling(outcome: Outcome) -> Step:
    return lambda race: race.engine.settle([Settlement(race.lease, outcome)])


async def _lease_again(race: Race) -> None:
    await race.engine.lease([race.queue], 1, somebody("second"), lease_seconds=race.seconds)


async def _expire(race: Race) -> None:
    """The lease runs out and is taken back. Where everything happens at once it has run out already."""
    if not race.at_once:
        await asyncio.sleep(race.seconds + PAST)
    await race.rescue()


STEPS: dict[str, Step] = {
    "ack": _settling(Done()),
    "nack": _settling(Failed(JobError("Trouble", "as asked"), retry_after=0.0)),
    "give up": _settling(Failed(JobError("Trouble", "as asked"), retry=False)),
    "beat": lambda race: race.engine.heartbeat([race.lease]),
    "cancel": lambda race: race.engine.cancel([race.id]),
    "redrive": lambda race: race.engine.redrive([race.id]),
    "lease": _lease_again,
    "expire": _expire,
}

DEPTH = 4

#: Every order, once one after the other and once all at the same time.
RACES: Final = 2 * len(STEPS) ** DEPTH


async def every_order(run: Run) -> None:
    """Every sequence of four of the calls on a job that runs: one after the other, and all four at once."""
    stage = run.stage
    engine = await stage.recorded()
    rescue = await _rescuer(run)
    orders = list(itertools.product(STEPS, repeat=DEPTH))
    stage.chance.shuffle(orders)
    races = list(itertools.product(orders, (False, True)))[: run.size.faults]
    room = asyncio.Semaphore(AT_A_TIME)

    async def one(number: int, order: Sequence[str], at_once: bool) -> None:
        async with room:
            await _raced(run, engine, rescue, f"race-{number}", order, at_once=at_once)
            run.faults += 1

    async with asyncio.TaskGroup() as group:
        for number, (order, at_once) in enumerate(races):
            group.create_task(one(number, order, at_once))
    run.notes["orders one after the other"] = sum(not at_once for _, at_once in races)
    run.notes["orders at once"] = sum(at_once for _, at_once in races)


async def _rescuer(run: Run) -> Callable[[], Awaitable[object]]:
    """Who takes back what has expired: upkeep, called here; of a memory behind its server, that server."""
    if run.stage.store == "memory":
        return lambda: asyncio.sleep(SWEPT)
    store = await run.stage.engine()
    return store.rescue


async def _raced(
    run: Run,
    engine: RecordingEngine,
    rescue: Callable[[], Awaitable[object]],
    queue: str,
    order: Sequence[str],
    *,
    at_once: bool,
) -> None:
    seconds = SHORT if "expire" in order else LONG
    (answer,) = await engine.enqueue([NewJob("chaos.ok", queue=queue, idempotency_key=queue, max_attempts=25)])
    if seconds == SHORT:
        run.stage.nemesis.write("fault", "ok", kind="expire", until=time.monotonic() + LONG)
    (leased,) = await leased_here(engine, run, queue, 1, seconds=seconds)
    race = Race(engine, rescue, queue, answer.id, leased.lease, seconds, at_once)
    if at_once:
        if seconds == SHORT:
            await asyncio.sleep(SHORT + PAST)
        await asyncio.gather(*(STEPS[name](race) for name in order))
    else:
        for name in order:
            await STEPS[name](race)
    # Whatever it has come to, it ends: nothing is left over for the drain.
    await engine.cancel([answer.id])


def both_ways(facts: Facts, run: Run) -> list[Violation]:
    """Races were run both ways, and some leases did expire: otherwise C20 had nothing to look at."""
    found = [
        Violation("E29", "-", f"no {name}: the run proves nothing")
        for name in ("orders one after the other", "orders at once")
        if not run.notes[name]
    ]
    expired = sum(event.data.get("cause") == "expired" for events in facts.events.values() for event in events)
    run.notes["leases that expired"] = expired
    if not expired:
        found.append(Violation("E29", "-", "no lease expired: the run proves nothing"))
    return found


EXPERIMENTS = (
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
        title="cancel, ack, nack, beat, redrive, lease and expire in every order",
        small=Size(800, 800),
        full=Size(RACES, RACES),
        faults=every_order,
        bar=both_ways,
        alone=True,
    ),
)
