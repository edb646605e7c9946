"""The command, and what it starts: an engine, a worker and upkeep in one process, and a small HTTP port."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ropeway.cli import output
from ropeway.core.errors import RopewayError

if TYPE_CHECKING:
    from ropeway.cli.demo.logbook import Logbook
    from ropeway.cli.demo.stage import Stage
    from ropeway.core.events import Event
    from ropeway.engines.protocol import Engine
    from ropeway.observability.metrics import WorkerMetrics
    from ropeway.settings import Settings
    from ropeway.worker.inprocess import InProcessWorker

    Update = Callable[[Iterable[tuple[Event, str]]], None]

#: --once gives up after so long; it takes about ten seconds on an idle machine.
PATIENCE = 55.0
LOOK_EVERY = 0.1
#: Afterwards, without --once: one act again every so many seconds.
PAUSE = 1.5
#: Three heartbeats: at the next one a running handler learns that it was cancelled.
LEASE = 9.0
TARGET = "ropeway.cli.demo.tasks:app"


class NotAsPromised(RopewayError):
    """Some job did not get where it should."""


def demo(
    once: Annotated[
        bool,
        typer.Option(
            "--once",
            help="Stop when every job has reached its end: exit 0, or 1 with the names of those that did not.",
        ),
    ] = False,
    host: Annotated[
        str, typer.Option("--host", help="Where the API and the dashboard will be; today /health and /metrics.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=-1, max=65_535, help="The same: 0 any free port, -1 none.")
    ] = 8000,
    url: Annotated[
        str | None,
        typer.Option(
            "--url", metavar="URL", help="An engine to use instead of a new SQLite file, as a worker would."
        ),
    ] = None,
) -> None:
    """Show everything that can happen to a job, live: a worker runs tasks on a new SQLite file.

    It goes on until Ctrl-C, which ends it cleanly with exit code 0 (with --once: 130, it did not get to its end).
    """
    from ropeway.cli.demo.logbook import Logbook
    from ropeway.runtime.loops import run_in_new_loop
    from ropeway.settings import Settings

    logbook = Logbook()
    with _store(url) as address, logbook.open():
        settings = Settings.load(
            {
                "url": address,
                "host": host,
                "worker_http_port": port,
                "concurrency": 20,
                "lease_seconds": LEASE,
                "drain_seconds": 1.0,
                "poll_seconds": 0.2,
                "reaper": True,
                "reaper_interval": 0.5,
                "dispatcher": True,
                "dispatcher_interval": 0.2,
            }
        )
        finished = run_in_new_loop(_run(settings, logbook, once=once))
    if once and not finished:
        raise typer.Exit(130)


@contextlib.contextmanager
def _store(url: str | None) -> Iterator[str]:
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="ropeway-demo-") as folder:
        yield f"sqlite:///{Path(folder) / 'demo.db'}"


async def _run(settings: Settings, logbook: Logbook, *, once: bool) -> bool:
    """Whether the acts came to their end. Raises NotAsPromised when one did not end as it should."""
    from ropeway.cli.demo.acts import ACTS, Place, stop_recurring
    from ropeway.cli.demo.stage import Stage
    from ropeway.cli.demo.view import view_of
    from ropeway.engines.open import engine_for

    stopping = _stop_on_signals()
    async with engine_for(settings) as engine:
        place = Place(engine, f"demo-{os.urandom(3).hex()}")
        stage = Stage(place, ACTS)
        await stage.open()
        async with _at_work(engine, settings, place.queue, place.lane) as address:
            try:
                with view_of(stage, _headline(engine, settings, address)) as view:
                    for act in ACTS:
                        await stage.begin(act)
                    await _until_over(stage, view.update, stopping)
                    finished = not stage.waiting_for
                    if finished and not once:
                        await _go_on(stage, view.update, stopping)
            finally:
                await stop_recurring(place)
                await stage.end()
    wrong = {**dict.fromkeys(stage.waiting_for, "it is not over"), **stage.wrong}
    if wrong and not stopping.is_set():
        logbook.print()
        raise NotAsPromised("not as promised: " + "; ".join(f"{title} ({why})" for title, why in wrong.items()))
    if stopping.is_set():
        output.say("\nStopped.")
    elif once:
        output.say("\nEvery job reached the end it should. Nothing was lost on the way.")
    return finished


def _headline(engine: Engine, settings: Settings, address: str | None) -> str:
    from ropeway.core.redact import hide_password

    line = f"Ropeway on {engine.name}, durability {engine.durability}"
    if address is not None:
        line += f"; {address}/metrics"
    if engine.name != "memory":
        line += f"\nLook at it from elsewhere: ropeway jobs list --url {hide_password(settings.url)}"
    return line


async def _until_over(stage: Stage, update: Update, stopping: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE
    while True:
        update(await stage.look())
        if not stage.waiting_for or stopping.is_set() or loop.time() > deadline:
            return
        await _pause(stopping, LOOK_EVERY)


async def _go_on(stage: Stage, update: Update, stopping: asyncio.Event) -> None:
    """A gentle stream: the acts again, one after the other."""
    loop = asyncio.get_running_loop()
    while True:
        for act in (act for act in stage.acts if act.fired is None):
            if act.title not in stage.waiting_for:
                await stage.begin(act)
            until = loop.time() + PAUSE
            while loop.time() < until:
                update(await stage.look())
                if stopping.is_set():
                    return
                await _pause(stopping, LOOK_EVERY)


async def _pause(stopping: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stopping.wait()


def _stop_on_signals() -> asyncio.Event:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    return stopping


@contextlib.asynccontextmanager
async def _at_work(engine: Engine, settings: Settings, *queues: str) -> AsyncIterator[str | None]:
    """A worker, upkeep and the HTTP port; where that is. The last queue is served one job at a time."""
    from ropeway.cli.demo import tasks
    from ropeway.observability.metrics import WorkerMetrics
    from ropeway.upkeep import Upkeep
    from ropeway.worker.inprocess import InProcessWorker
    from ropeway.worker.options import WorkerOptions
    from ropeway.worker.processes import Processes
    from ropeway.worker.sidecar import Sidecar

    metrics = WorkerMetrics()
    options = WorkerOptions(queues=queues, caps={queues[-1]: 1}).with_settings(settings)
    processes = Processes(TARGET, settings, worker_id="demo", tenant=options.tenant, kept=1)
    sidecar = Sidecar(
        settings.host,
        settings.worker_http_port,
        health=lambda: {"engine": engine.name},
        ready=list,
        metrics=metrics.render,
    )
    with sidecar:
        async with (
            Upkeep(engine, settings, metrics, survey=True),
            InProcessWorker(tasks.app.program, engine, options, processes=processes) as worker,
        ):
            counting = asyncio.create_task(_count(worker, metrics, options.concurrency))
            try:
                yield sidecar.url
            finally:
                counting.cancel()


async def _count(worker: InProcessWorker, metrics: WorkerMetrics, slots: int) -> None:
    while True:
        metrics.merge(worker.worker.tally.take())
        metrics.gauges(worker.worker.runner.running, slots)
        await asyncio.sleep(1.0)
