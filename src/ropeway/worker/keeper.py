"""What the parent does for its children while they live: beats, deadlines, memory, their rows in the engine."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Literal
from uuid import UUID

from ropeway.core.errors import EngineError
from ropeway.core.fleet import WorkerInfo
from ropeway.observability import logs, names
from ropeway.runtime.backoff import Backoff
from ropeway.runtime.service import Loop, Outage, stop_all
from ropeway.worker.channel import Recheck, Revoked, Stop
from ropeway.worker.runner import HARD_GRACE

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine
    from ropeway.observability.metrics import WorkerMetrics
    from ropeway.worker.family import Child
    from ropeway.worker.ledger import Ledger, Running
    from ropeway.worker.options import WorkerOptions

#: How often the parent looks at its children's ledgers.
LOOK_EVERY = 0.25
#: A child whose loop and watchdog have both stood still for so long is held by native code, or stopped.
HELD_SECONDS = 2.0
#: How often a worker's row is renewed.
REPORT_EVERY = 10.0

WorkerState = Literal["running", "quiet", "draining"]


class Keeper:
    """Three loops over the children that are alive now. `replace` is called for one that has become too big."""

    def __init__(
        self,
        children: Mapping[int, Child],
        engine: Engine,
        options: WorkerOptions,
        metrics: WorkerMetrics,
        outage: Outage,
        *,
        types: Callable[[], tuple[str, ...]],
        state: Callable[[Child], WorkerState],
        replace: Callable[[Child, str], Awaitable[None]],
    ) -> None:
        self._children = children
        self._engine = engine
        self._options = options
        self._metrics = metrics
        self._types = types
        self._state = state
        self._replace = replace
        self._log = logs.logger("ropeway.supervisor")
        self._host = socket.gethostname()
        beat_every = options.lease_seconds / 3
        self._attendance = Loop("attendance", REPORT_EVERY, self._report, log=self._log, outage=outage)
        self._loops = [
            # A beat that failed is tried again soon: a lease lasts three of them.
            Loop("heartbeat", beat_every, self._beat, log=self._log, outage=outage, backoff=Backoff(0.1, 1.0)),
            Loop("watch", LOOK_EVERY, self._watch, log=self._log, outage=outage),
            self._attendance,
        ]

    def start(self) -> None:
        for loop in self._loops:
            loop.start()

    async def stop(self) -> None:
        await stop_all(self._loops, within=1.0)

    def report_now(self) -> None:
        """A child has come or has another state: people should not have to wait to see it."""
        self._attendance.wake()

    # ── heartbeats ──

    async def _beat(self) -> None:
        """Extend every child's grants, three times within a lease; raises what the last failure was."""
        failure: EngineError | None = None
        for child in list(self._children.values()):
            if child.alive:
                try:
                    await self._beat_for(child)
                except EngineError as error:
                    failure = error
        if failure is not None:
            raise failure

    async def _beat_for(self, child: Child) -> None:
        sent = time.monotonic()
        beat = await self._engine.heartbeat_owner(child.owner, tenant=self._options.tenant)
        if time.monotonic() - child.beaten > self._options.lease_seconds:
            # For a while nobody beat, or this one was long on its way: others may have its jobs by now.
            child.send(Recheck())
        child.beaten = sent
        if beat is not None and beat.revoked:
            child.send(Revoked(list(beat.revoked)))

    # ── looking after ──

    async def _watch(self) -> None:
        """Kill a child for a job past its deadline, replace one that is too big, tell of one that is held."""
        now = time.monotonic()
        running = 0
        for child in list(self._children.values()):
            if child.alive and child.ready:
                running += self._check_deadlines(child, now)
                self._check_held(child, now)
                await self._check_memory(child)
        self._metrics.gauges(running, len(self._children) * self._options.concurrency)

    def _check_deadlines(self, child: Child, now: float) -> int:
        jobs = child.ledger.running()
        late = [job for job in jobs if job.hard_deadline and now > job.hard_deadline]
        if late and not child.killed_for_time:
            latest = max(late, key=lambda job: job.started)
            child.killed_for_time = True
            child.victim = _culprit(child.ledger, jobs, latest)
            if child.victim == latest.job_id:
                note = "it did not stop when its timeout was over; its process is killed"
            else:
                note = "its time is over and its process is blocked by another job; the process is killed"
            self._log.error(
                names.JOB_TIMEOUT, job_id=latest.job_id, seconds=round(now - latest.started, 1), note=note
            )
            child.kill()
        return len(jobs)

    def _check_held(self, child: Child, now: float) -> None:
        """The child's own watchdog tells of a blocked loop; only what holds the interpreter silences it."""
        held = min(now - child.ledger.last_alive(), now - child.ledger.last_watched())
        if child.ledger.last_watched() == 0.0 or held < HELD_SECONDS:
            child.held = False
        elif not child.held:
            child.held = True
            self._log.warning(
                names.LOOP_BLOCKED,
                pid=child.process.pid,
                seconds=round(held, 1),
                jobs=[str(job.job_id) for job in child.ledger.running()][:5],
                note="native code holds the interpreter, or the process is stopped; its stacks follow if it can",
            )
            child.signal(signal.SIGUSR1)

    async def _check_memory(self, child: Child) -> None:
        most = self._options.max_memory_bytes
        if not most or child.retiring or child.ledger.jobs_finished() == 0:
            return  # a limit below the size of the app itself would replace children for ever
        if (held := child.rss_bytes()) is not None and held > most:
            child.send(Stop(None))
            await self._replace(child, f"{held >> 20} MiB")

    # ── the fleet's list ──

    async def _report(self) -> None:
        for child in list(self._children.values()):
            if child.alive and child.ready:
                await self._engine.report_worker(self._info(child), tenant=self._options.tenant)
                if not child.alive:
                    # It was forgotten while this was on its way.
                    await self._engine.forget_worker(child.name, tenant=self._options.tenant)

    def _info(self, child: Child) -> WorkerInfo:
        return WorkerInfo(
            id=child.name,
            host=self._host,
            pid=child.process.pid,
            version=version("ropeway"),
            queues=self._options.queue_names(),
            types=self._types(),
            slots=self._options.concurrency,
            running=len(child.ledger.running()),
            rss_bytes=child.rss_bytes(),
            state=self._state(child),
        )


def _culprit(ledger: Ledger, jobs: Sequence[Running], late: Running) -> UUID | None:
    """For whom a process is killed when a job in it is late. None when that cannot be known: then all of its jobs
    are suspects, and run apart next time."""
    turned = ledger.last_alive()
    if turned > late.hard_deadline - HARD_GRACE:
        return late.job_id  # the loop has turned since its time was over: it was told to stop and did not
    if (blocker := ledger.blocker()) is not None:
        return blocker
    # The interpreter itself is held. Whoever started last, just before everything stood still, holds it; of
    # several that started at once nobody knows which.
    started_last = all(job is late or job.started < late.started for job in jobs)
    return late.job_id if started_last and turned < late.started + 2 * LOOK_EVERY else None
