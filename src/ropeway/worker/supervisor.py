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
from typing import TYPE_CHECKING, Any

import msgspec

from ropeway.core.errors import ConfigurationError
from ropeway.engines.capabilities import Capability
from ropeway.engines.open import engine_for
from ropeway.observability import logs, names
from ropeway.observability.metrics import WorkerMetrics
from ropeway.runtime.service import Outage, patiently
from ropeway.settings import Settings
from ropeway.worker.aftermath import Aftermath
from ropeway.worker.channel import Hello
from ropeway.worker.declaring import declare
from ropeway.worker.errands import Errands
from ropeway.worker.keeper import Keeper, WorkerState
from ropeway.worker.nursery import Nursery
from ropeway.worker.program import Chores
from ropeway.worker.sidecar import Sidecar

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine
    from ropeway.worker.family import Child
    from ropeway.worker.options import WorkerOptions

#: No claim for so long, though there were free slots, makes the worker unready.
UNREADY_AFTER = 10.0


class OnlyInMemory(Exception):
    """The app keeps its jobs in memory: other processes cannot see them."""


class Supervisor:
    """Made inside a running loop. `await run()` returns 0 after a clean stop; raises ConfigurationError when the
    app cannot work as it is."""

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
        """`wait_for_a_fix`: in development an app that cannot be loaded is told, and tried again when a file
        changes."""
        self._options = options
        self._count = processes
        self._chores = chores
        self._log = logs.logger("ropeway.supervisor")
        self._outage = Outage(self._log)
        self._metrics = WorkerMetrics()
        self._stopping = asyncio.Event()
        self._now = asyncio.Event()
        self._keeper: Keeper | None = None
        self._errands = Errands(self._log, self._stopping)
        self._aftermath = Aftermath(
            options, self._metrics, self._outage, self._errands, stopping=self._stopping, log=self._log
        )
        self._nursery = Nursery(
            target,
            options,
            flags=flags,
            count=processes,
            aftermath=self._aftermath,
            errands=self._errands,
            metrics=self._metrics,
            stopping=self._stopping,
            wait_for_a_fix=wait_for_a_fix,
            changed=self._report_now,
            log=self._log,
        )

    # ── a life ──

    async def run(self) -> int:
        """Work until a signal or `stop()`."""
        loop = asyncio.get_running_loop()
        self._handle_signals(loop)
        await self._nursery.start()
        try:
            return await self._supervise()
        finally:
            self._nursery.kill()
            self._errands.cancel()
            self._forget_signals(loop)

    def stop(self) -> None:
        """As SIGTERM would."""
        self._stopping.set()

    async def restart(self) -> None:
        """Replace every child: its code has changed."""
        await self._nursery.restart()

    async def _supervise(self) -> int:
        nursery = self._nursery
        stopped = asyncio.create_task(self._stopping.wait())
        await _first(nursery.hello, nursery.refused, stopped)
        if nursery.refused.done():
            raise ConfigurationError(nursery.refused.result())
        if not nursery.hello.done():
            return 0
        hello = nursery.hello.result()
        settings = msgspec.convert(hello.settings, Settings)
        if settings.url.startswith("memory:"):
            raise OnlyInMemory
        self._options = nursery.options = self._aftermath.options = self._options.with_settings(settings)
        async with contextlib.AsyncExitStack() as stack:
            engine = engine_for(settings)
            stack.push_async_callback(engine.close)
            try:
                if await self._connected(engine, hello):
                    await self._open_house(engine, settings, stack)
                    await _first(stopped, nursery.refused)
            finally:
                # Whatever went wrong here: children finish, and what they hold is given back.
                self._stopping.set()
                await nursery.part(self._now)
                self._log.info(names.WORKER_STOPPED)
            if nursery.refused.done():
                raise ConfigurationError(nursery.refused.result())
        return 1 if self._errands.failed else 0

    async def _connected(self, engine: Engine, hello: Hello) -> bool:
        """The parent's own connections and the code's schedules; False when the worker was stopped before."""

        async def declare_schedules() -> None:
            await declare(engine, hello.schedules, tenant=self._options.tenant, log=self._log)

        for step in (engine.open, declare_schedules):
            if not await patiently(step, name="start", outage=self._outage, stopping=self._stopping):
                return False
            self._aftermath.engine = engine
        return True

    async def _open_house(self, engine: Engine, settings: Settings, stack: contextlib.AsyncExitStack) -> None:
        sidecar = Sidecar(
            settings.host,
            settings.worker_http_port,
            health=lambda: {"children": len(self._nursery.children)},
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
            self._nursery.children,
            engine,
            self._options,
            self._metrics,
            self._outage,
            types=lambda: self._nursery.types,
            state=self._state,
            replace=self._nursery.replace,
        )
        keeper.start()
        stack.push_async_callback(keeper.stop)
        self._nursery.let_claim()
        self._log.info(
            names.WORKER_STARTED,
            engine=engine.name,
            processes=self._count,
            concurrency=self._options.concurrency,
            queues=",".join(self._options.queue_names()),
            tasks=len(self._nursery.types),
        )

    def _report_now(self) -> None:
        if self._keeper is not None:
            self._keeper.report_now()

    def _state(self, child: Child) -> WorkerState:
        if child.retiring or self._stopping.is_set():
            return "draining"
        return "quiet" if self._nursery.quiet else "running"

    # ── readiness, asked from the sidecar's thread ──

    def _unready(self) -> list[str]:
        """Why no work can be taken; empty when it can."""
        now = time.monotonic()
        if self._stopping.is_set():
            return ["the worker is stopping"]
        if self._nursery.quiet:
            return ["the worker is quiet: it takes no new jobs"]
        ready = [child for child in list(self._nursery.children.values()) if child.ready and child.alive]
        if not ready:
            return ["no child process is ready"]
        if all(now - child.ledger.last_claimed() > UNREADY_AFTER for child in ready):
            return [
                f"no claim succeeded for {UNREADY_AFTER:g} s: the engine is away, or a handler blocks the loop"
            ]
        return []

    # ── signals ──

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
        if self._nursery.quiet == on:
            return
        self._log.info(names.WORKER_QUIET if on else names.WORKER_RESUMED)
        self._nursery.be_quiet(on)

    def _on_dump(self) -> None:
        for child in self._nursery.children.values():
            running = len(child.ledger.running())
            self._log.warning(names.RUNNING_NOW, pid=child.process.pid, worker=child.name, running=running)
            if child.ready:  # before that the signal would end it
                child.signal(signal.SIGUSR1)


async def _first(*futures: asyncio.Future[Any]) -> None:
    """Wait until one of them is done."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
