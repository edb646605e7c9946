"""The children of a worker: started, heard, replaced when they leave or die, and let go at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from ropeway.observability import names
from ropeway.runtime.backoff import Backoff
from ropeway.runtime.service import wait_for
from ropeway.settings import Settings
from ropeway.worker.channel import Hello, Kept, Quiet, Ready, Refused, Retiring, Stop, Told
from ropeway.worker.family import Child

if TYPE_CHECKING:
    from ropeway.observability.logs import Logger
    from ropeway.observability.metrics import WorkerMetrics
    from ropeway.worker.aftermath import Aftermath
    from ropeway.worker.errands import Errands
    from ropeway.worker.options import WorkerOptions

#: After the drain's end a child has this long to exit by itself.
EXIT_SECONDS = 0.8
#: Seconds that the engine may take to hear of those who have gone when the worker ends.
LAST_WORDS = 5.0


class Nursery:
    """Keeps `count` children at work. Make it inside a running loop."""

    def __init__(
        self,
        target: str,
        options: WorkerOptions,
        *,
        flags: dict[str, object],
        count: int,
        aftermath: Aftermath,
        errands: Errands,
        metrics: WorkerMetrics,
        stopping: asyncio.Event,
        wait_for_a_fix: bool,
        changed: Callable[[], None],
        log: Logger,
    ) -> None:
        """`changed` is called when a child has become ready, or all of them quiet."""
        self.options = options
        self._target = target
        self._flags = flags
        self._count = count
        self._aftermath = aftermath
        self._errands = errands
        self._metrics = metrics
        self._stopping = stopping
        self._wait_for_a_fix = wait_for_a_fix
        self._changed = changed
        self._log = log
        loop = asyncio.get_running_loop()
        #: What the first child says of the app, or why it cannot work as it is.
        self.hello: asyncio.Future[Hello] = loop.create_future()
        self.refused: asyncio.Future[str] = loop.create_future()
        #: Those that live, by pid.
        self.children: dict[int, Child] = {}
        #: The app's tasks by name.
        self.types: tuple[str, ...] = ()
        self.quiet = False
        self.failed_starts = 0
        self._made = 0
        self._generation = 0
        #: A child of this worker has been ready before.
        self._was_ready = False
        #: Somebody beats for the children: they may claim.
        self._kept = False
        self._attendants: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        for _ in range(self._count):
            await self._start_one()

    async def _start_one(self) -> None:
        """Start one; while the system has no room for another process it is tried again."""
        self._made += 1
        backoff = Backoff(0.5, 10.0)
        while True:
            try:
                child = await Child.start(self._made, self._target, self._flags, self.options)
                break
            except OSError as error:
                self._log.error(names.CHILD_DIED, error=f"it could not be started: {error}")
                await wait_for(self._stopping, backoff.next())
                if self._stopping.is_set():
                    return
        self.children[child.process.pid] = child
        if self._stopping.is_set():
            # The end began meanwhile, and does not know of this one.
            child.put_down = True
            child.kill()
        self._log.info(names.CHILD_STARTED, pid=child.process.pid, worker=child.name)
        if self.quiet:
            child.send(Quiet(True))
        if self._kept:
            child.send(Kept())
        self._errands.run(self._listen(child))
        attendant = self._errands.run(self._attend(child))
        self._attendants.add(attendant)
        attendant.add_done_callback(self._attendants.discard)

    # ── what they say ──

    async def _listen(self, child: Child) -> None:
        while (message := await child.line.receive()) is not None:
            match message:
                case Hello():
                    child.ledger.slots = msgspec.convert(message.settings, Settings).concurrency
                    self.types = tuple(message.types)
                    if not self.hello.done():
                        self.hello.set_result(message)
                case Ready():
                    child.ready = self._was_ready = True
                    self._changed()
                case Told():
                    self._metrics.merge(message.delta)
                case Refused():
                    self._on_refusal(child, message.message)
                case Retiring():
                    await self.replace(child, message.reason)

    def _on_refusal(self, child: Child, message: str) -> None:
        if self._wait_for_a_fix:
            child.retiring = child.put_down = True
            self._log.error(names.CHILD_DIED, error=message, note="change a file and it is tried again")
        elif self._was_ready:
            # It worked before, and its siblings still do: tried again like any failed start.
            self._log.error(names.CHILD_DIED, error=message, worker=child.name)
        elif not self.refused.done():
            self.refused.set_result(message)

    # ── others in their place ──

    async def replace(self, child: Child, reason: str) -> None:
        """A child that has reached a limit drains on its own; another takes its place at once."""
        if child.retiring:
            return
        child.retiring = True
        self._log.info(names.CHILD_RECYCLED, pid=child.process.pid, reason=reason)
        if not self._stopping.is_set():
            await self._start_one()

    async def restart(self) -> None:
        """Replace every child: its code has changed."""
        self._log.info(names.CHILD_RECYCLED, reason="the code has changed")
        self._generation += 1
        for child in list(self.children.values()):
            child.retiring = True
            child.send(Stop(self.options.drain_seconds))
        await self.start()

    async def _attend(self, child: Child) -> None:
        """Wait for the child's end, clean up after it, and start another unless the worker stops."""
        death = await child.death
        guilty = child.guilty()
        if not child.went_on_purpose and (child.ready or not death.clean):
            self._log.error(
                names.CHILD_DIED, pid=child.process.pid, how=str(death), running=len(guilty), worker=child.name
            )
        await self._aftermath.end_grants(child, death, guilty)
        del self.children[child.process.pid]
        child.close()
        if child.retiring or self.refused.done():
            return
        generation = self._generation
        self.failed_starts = 0 if child.ready else self.failed_starts + 1
        if self.failed_starts:
            # It cannot even begin: do not spin.
            await wait_for(self._stopping, min(10.0, 0.25 * 2 ** min(self.failed_starts, 6)))
        # A restart meanwhile has started its own.
        if not self._stopping.is_set() and generation == self._generation:
            await self._start_one()

    # ── kept, quiet, and the end ──

    def let_claim(self) -> None:
        """Somebody beats for them from now on. Before that a lease could end while its job runs."""
        self._kept = True
        for child in self.children.values():
            child.send(Kept())

    def be_quiet(self, on: bool) -> None:
        self.quiet = on
        for child in self.children.values():
            child.send(Quiet(on))
        self._changed()

    async def part(self, now: asyncio.Event) -> None:
        """Let them finish; whoever is left when the time is over, or when `now` is set, is ended, and its jobs are
        given back."""
        children = list(self.children.values())
        for child in children:
            child.send(Stop(self.options.drain_seconds))
        if children:
            gone = asyncio.gather(*(child.death for child in children))
            at_once = asyncio.create_task(now.wait())
            waiting: list[asyncio.Future[Any]] = [gone, at_once]
            longest = self.options.drain_seconds + EXIT_SECONDS
            await asyncio.wait(waiting, timeout=longest, return_when=asyncio.FIRST_COMPLETED)
            at_once.cancel()
            for child in children:
                if child.alive:
                    child.put_down = True
                    child.kill()
            await gone
        # Their attendants still have to tell the engine about them.
        if self._attendants:
            await asyncio.wait(self._attendants, timeout=LAST_WORDS)

    def kill(self) -> None:
        for child in list(self.children.values()):
            child.kill()
