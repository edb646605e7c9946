"""The real worker and the real upkeep on virtual time: what a seed draws, in some ten milliseconds (E37).

Producers, the network and the nemesis are simulated, the engine is the one in memory or SQLite's without its
threads (`mutants_still_sqlite`). Everything between is what runs in production: fetcher, runner, executor,
completer, heartbeats, rescue and expiry, and the service that producers and operators go through.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from chaos.checker import check
from chaos.facts import gather
from chaos.history import LineRecorder, Lines, ticket_of
from chaos.jumping import JumpingLoop, LoopClock, run_virtually
from chaos.network import Network
from chaos.recording import RecordingEngine
from chaos.simulation import CRASH_LIMIT, KINDS, LEASE_SECONDS, QUEUE, SOON, EngineMaker, Simulated
from chaos.snapshot import snapshot
from chaos.virtual import BEGIN
from ropeway import JobContext, Ropeway
from ropeway.core.errors import EngineError
from ropeway.core.job import NewJob
from ropeway.core.lease import Lease
from ropeway.core.outcome import Released
from ropeway.core.query import MAX_PAGE, JobFilter
from ropeway.core.states import LIVE_STATES, TERMINAL_STATES, State
from ropeway.engines.memory import MemoryEngine
from ropeway.engines.protocol import Engine, EngineRules, LeaseBatch, Settlement
from ropeway.service.jobs import Jobs
from ropeway.settings import Settings
from ropeway.upkeep import Upkeep
from ropeway.worker.inprocess import InProcessWorker
from ropeway.worker.options import WorkerOptions

JOBS = 40
WORKERS = 3
FAULTY_SECONDS = 20.0
DRAIN_SECONDS = 600.0
LOSS = 0.05


class DiesSilently(LineRecorder):
    """A process's lines, until it is dead."""

    dead = False

    def write(self, op: str, phase: str, **facts: Any) -> None:
        if not self.dead:
            super().write(op, phase, **facts)


class RealWorker:
    """One worker with its own network. A dead one reaches nothing and says nothing any more."""

    def __init__(self, world: RealWorld, number: int) -> None:
        self.recorder = DiesSilently(world.lines, f"worker{number}")
        self.recorder.pid = number
        self.link = Network(world.engine, world.chance, loss=LOSS, sleep=asyncio.sleep)
        self.link.missed = self._give_back_soon
        self._engine = engine = RecordingEngine(self.link, self.recorder)
        self._giving_back: set[asyncio.Task[None]] = set()
        options = WorkerOptions(concurrency=3, lease_seconds=LEASE_SECONDS, poll_seconds=0.5, drain_seconds=5.0)
        app = tasks(world, self)
        self.worker = InProcessWorker(app.program, cast("Engine", engine), options)
        self.stopped = False

    def _give_back_soon(self, missed: LeaseBatch) -> None:
        """As the engines of real stores do (`give_back`, `_missed`): nobody else would, while the worker lives."""
        task = asyncio.create_task(self._give_back([each.lease for each in missed.leases]))
        self._giving_back.add(task)
        task.add_done_callback(self._giving_back.discard)

    async def _give_back(self, leases: list[Lease]) -> None:
        while leases:
            try:
                await self._engine.settle([Settlement(lease, Released()) for lease in leases])
            except EngineError:
                await asyncio.sleep(0.2)
            else:
                return

    def die(self) -> None:
        self.recorder.dead = True
        self.link.closed = True


class RealWorld:
    """One run."""

    def __init__(self, seed: int, loop: JumpingLoop, make: EngineMaker) -> None:
        self.chance = random.Random(seed)
        self.lines = Lines(loop.time)
        decisions = msgspec.structs.replace(EngineRules().decisions, crash_limit=CRASH_LIMIT)
        rules = msgspec.structs.replace(EngineRules(), decisions=decisions)
        self.engine = make(rules, LoopClock(loop))
        self.nemesis = self.lines.recorder("nemesis")
        self.workers: list[RealWorker] = []
        self.healed = False
        self.seen: list[tuple[str, int]] = []
        self._position: str | None = None

    async def play(self) -> None:
        settings = Settings(url="memory://")
        upkeep_link: Any = Network(self.engine, self.chance, loss=LOSS, sleep=asyncio.sleep)
        for _ in range(WORKERS):
            await self.hire()
        async with Upkeep(upkeep_link, settings):
            beside = [asyncio.create_task(work) for work in (self._harm(), self._operate(), self._follow())]
            await asyncio.gather(*(self._produce(number) for number in range(2)))
            await asyncio.sleep(FAULTY_SECONDS)
            self.healed = True
            await _end(beside)
            for worker in self.workers:
                worker.link.loss = 0.0
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._all_ended()
        for worker in self.workers:
            if not worker.recorder.dead:
                await worker.worker.stop()
                worker.stopped = True
        await self._read_on()

    def clear_away(self) -> None:
        """Close what dead workers have left open, once nothing runs: a thousand seeds would run out of files."""
        for worker in self.workers:
            if not worker.stopped:
                worker.worker.ledger.close()

    async def _all_ended(self) -> None:
        while True:
            if not (await self.engine.count(JobFilter(states=LIVE_STATES), cap=1)).number:
                return
            await asyncio.sleep(1.0)

    async def hire(self) -> None:
        worker = RealWorker(self, len(self.workers) + 1)
        self.workers.append(worker)
        await worker.worker.__aenter__()

    def _service(self, process: str) -> Jobs:
        """The service as a server has it, over a network of its own, with everything written down."""
        link: Any = Network(self.engine, self.chance, loss=LOSS, sleep=asyncio.sleep)
        return Jobs(cast("Engine", RecordingEngine(link, self.lines.recorder(process))))

    async def _operate(self) -> None:
        """Cancels what runs and makes run again what has ended, as people do."""
        jobs = self._service("operator")
        while True:
            await asyncio.sleep(self.chance.uniform(1.0, 3.0))
            cancels = self.chance.random() < 0.5
            where = JobFilter(states=frozenset({State.RUNNING}) if cancels else TERMINAL_STATES)
            found = (await jobs.page(where, order="oldest", limit=MAX_PAGE)).jobs
            if found:
                ids = [self.chance.choice(found).id]
                with contextlib.suppress(EngineError):
                    await (jobs.cancel(ids) if cancels else jobs.retry(ids))

    async def _follow(self) -> None:
        while True:
            await self._read_on()
            await asyncio.sleep(0.5)

    async def _read_on(self) -> None:
        """What the log says since the last time."""
        events = True
        while events:
            page = await self.engine.tail(self._position, limit=50)
            self.seen += [(str(event.job_id), event.seq) for event in page.events]
            self._position = page.position
            events = bool(page.events)

    async def _produce(self, number: int) -> None:
        jobs = self._service(f"producer{number}")
        kinds, weights = list(KINDS), list(KINDS.values())
        for index in range(JOBS // 2):
            (kind,) = self.chance.choices(kinds, weights)
            job = NewJob(
                kind,
                queue=QUEUE,
                idempotency_key=f"{number}-{index}",
                max_attempts=3 if kind == "chaos.fail" else 8,
                delay=self.chance.choice([None, None, self.chance.uniform(0.5, 3.0)]),
                retry=SOON,
            )
            await _accepted(jobs, job, self.chance)
            await asyncio.sleep(self.chance.uniform(0.0, 1.0))

    async def _harm(self) -> None:
        while True:
            await asyncio.sleep(self.chance.uniform(0.5, 2.0))
            living = [worker for worker in self.workers if not worker.recorder.dead]
            worker = self.chance.choice(living)
            if self.chance.random() < 0.4:
                await self.kill(worker)
            else:
                asyncio.get_running_loop().create_task(self._cut_off(worker)).add_done_callback(_seen)

    async def kill(self, worker: RealWorker) -> None:
        self.nemesis.write("fault", "ok", kind="kill", target_pid=worker.recorder.pid)
        worker.die()
        await self.hire()

    async def _cut_off(self, worker: RealWorker) -> None:
        """Nothing from it arrives for longer than its leases last; then all of it does."""
        seconds = self.chance.uniform(0.5, 2.0) * LEASE_SECONDS
        until = asyncio.get_running_loop().time() + seconds
        self.nemesis.write("fault", "ok", kind="cut", target_pid=worker.recorder.pid, until=until)
        worker.link.closed = True
        await asyncio.sleep(seconds)
        worker.link.closed = worker.recorder.dead


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel them; one that broke by itself breaks the run."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()


def _seen(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


async def _accepted(jobs: Jobs, job: NewJob, chance: random.Random) -> None:
    while True:
        try:
            await jobs.enqueue(job)
        except EngineError:
            await asyncio.sleep(chance.uniform(0.05, 0.3))
        else:
            return


def tasks(world: RealWorld, worker: RealWorker) -> Ropeway:
    """The tasks of one worker: they write into its part of the history."""
    app = Ropeway("memory://")
    chance = world.chance

    def started(ctx: JobContext) -> None:
        worker.recorder.write("start", "ok", job=str(ctx.job.id), attempt=ctx.attempt, token=ticket_of(ctx))

    @app.task(name="chaos.ok")
    async def ok(ctx: JobContext) -> None:
        started(ctx)
        await asyncio.sleep(chance.uniform(0.0, 0.5))

    @app.task(name="chaos.slow")
    async def slow(ctx: JobContext) -> None:
        started(ctx)
        await asyncio.sleep(chance.uniform(1.0, 7.0))

    @app.task(name="chaos.flaky")
    async def flaky(ctx: JobContext) -> None:
        started(ctx)
        await asyncio.sleep(chance.uniform(0.0, 2.0))
        if ctx.job.failures < 2:
            raise RuntimeError("as asked")

    @app.task(name="chaos.fail")
    async def fail(ctx: JobContext) -> None:
        started(ctx)
        raise RuntimeError("as asked")

    @app.task(name="chaos.snooze")
    async def snooze(ctx: JobContext) -> None:
        started(ctx)
        if ctx.attempt == 1:
            ctx.snooze(0.5)

    @app.task(name="chaos.crash")
    async def crash(ctx: JobContext) -> None:
        started(ctx)
        if not world.healed or ctx.attempt < CRASH_LIMIT + 1:
            await world.kill(worker)
            await asyncio.sleep(1e6)

    return app


def simulate_real(seed: int, make: EngineMaker = MemoryEngine) -> Simulated:
    """One run; a right worker and a right engine break no rule."""
    loop = JumpingLoop()
    world = RealWorld(seed, loop, make)

    async def whole() -> dict[str, Any]:
        await world.engine.open()
        try:
            await world.play()
            return await snapshot(world.engine, epoch=BEGIN.timestamp(), seen=world.seen)
        finally:
            await world.engine.close()

    try:
        final = run_virtually(seed, whole(), loop)
    finally:
        world.clear_away()
    facts = gather(world.lines.lines, {**final, "crash_limit": CRASH_LIMIT})
    return Simulated(seed, facts, check(facts), world.lines.lines)
