"""`memory://`: parent and child as one process, for nobody else can see its jobs. Unsupervised, and it says so."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from typing import TYPE_CHECKING

from ropeway.engines.open import engine_for
from ropeway.observability import logs, names
from ropeway.observability.metrics import WorkerMetrics
from ropeway.runtime.service import Outage
from ropeway.worker.declaring import declare
from ropeway.worker.inprocess import InProcessWorker
from ropeway.worker.loading import load_program
from ropeway.worker.options import overlaid
from ropeway.worker.sidecar import Sidecar
from ropeway.worker.supervisor import UNREADY_AFTER

if TYPE_CHECKING:
    from ropeway.worker.options import WorkerOptions
    from ropeway.worker.program import Chores

TELL_EVERY = 1.0


async def run_standalone(
    target: str, options: WorkerOptions, flags: dict[str, object], *, chores: Chores | None
) -> int:
    """Work until SIGTERM or SIGINT; a second one stops at once."""
    program = load_program(target)
    settings = overlaid(program.settings, flags)
    options = options.with_settings(settings)
    log = logs.logger("ropeway.worker")
    metrics = WorkerMetrics()
    stopping = asyncio.Event()
    now = asyncio.Event()

    def on_signal() -> None:
        (now if stopping.is_set() else stopping).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    async with contextlib.AsyncExitStack() as stack:
        engine = await stack.enter_async_context(engine_for(settings))
        await declare(engine, program.schedules(), tenant=options.tenant, log=log)
        if chores is not None:
            await stack.enter_async_context(chores(engine, settings, metrics, Outage(log)))
        worker = InProcessWorker(program, engine, options)
        await worker.__aenter__()
        if settings.worker_http_port >= 0:
            sidecar = Sidecar(
                settings.host,
                settings.worker_http_port,
                health=lambda: {"status": "ok"},
                ready=lambda: _unready(worker, stopping),
                metrics=metrics.render,
            )
            sidecar.start()
            stack.callback(sidecar.stop)
        log.warning(
            names.WORKER_STARTED,
            engine=engine.name,
            concurrency=options.concurrency,
            note="one process without supervision: jobs live in its memory and die with it",
        )
        telling = asyncio.create_task(_tell(worker, metrics))
        await stopping.wait()
        draining = asyncio.create_task(worker.stop())
        at_once = asyncio.create_task(now.wait())
        await asyncio.wait([draining, at_once], return_when=asyncio.FIRST_COMPLETED)
        for task in (draining, at_once, telling):
            task.cancel()
        log.info(names.WORKER_STOPPED)
    return 0


async def _tell(worker: InProcessWorker, metrics: WorkerMetrics) -> None:
    while True:
        metrics.merge(worker.worker.tally.take())
        await asyncio.sleep(TELL_EVERY)


def _unready(worker: InProcessWorker, stopping: asyncio.Event) -> list[str]:
    if stopping.is_set():
        return ["the worker is stopping"]
    if time.monotonic() - worker.ledger.last_claimed() > UNREADY_AFTER:
        return [f"no claim succeeded for {UNREADY_AFTER:g} s: a handler blocks"]
    return []
