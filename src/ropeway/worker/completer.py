"""Sends outcomes back in batches, and never loses one: repeated until the engine answers for each."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from ropeway.core.errors import EngineError, InputError, RopewayError
from ropeway.core.outcome import Done, Failed, Lost, Outcome, Released, Snoozed
from ropeway.core.payload import clean_error
from ropeway.core.states import State
from ropeway.engines.protocol import Settled, Settlement
from ropeway.observability import names
from ropeway.observability.logs import gathered, logger
from ropeway.runtime.backoff import Backoff
from ropeway.runtime.faultpoints import fault
from ropeway.worker.run import Run, StopReason

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine
    from ropeway.observability.metrics import Tally
    from ropeway.runtime.service import Outage

LARGEST_BATCH = 500
#: After so many defects an outcome is given up, and the run counts as failed.
MOST_DEFECTS = 3


class Completer:
    """Everything that ended while the last batch was under way goes with the next one; nothing waits for more.

    The same ticket with the same verb is answered alike however often it is sent, so a batch whose answer was
    lost is simply sent again. `on_settled` is called when a batch has been answered.
    """

    def __init__(
        self,
        engine: Engine,
        tally: Tally,
        tenant: str,
        outage: Outage,
        on_settled: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_settled = on_settled
        self._engine = engine
        self._outage = outage
        self._tally = tally
        self._tenant = tenant
        self._log = logger("ropeway.worker")
        self._waiting: deque[tuple[Settlement, Run | None]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._under_way: list[tuple[Settlement, Run | None]] = []
        #: Of jobs that no outcome could be written for: who gave them back would run them again and again.
        self._given_up: set[UUID] = set()

    @property
    def unsettled(self) -> int:
        return len(self._waiting) + len(self._under_way)

    def grants(self) -> set[UUID]:
        """The grants of the jobs whose outcomes have not been answered yet, or never will be."""
        waiting = {settlement.lease.token for settlement, _ in [*self._under_way, *self._waiting]}
        return waiting | self._given_up

    def put(self, runs: Iterable[Run]) -> None:
        """These have ended."""
        for run in runs:
            if run.outcome is None:
                self._nothing_to_write(run)
            else:
                self._waiting.append((Settlement(run.leased.lease, run.outcome), run))
        if self._task is None and self._waiting:
            self._task = asyncio.create_task(self._send_all(), name="ropeway-completer")

    def settle(self, settlements: Iterable[Settlement]) -> None:
        """Outcomes of jobs that were not run."""
        self._waiting.extend((settlement, None) for settlement in settlements)
        if self._task is None and self._waiting:
            self._task = asyncio.create_task(self._send_all(), name="ropeway-completer")

    async def flush(self) -> None:
        """Wait until everything that was put has been answered."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _send_all(self) -> None:
        backoff = Backoff()
        try:
            while self._waiting:
                batch = self._under_way = self._next_batch()
                answers = await self._send([settlement for settlement, _ in batch], backoff)
                self._under_way = []
                self._on_settled()
                with gathered():
                    for (settlement, run), answer in zip(batch, answers, strict=True):
                        try:
                            self._note(settlement.outcome, run, answer)
                        except Exception as error:  # noqa: BLE001 - what is told decides nothing
                            self._log.error(names.LOOP_FAILED, loop="note", error=repr(error), exc_info=error)
        finally:
            self._task = None

    def _next_batch(self) -> list[tuple[Settlement, Run | None]]:
        if len(self._waiting) <= LARGEST_BATCH:
            batch = list(self._waiting)
            self._waiting.clear()
            return batch
        return [self._waiting.popleft() for _ in range(LARGEST_BATCH)]

    async def _send(self, batch: list[Settlement], backoff: Backoff) -> list[Settled | RopewayError]:
        """The engine's answers, however long it takes to get them."""
        defects = 0
        while True:
            try:
                answers = await self._engine.settle(batch, tenant=self._tenant)
                fault("settle.answered")
            except EngineError as error:
                self._outage.failed("settle", error)
                await asyncio.sleep(backoff.next())
            except Exception as error:  # noqa: BLE001 - an outcome that is dropped leaves its job running for ever
                self._log.error(names.LOOP_FAILED, loop="settle", error=repr(error), exc_info=error)
                if len(batch) > 1:
                    # One that cannot be written must not hold up the others.
                    return [answer for one in batch for answer in await self._send([one], backoff)]
                defects += 1
                if defects == MOST_DEFECTS:
                    return [InputError(f"it could not be written: {error!r}")]
                await asyncio.sleep(backoff.next())
            else:
                self._outage.worked("settle")
                backoff.reset()
                return answers

    # ── telling people ──

    def _note(self, outcome: Outcome, run: Run | None, answer: Settled | RopewayError) -> None:
        if run is None:
            return
        job = run.leased.job
        if isinstance(answer, RopewayError):
            self._refused(run, answer)
            return
        match outcome:
            case Done():
                self._tally.finished(job.queue, job.type, "succeeded", run.seconds)
                if self._log.tells_info:
                    self._say(run)
            case Failed():
                self._failed(run, outcome, answer)
            case Snoozed():
                self._tally.finished(job.queue, job.type, "snoozed", run.seconds)
                self._log.info(names.JOB_SNOOZED, **_about(run), run_at=answer.run_at)
            case Released():
                self._tally.finished(job.queue, job.type, "released", run.seconds)
                self._log.info(names.JOB_RELEASED, **_about(run))
            case Lost():
                self._lost(run, outcome, answer)

    def _say(self, run: Run) -> None:
        job = run.leased.job
        self._log.info(
            names.JOB_SUCCEEDED,
            job_id=str(job.id),
            type=job.type,
            queue=job.queue,
            attempt=job.attempt,
            duration_ms=round(run.seconds * 1000, 3),
        )

    def _failed(self, run: Run, outcome: Failed, answer: Settled) -> None:
        job = run.leased.job
        error = f"{outcome.error.type}: {outcome.error.message}"
        if answer.state is State.DEAD:
            self._tally.finished(job.queue, job.type, "dead", run.seconds)
            self._log.error(names.JOB_DEAD, **_about(run), error=error)
            return
        timed_out = run.stop is StopReason.TIMEOUT
        self._tally.finished(job.queue, job.type, "timeout" if timed_out else "failed", run.seconds)
        self._tally.retried(job.queue, job.type)
        name = names.JOB_TIMEOUT if timed_out else names.JOB_FAILED
        self._log.warning(name, **_about(run), error=error, retry_in=answer.retry_in)

    def _lost(self, run: Run, outcome: Lost, answer: Settled) -> None:
        job = run.leased.job
        dead = answer.state is State.DEAD
        self._tally.finished(job.queue, job.type, "dead" if dead else "failed", run.seconds)
        self._log.error(
            names.JOB_DEAD if dead else names.JOB_LOST,
            **_about(run),
            signal=outcome.signal,
            exit_code=outcome.exit_code,
            note="the process that ran it died",
        )

    def _refused(self, run: Run, answer: RopewayError) -> None:
        if isinstance(answer, InputError) and not run.replaced:
            # The engine cannot keep this outcome. Without another the job would run for ever.
            run.replaced = True
            run.outcome = Failed(clean_error("invalid_outcome", str(answer)))
            self.put([run])
            return
        if isinstance(answer, InputError):
            self._given_up.add(run.leased.lease.token)
        if run.unknown_commit:
            self._tally.finished(run.leased.job.queue, run.leased.job.type, "succeeded", run.seconds)
            self._say(run)  # the fence says that its own transaction was committed after all
            return
        self._log.warning(names.LEASE_LOST, **_about(run), error=str(answer))

    def _nothing_to_write(self, run: Run) -> None:
        job = run.leased.job
        if run.committed:
            self._tally.finished(job.queue, job.type, "succeeded", run.seconds)
            self._say(run)
        else:
            self._tally.finished(job.queue, job.type, "cancelled", run.seconds)
            self._log.info(names.JOB_CANCELLED, **_about(run))


def _about(run: Run) -> dict[str, object]:
    job = run.leased.job
    return {
        "job_id": str(job.id),
        "type": job.type,
        "queue": job.queue,
        "attempt": job.attempt,
        "duration_ms": round(run.seconds * 1000, 3),
    }
