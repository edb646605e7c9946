"""The parent: starts children, keeps their leases alive from outside the interpreter that runs handlers, ends the
grants of a dead child at once, and does the chores it was given.

It never imports the app: a child tells it what it needs to know. So nothing that handlers do can stop it, not
even while their module is imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from ropeway.core.errors import ConfigurationError, EngineError
from ropeway.core.states import State
from ropeway.engines.capabilities import Capability
from ropeway.engines.open import engine_for
from ropeway.observability import logs, names
from ropeway.observability.metrics import WorkerMetrics
from ropeway.runtime.backoff import Backoff
from ropeway.runtime.service import Outage, patiently, wait_for
from ropeway.settings import Settings
from ropeway.worker.channel import Hello, Quiet, Ready, Refused, Retiring, Stop, Told
from ropeway.worker.declaring import declare
from ropeway.worker.family import Child, Death
from ropeway.worker.keeper import Keeper, WorkerState
from ropeway.worker.program import Chores
from ropeway.worker.sidecar import Sidecar

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine, Rescued
    from ropeway.worker.options import WorkerOptions

#: A dead child's grants are ended once more after each of these times: the first call passes by what its open
#: transactions still lock, and a claim that was on its way when it died may be written later.
LOOK_AGAIN_AFTER = (0.2, 0.8, 3.0)
#: After the drain's end a child has this long to exit by itself.
EXIT_SECONDS = 0.8
#: No claim for so long, though there were free slots, makes the worker unready.
UNREADY_AFTER = 10.0


class OnlyInMemory(Exception):
    """The app keeps its jobs in memory: other processes cannot see them."""


class Supervisor:
    """`await run()` returns 0 after a clean stop; raises ConfigurationError when the app cannot work as it is."""

    def __init__(
        self,
        target: str,
        options: WorkerOptions,
        *,
        flags: dict[str, object],
        processes: int = 1,
        chores: Chores | None = None,
        wait_for_a_fix: bool = False,
    ) -> None:
        self._target = target
        self._options = options
        self._flags = flags
        self._count = processes
        self._chores = chores
        #: In development an app that cannot be loaded is told, and tried again when a file changes.
        self._wait_for_a_fix = wait_for_a_fix
        self._log = logs.logger("ropeway.supervisor")
        self._outage = Outage(self._log)
        self._metrics = WorkerMetrics()
        self._children: dict[int, Child] = {}
        self._made = 0
        self._generation = 0
        self._failed_starts = 0
        #: A child of this worker has been ready before.
        self._was_ready = False
        #: A defect of our own ended the worker.
        self._broken = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._attendants: set[asyncio.Task[None]] = set()
        self._engine: Engine | None = None
        self._keeper: Keeper | None = None
        self._types: tuple[str, ...] = ()
        self._hello: asyncio.Future[Hello]
        self._refused: asyncio.Future[str]
        self._stopping = asyncio.Event()
        self._now = asyncio.Event()
        self._quiet = False

    # ── a life ──

    async def run(self) -> int:
        """Work until a signal or `stop()`."""
        loop = asyncio.get_running_loop()
        self._hello = loop.create_future()
        self._refused = loop.create_future()
        self._handle_signals(loop)
        for _ in range(self._count):
            await self._start_child()
        try:
            return await self._supervise()
        finally:
            for child in list(self._children.values()):
                child.kill()
            for task in list(self._tasks):
                task.cancel()
            self._forget_signals(loop)

    def stop(self) -> None:
        """As SIGTERM would."""
        self._stopping.set()

    async def _supervise(self) -> int:
        stopped = asyncio.create_task(self._stopping.wait())
        await _first(self._hello, self._refused, stopped)
        if self._refused.done():
            raise ConfigurationError(self._refused.result())
        if not self._hello.done():
            return 0
        hello = self._hello.result()
        settings = msgspec.convert(hello.settings, Settings)
        if settings.url.startswith("memory:"):
            raise OnlyInMemory
        self._options = self._options.with_settings(settings)
        async with contextlib.AsyncExitStack() as stack:
            engine = engine_for(settings)
            stack.push_async_callback(engine.close)
            try:
                if await self._connected(engine, hello):
                    await self._open_house(engine, settings, stack)
                    await _first(stopped, self._refused)
                elif any(child.ready for child in self._children.values()):
                    # Children were quicker and may have claimed: their leases have to be ended.
                    with contextlib.suppress(EngineError):
                        await engine.open()
                        self._engine = engine
            finally:
                # Whatever went wrong here: children finish, and what they hold is given back.
                await self._part()
            if self._refused.done():
                raise ConfigurationError(self._refused.result())
        return 1 if self._broken else 0

    async def _connected(self, engine: Engine, hello: Hello) -> bool:
        """The parent's own connections and the code's schedules; False when the worker was stopped before."""

        async def declare_schedules() -> None:
            await declare(engine, hello.schedules, tenant=self._options.tenant, log=self._log)

        for step in (engine.open, declare_schedules):
            if not await patiently(step, name="start", outage=self._outage, stopping=self._stopping):
                return False
            self._engine = engine
        return True

    async def _open_house(self, engine: Engine, settings: Settings, stack: contextlib.AsyncExitStack) -> None:
        sidecar = Sidecar(
            settings.host,
            settings.worker_http_port,
            health=lambda: {"children": len(self._children)},
            ready=self._unready,
            metrics=self._metrics.render,
            observe=self._metrics.http,
        )
        sidecar.start()
        stack.callback(sidecar.stop)
        # What a server keeps, the server looks after.
        if self._chores is not None and Capability.UPKEEP in engine.capabilities:
            chores = self._chores(engine, settings, self._metrics, self._outage)
            await stack.enter_async_context(chores)
        self._keeper = keeper = Keeper(
            self._children,
            engine,
            self._options,
            self._metrics,
            self._outage,
            types=lambda: self._types,
            state=self._state,
            replace=self._replace,
        )
        keeper.start()
        stack.push_async_callback(keeper.stop)
        self._log.info(
            names.WORKER_STARTED,
            engine=engine.name,
            processes=self._count,
            concurrency=self._options.concurrency,
            queues=",".join(self._options.queue_names()),
            tasks=len(self._types),
        )

    # ── children ──

    async def _start_child(self) -> None:
        """Start one; while the system has no room for another process it is tried again."""
        self._made += 1
        backoff = Backoff(0.5, 10.0)
        while True:
            try:
                child = await Child.start(self._made, self._target, self._flags, self._options)
                break
            except OSError as error:
                self._log.error(names.CHILD_DIED, error=f"it could not be started: {error}")
                await wait_for(self._stopping, backoff.next())
                if self._stopping.is_set():
                    return
        self._children[child.process.pid] = child
        if self._stopping.is_set():
            # The end began meanwhile, and does not know of this one.
            child.put_down = True
            child.kill()
        self._log.info(names.CHILD_STARTED, pid=child.process.pid, worker=child.name)
        if self._quiet:
            child.send(Quiet(True))
        self._spawn(self._listen(child))
        attendant = self._spawn(self._attend(child))
        self._attendants.add(attendant)
        attendant.add_done_callback(self._attendants.discard)

    async def _listen(self, child: Child) -> None:
        while (message := await child.line.receive()) is not None:
            match message:
                case Hello():
                    child.ledger.slots = msgspec.convert(message.settings, Settings).concurrency
                    self._types = tuple(message.types)
                    if not self._hello.done():
                        self._hello.set_result(message)
                case Ready():
                    child.ready = self._was_ready = True
                    if self._keeper is not None:
                        self._keeper.report_now()
                case Told():
                    self._metrics.merge(message.delta)
                case Refused():
                    self._on_refusal(child, message.message)
                case Retiring():
                    await self._replace(child, message.reason)

    def _on_refusal(self, child: Child, message: str) -> None:
        if self._wait_for_a_fix:
            child.retiring = child.put_down = True
            self._log.error(names.CHILD_DIED, error=message, note="change a file and it is tried again")
        elif self._was_ready:
            # It worked before, and its siblings still do: tried again like any failed start.
            self._log.error(names.CHILD_DIED, error=message, worker=child.name)
        elif not self._refused.done():
            self._refused.set_result(message)

    async def _replace(self, child: Child, reason: str) -> None:
        """A child that has reached a limit drains on its own; another takes its place at once."""
        if child.retiring:
            return
        child.retiring = True
        self._log.info(names.CHILD_RECYCLED, pid=child.process.pid, reason=reason)
        if not self._stopping.is_set():
            await self._start_child()

    async def restart(self) -> None:
        """Replace every child: its code has changed."""
        self._log.info(names.CHILD_RECYCLED, reason="the code has changed")
        self._generation += 1
        for child in list(self._children.values()):
            child.retiring = True
            child.send(Stop(self._options.drain_seconds))
        for _ in range(self._count):
            await self._start_child()

    async def _attend(self, child: Child) -> None:
        """Wait for the child's end, clean up after it, and start another unless the worker stops."""
        death = await child.death
        child.kill_group()
        guilty = child.guilty()
        if not child.went_on_purpose and (child.ready or not death.clean):
            self._log.error(
                names.CHILD_DIED, pid=child.process.pid, how=str(death), running=len(guilty), worker=child.name
            )
        await self._end_grants(child, death, guilty)
        del self._children[child.process.pid]
        child.close()
        if child.retiring or self._refused.done():
            return
        generation = self._generation
        self._failed_starts = 0 if child.ready else self._failed_starts + 1
        if self._failed_starts:
            # It cannot even begin: do not spin.
            await wait_for(self._stopping, min(10.0, 0.25 * 2 ** min(self._failed_starts, 6)))
        # A restart meanwhile has started its own.
        if not self._stopping.is_set() and generation == self._generation:
            await self._start_child()

    async def _end_grants(self, child: Child, death: Death, guilty: set[UUID]) -> None:
        """What ran in it is lost, what only waited is given back; repeated until the engine has heard it.

        Once a lease has passed the engine takes them back by itself.
        """
        over = asyncio.Event()
        asyncio.get_running_loop().call_later(self._options.lease_seconds, over.set)
        while self._engine is None and child.ready and not over.is_set():
            # It was quicker than the parent's own connection, and may have claimed.
            await wait_for(over, 0.05)
        engine = self._engine
        if engine is None:
            return

        async def end() -> None:
            rescued = await engine.end_grants(
                child.owner,
                started=guilty,
                lost=death.as_lost(for_timeout=child.killed_for_time),
                tenant=self._options.tenant,
            )
            self._metrics.reclaimed(len(rescued))
            await self._tell_lost([one for one in rescued if one.id in guilty], death)
            await engine.forget_worker(child.name, tenant=self._options.tenant)

        await patiently(
            end, name=f"end of {child.name}", outage=self._outage, stopping=over, backoff=Backoff(0.05, 1.0)
        )
        if child.ledger.has_left():
            return  # it had settled everything itself
        if self._stopping.is_set():
            await _later(end, LOOK_AGAIN_AFTER[:1])
        else:
            self._spawn(_later(end, LOOK_AGAIN_AFTER))

    async def _tell_lost(self, lost: list[Rescued], death: Death) -> None:
        for one in lost:
            name = names.JOB_DEAD if one.state is State.DEAD else names.JOB_LOST
            self._log.error(name, job_id=one.id, state=one.state.value, how=str(death))
        dead = [one.id for one in lost if one.state is State.DEAD]
        if dead and self._engine is not None:
            for job in await self._engine.get(dead, tenant=self._options.tenant):
                if job is not None:
                    self._metrics.died(job.queue, job.type)

    def _state(self, child: Child) -> WorkerState:
        if child.retiring or self._stopping.is_set():
            return "draining"
        return "quiet" if self._quiet else "running"

    # ── readiness, asked from the sidecar's thread ──

    def _unready(self) -> list[str]:
        """Why no work can be taken; empty when it can."""
        now = time.monotonic()
        if self._stopping.is_set():
            return ["the worker is stopping"]
        if self._quiet:
            return ["the worker is quiet: it takes no new jobs"]
        ready = [child for child in list(self._children.values()) if child.ready and child.alive]
        if not ready:
            return ["no child process is ready"]
        if all(now - child.ledger.last_claimed() > UNREADY_AFTER for child in ready):
            return [
                f"no claim succeeded for {UNREADY_AFTER:g} s: the engine is away, or a handler blocks the loop"
            ]
        return []

    # ── signals and the end ──

    def _handle_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop, number)
        loop.add_signal_handler(signal.SIGUSR1, self._on_dump)
        loop.add_signal_handler(signal.SIGTSTP, self._on_quiet, True)
        loop.add_signal_handler(signal.SIGCONT, self._on_quiet, False)

    def _forget_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGTSTP, signal.SIGCONT):
            loop.remove_signal_handler(number)

    def _on_stop(self, number: int) -> None:
        if self._stopping.is_set():
            self._now.set()
            return
        self._log.info(
            names.WORKER_STOPPING,
            signal=signal.Signals(number).name,
            note=f"finishing what runs, at most {self._options.drain_seconds:g} s; once more to stop now",
        )
        self._stopping.set()

    def _on_quiet(self, on: bool) -> None:
        if self._quiet == on:
            return
        self._quiet = on
        self._log.info(names.WORKER_QUIET if on else names.WORKER_RESUMED)
        for child in self._children.values():
            child.send(Quiet(on))
        if self._keeper is not None:
            self._keeper.report_now()

    def _on_dump(self) -> None:
        for child in self._children.values():
            running = len(child.ledger.running())
            self._log.warning(names.RUNNING_NOW, pid=child.process.pid, worker=child.name, running=running)
            if child.ready:  # before that the signal would end it
                child.signal(signal.SIGUSR1)

    async def _part(self) -> None:
        """Let children finish; whoever is left when the time is over is ended, and its jobs are given back."""
        self._stopping.set()
        children = list(self._children.values())
        for child in children:
            child.send(Stop(self._options.drain_seconds))
        if children:
            gone = asyncio.gather(*(child.death for child in children))
            at_once = asyncio.create_task(self._now.wait())
            await _first(gone, at_once, timeout=self._options.drain_seconds + EXIT_SECONDS)
            at_once.cancel()
            for child in children:
                if child.alive:
                    child.put_down = True
                    child.kill()
            await gone
        # Their attendants still have to tell the engine about them.
        if self._attendants:
            await asyncio.wait(self._attendants, timeout=5.0)
        self._log.info(names.WORKER_STOPPED)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A defect of our own must not leave children without a parent that looks after them.
            self._log.error(names.LOOP_FAILED, error=repr(error), exc_info=error)
            self._broken = True
            self._stopping.set()


async def _later(call: Callable[[], Awaitable[None]], delays: Sequence[float]) -> None:
    """Call it again after each of these delays; a store that is away then is left to the leases' own end."""
    for delay in delays:
        await asyncio.sleep(delay)
        with contextlib.suppress(EngineError):
            await call()


async def _first(*futures: asyncio.Future[Any], timeout: float | None = None) -> None:
    """Wait until one of them is done."""
    await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
