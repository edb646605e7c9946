"""A small world on virtual time: producers, workers, upkeep and operators round one engine, and a nemesis.

Everything is drawn from the seed, so a run that finds something can be had again. It takes some milliseconds,
because nobody waits for real; the engine is a real one that answers at once, right or broken on purpose.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock
from uuid import UUID

import msgspec

from chaos.checker import Violation, check
from chaos.facts import Facts, gather
from chaos.history import LineRecorder, Lines, token_hash
from chaos.network import Network
from chaos.recording import RecordingEngine
from chaos.snapshot import snapshot
from chaos.virtual import BEGIN, Sleep, Task, World, at_once
from ropeway.core.errors import EngineError, RopewayError
from ropeway.core.job import NewJob
from ropeway.core.lease import Lease
from ropeway.core.outcome import Done, Failed, Lost, Outcome, Released, Snoozed
from ropeway.core.payload import JobError
from ropeway.core.query import MAX_PAGE, JobFilter
from ropeway.core.retry import RetryPolicy
from ropeway.core.states import LIVE_STATES, TERMINAL_STATES, State
from ropeway.engines.memory import MemoryEngine
from ropeway.engines.protocol import Engine, EngineRules, Leased, Settlement, WorkerRef
from ropeway.runtime.clock import Clock
from ropeway.runtime.ids import token

QUEUE = "default"
LEASE_SECONDS = 3.0
BEAT_SECONDS = 1.0
CRASH_LIMIT = 3


#: Each kind of job and how often it comes. Those that always fail or always kill are rare in life, and the only
#: ones that show a limit which is not kept.
KINDS: dict[str, float] = {
    "chaos.ok": 5,
    "chaos.slow": 5,
    "chaos.flaky": 3,
    "chaos.fail": 3,
    "chaos.crash": 1,
    "chaos.snooze": 1,
}

SOON = RetryPolicy(base=0.2, factor=1.5, cap=1.0)

#: Makes the engine of one run, which is opened and closed by the run.
EngineMaker = Callable[[EngineRules, Clock], Engine]


@dataclass(frozen=True)
class Size:
    """How much happens in one run."""

    jobs: int = 70
    workers: int = 5
    seconds: float = 40.0
    #: Time to end everything once the faults are over; whoever is done sooner is not waited for.
    drain: float = 120.0
    loss: float = 0.08


USUAL = Size()


@dataclass
class Simulated:
    """What came of one run."""

    seed: int
    facts: Facts
    violations: list[Violation]
    lines: list[dict[str, Any]] = field(default_factory=list)


def simulate(seed: int, make: EngineMaker = MemoryEngine, size: Size = USUAL) -> Simulated:
    """One run: a legal one has no violations. The engine has to answer without waiting."""
    # Jitter of retries comes from the common source, ids and tokens from the machine's.
    random.seed(seed)
    with mock.patch.object(os, "urandom", random.Random(seed).randbytes):
        return _simulated(seed, make, size)


def _simulated(seed: int, make: EngineMaker, size: Size) -> Simulated:
    world = World(seed)
    rules = msgspec.structs.replace(
        EngineRules(), decisions=msgspec.structs.replace(EngineRules().decisions, crash_limit=CRASH_LIMIT)
    )
    lines = Lines(world.seconds)
    engine = make(rules, world)
    at_once(engine.open())
    try:
        scene = Scene(world, engine, lines, size)
        scene.begin()
        world.run(size.seconds)
        scene.heal()
        scene.drain()
        world.finish()
        final = at_once(snapshot(engine, epoch=BEGIN.timestamp(), seen=scene.seen))
    finally:
        at_once(engine.close())
    facts = gather(lines.lines, {**final, "crash_limit": CRASH_LIMIT})
    return Simulated(seed, facts, check(facts), lines.lines)


class Scene:
    """Who takes part, and what happens to them."""

    def __init__(self, world: World, engine: Engine, lines: Lines, size: Size) -> None:
        self.world = world
        self.engine = engine
        self.size = size
        self.seen: list[tuple[str, int]] = []
        self._lines = lines
        self._chance = world.chance
        self._nemesis = lines.recorder("nemesis")
        self._healed = False
        self._producing = 2
        self._workers: list[Worker] = []
        self._names = 0

    def begin(self) -> None:
        for number in range(self._producing):
            self.world.start(f"producer{number}", lambda task, n=number: self._produce(task, n))  # type: ignore[misc]
        for _ in range(self.size.workers):
            self._hire()
        self.world.start("upkeep", self._upkeep)
        self.world.start("operator", self._operate)
        self.world.start("follower", self._follow)
        self.world.start("nemesis", self._harm)

    def heal(self) -> None:
        """No more faults; whoever is paused goes on, and there are workers enough."""
        self._healed = True
        for worker in self._workers:
            worker.link.loss = 0.0

    def drain(self) -> None:
        """Go on until every job has ended or the time for it is over, and those that were paused have said their
        last, stale words."""
        over = self.world.time + self.size.drain
        awake = max(worker.task.paused_until for worker in self._workers)
        self._until_ended(over)
        self.world.run(max(self.world.time, awake) + 3.0)
        # The operator may have made one run again meanwhile.
        self._until_ended(over)

    def _until_ended(self, over: float) -> None:
        while self.world.time < over and (self._producing or self._live()):
            self.world.run(min(self.world.time + 2.0, over))

    def _live(self) -> bool:
        return bool(at_once(self.engine.count(JobFilter(states=LIVE_STATES), cap=1)).number)

    def connected(self, process: str) -> tuple[RecordingEngine, Network, LineRecorder]:
        """The engine over a network of one's own, with everything written down."""
        recorder = self._lines.recorder(process)
        link = Network(self.engine, self._chance, loss=0.0 if self._healed else self.size.loss)
        return RecordingEngine(link, recorder), link, recorder

    # ── those who ask for work ──

    async def _produce(self, task: Task, number: int) -> None:
        engine, _, _ = self.connected(task.name)
        kinds, weights = list(KINDS), list(KINDS.values())
        for index in range(self.size.jobs // 2):
            (kind,) = self._chance.choices(kinds, weights)
            job = NewJob(
                kind,
                queue=QUEUE,
                idempotency_key=f"{number}-{index}",
                max_attempts=3 if kind == "chaos.fail" else 5,
                delay=self._chance.choice([None, None, None, self._chance.uniform(0.5, 4.0)]),
                retry=SOON,
            )
            await self._enqueue(engine, job)
            if self._chance.random() < 0.15:
                await self._enqueue(engine, job)
            await Sleep(self._chance.uniform(0.0, 2 * self.size.seconds / self.size.jobs))
        self._producing -= 1

    async def _enqueue(self, engine: RecordingEngine, job: NewJob) -> None:
        """As any careful client: the same key again until there is an answer."""
        for _ in range(20):
            try:
                await engine.enqueue([job])
            except EngineError:
                await Sleep(self._chance.uniform(0.01, 0.2))
            else:
                return

    # ── those who keep house ──

    async def _upkeep(self, _task: Task) -> None:
        while True:
            await Sleep(self._chance.uniform(0.3, 1.0))
            await self.engine.rescue()
            await self.engine.expire()

    async def _follow(self, _task: Task) -> None:
        position = None
        while True:
            page = await self.engine.tail(position, limit=50)
            self.seen += [(str(event.job_id), event.seq) for event in page.events]
            position = page.position
            await Sleep(0.5)

    async def _operate(self, task: Task) -> None:
        engine, _, _ = self.connected(task.name)
        while not self._healed:
            await Sleep(self._chance.uniform(0.5, 1.5))
            cancels = self._chance.random() < 0.5
            # Running ones are cancelled, ended ones made to run again; the others refuse.
            where = JobFilter(states=frozenset({State.RUNNING}) if cancels else TERMINAL_STATES)
            found = (await self.engine.find(where, order="oldest", limit=MAX_PAGE)).jobs
            if not found:
                continue
            job = self._chance.choice(found)
            call = engine.cancel if cancels else engine.redrive
            try:
                await call([job.id])
            except RopewayError:
                continue

    # ── those who work, and those who disturb ──

    def _hire(self) -> None:
        self._names += 1
        name = f"worker{self._names}"
        worker = Worker(self, name)
        self._workers.append(worker)
        worker.task = self.world.start(name, worker.live)

    async def _harm(self, _task: Task) -> None:
        while not self._healed:
            await Sleep(self._chance.uniform(0.2, 1.0))
            living = [worker for worker in self._workers if worker.task.alive]
            if not living or self._healed:
                continue
            worker = self._chance.choice(living)
            if self._chance.random() < 0.25:
                self.kill(worker)
            else:
                # Long enough for somebody else to have the job, and mostly not so long that it is done.
                seconds = self._chance.uniform(1.1, 2.2) * LEASE_SECONDS
                worker.task.paused_until = self.world.time + seconds
                self._nemesis.write(
                    "fault", "ok", kind="pause", target_pid=worker.task.pid, until=self.world.time + seconds
                )

    def kill(self, worker: Worker) -> None:
        worker.task.alive = False
        self._nemesis.write("fault", "ok", kind="kill", target_pid=worker.task.pid)
        if self._chance.random() < 0.5:
            self.world.start("supervisor", lambda _task: self._give_up_for(worker))
        self._hire()

    async def _give_up_for(self, worker: Worker) -> None:
        """A supervisor saw the process die and says so at once."""
        await Sleep(self._chance.uniform(0.0, 0.3))
        engine, _, _ = self.connected("supervisor")
        try:
            await engine.end_grants(worker.ref.owner, started=set(worker.running), lost=Lost("crashed"))
        except EngineError:
            return  # the leases end by themselves


class Worker:
    """Leases, runs, beats and reports, with several jobs at once."""

    def __init__(self, scene: Scene, name: str) -> None:
        self.ref = WorkerRef(name, token())
        self.running: dict[UUID, Lease] = {}
        self.task: Task
        self._scene = scene
        self._chance = scene.world.chance
        self._engine, self.link, self._recorder = scene.connected(name)

    async def live(self, task: Task) -> None:
        self.task = task
        self._recorder.pid = task.pid
        self._scene.world.beside(task, self._beat())
        while True:
            room = 3 - len(self.running)
            batch = None
            if room > 0:
                try:
                    batch = await self._engine.lease([QUEUE], room, self.ref, lease_seconds=LEASE_SECONDS)
                except EngineError:
                    await self._forget_unknown()
            for leased in batch.leases if batch is not None else ():
                self.running[leased.lease.job_id] = leased.lease
                self._scene.world.beside(task, self._run(leased))
            await Sleep(self._chance.uniform(0.05, 0.3))

    async def _forget_unknown(self) -> None:
        """A lease call's answer was lost: give back whatever was leased by it."""
        try:
            known = {lease.token for lease in self.running.values()}
            if others := await self._engine.other_grants(self.ref.owner, known):
                await self._engine.end_grants(self.ref.owner, started=(), only=others)
        except EngineError:
            return

    async def _beat(self) -> None:
        while True:
            await Sleep(BEAT_SECONDS * self._chance.uniform(0.7, 1.0))
            if not self.running:
                continue
            leases = list(self.running.values())
            try:
                if self._chance.random() < 0.5:
                    await self._engine.heartbeat(leases)
                else:
                    await self._engine.heartbeat_owner(self.ref.owner)
            except EngineError:
                continue

    async def _run(self, leased: Leased) -> None:
        lease, job = leased.lease, leased.job
        if self._chance.random() < 0.03:
            await self._report(lease, Released())
            return
        facts = {"job": str(lease.job_id), "attempt": lease.attempt, "token": token_hash(lease.token)}
        self._recorder.write("start", "ok", **facts)
        quick = job.type in ("chaos.ok", "chaos.crash")
        await Sleep(self._chance.uniform(0.05, 1.0) if quick else self._chance.uniform(2.0, 7.0))
        if job.type == "chaos.crash":
            self._scene.kill(self)
            await Sleep(0.0)
        if self._chance.random() < 0.5:
            await self._touch(lease)
        await self._report(lease, self._outcome(leased))

    async def _touch(self, lease: Lease) -> None:
        """A last beat before the report: the first thing that a worker does when it goes on after a pause."""
        try:
            await self._engine.heartbeat([lease])
        except EngineError:
            return

    def _outcome(self, leased: Leased) -> Outcome:
        job = leased.job
        if job.type == "chaos.fail" or (job.type == "chaos.flaky" and job.failures < 2):
            return Failed(JobError("Trouble", "as asked"))
        if job.type == "chaos.snooze" and leased.lease.attempt == 1:
            return Snoozed(delay=0.5)
        return Done()

    async def _report(self, lease: Lease, outcome: Outcome) -> None:
        """Until there is an answer, as the real one does; a lost lease is an answer."""
        while True:
            try:
                await self._engine.settle([Settlement(lease, outcome)])
            except EngineError:
                await Sleep(self._chance.uniform(0.05, 0.3))
            else:
                break
        # A job that was lost in a pause may be here again, under another lease, which goes on.
        if self.running.get(lease.job_id) == lease:
            del self.running[lease.job_id]
