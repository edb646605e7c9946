"""The command, and what it starts: an engine, a worker, upkeep and the HTTP API in one process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from ropeway.cli import output
from ropeway.core.errors import EngineError, RopewayError

if TYPE_CHECKING:
    from ropeway.cli.demo.calling import Caller
    from ropeway.cli.demo.logbook import Logbook
    from ropeway.cli.demo.stage import Stage
    from ropeway.core.events import Event
    from ropeway.engines.protocol import Engine
    from ropeway.observability.metrics import WorkerMetrics
    from ropeway.settings import Settings
    from ropeway.worker.inprocess import InProcessWorker
    from ropeway.worker.options import WorkerOptions

    Update = Callable[[Iterable[tuple[Event, str]]], None]

#: --once gives up after so long; it takes about ten seconds on an idle machine.
PATIENCE = 55.0
LOOK_EVERY = 0.1
#: Afterwards, without --once: one act again every so many seconds.
PAUSE = 1.5
#: Three heartbeats: at the next one a running handler learns that it was cancelled.
LEASE = 9.0
TARGET = "ropeway.cli.demo.tasks:app"
WORKER = "demo"


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
        str, typer.Option("--host", help="Where the HTTP API is served; an address of this host alone.")
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
    with tempfile.TemporaryDirectory(prefix="ropeway-demo-") as folder, logbook.open():
        settings = Settings.load(
            {
                "url": f"sqlite:///{Path(folder) / 'demo.db'}" if url is None else url,
                "host": host,
                "port": max(port, 0),
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
        served = Path(folder) / "token" if port >= 0 and _can_serve() else None
        # In a store of others its names must not be theirs.
        name = "demo" if url is None else f"demo-{os.urandom(3).hex()}"
        finished = run_in_new_loop(_run(settings, name, logbook, served, once=once))
    if once and not finished:
        raise typer.Exit(130)


def _can_serve() -> bool:
    """What serves HTTP is an extra; the demo goes without it if it must."""
    from ropeway.cli.server import check_installed

    try:
        check_installed()
    except RopewayError as error:
        output.note(f"No HTTP API: {error}")
        return False
    return True


async def _run(settings: Settings, name: str, logbook: Logbook, token: Path | None, *, once: bool) -> bool:
    """Whether the acts came to their end. Raises NotAsPromised when one did not end as it should.

    `name` is how its queues' names begin, `token` is where the API's key is put; None: there is no API.
    """
    from ropeway.cli.demo.acts import ACTS, Place, stop_recurring
    from ropeway.cli.demo.stage import Stage
    from ropeway.cli.demo.view import view_of
    from ropeway.engines.open import engine_for
    from ropeway.observability.metrics import WorkerMetrics

    stopping = _stop_on_signals()
    metrics = WorkerMetrics()
    async with engine_for(settings) as engine, _serving(engine, settings, metrics, token) as served:
        place = Place(engine, name, None if served is None else served.caller)
        stage = Stage(place, [act for act in ACTS if served is not None or not act.over_http])
        await stage.open()
        async with _at_work(engine, settings, metrics, place.queue, place.lane):
            try:
                with view_of(stage, _headline(engine, settings, served)) as view:
                    for act in stage.acts:
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


def _headline(engine: Engine, settings: Settings, served: Served | None) -> str:
    from ropeway.core.redact import hide_password

    line = f"Ropeway on {engine.name}, durability {engine.durability}"
    if engine.name != "memory":
        line += f"\nLook at it from elsewhere: ropeway jobs list --url {hide_password(settings.url)}"
    if served is not None:
        line += f"\nThe dashboard: {served.url}/"
        line += f'\nOver HTTP: curl -H "Authorization: Bearer $(cat {served.file})" {served.url}/v1/jobs'
    return line


class Served(NamedTuple):
    """The API while the demo runs: where it is, the file with its key, and one who calls it."""

    url: str
    file: Path
    caller: Caller


@contextlib.asynccontextmanager
async def _serving(
    engine: Engine, settings: Settings, metrics: WorkerMetrics, token: Path | None
) -> AsyncIterator[Served | None]:
    """The API with a key that ends with the demo: the store may be one that others use."""
    if token is None:
        yield None
        return
    from ropeway.asgi import Server
    from ropeway.cli.demo.calling import Caller
    from ropeway.cli.firstkey import put_secret
    from ropeway.core.access import Scope
    from ropeway.service.keys import Keys

    keys = Keys(engine)
    async with Server(engine, settings, open_dashboard=True, metrics=metrics, port_may_change=True) as server:
        key, text = await keys.create("ropeway demo", frozenset(Scope))
        try:
            put_secret(token, text)
            async with Caller(server.url, text) as caller:
                yield Served(server.url, token, caller)
        finally:
            await keys.revoke(key.id)


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
async def _at_work(
    engine: Engine, settings: Settings, metrics: WorkerMetrics, *queues: str
) -> AsyncIterator[None]:
    """A worker and upkeep. The last queue is served one job at a time."""
    from ropeway.cli.demo import tasks
    from ropeway.upkeep import Upkeep
    from ropeway.worker.inprocess import InProcessWorker
    from ropeway.worker.options import WorkerOptions
    from ropeway.worker.processes import Processes

    options = WorkerOptions(queues=queues, caps={queues[-1]: 1}).with_settings(settings)
    processes = Processes(TARGET, settings, worker_id=WORKER, tenant=options.tenant, kept=1)
    async with (
        Upkeep(engine, settings, metrics, survey=True),
        InProcessWorker(tasks.app.program, engine, options, processes=processes) as worker,
    ):
        counting = asyncio.create_task(_count(worker, engine, metrics, options))
        try:
            yield
        finally:
            counting.cancel()
            await asyncio.wait([counting])
            await engine.forget_worker(WORKER, tenant=options.tenant)


async def _count(worker: InProcessWorker, engine: Engine, metrics: WorkerMetrics, options: WorkerOptions) -> None:
    """What the worker does, for the metrics and for whoever asks who is at work."""
    from importlib.metadata import version

    from ropeway.core.fleet import WorkerInfo
    from ropeway.runtime.memory import held_bytes

    host, queues = socket.gethostname(), options.queue_names()
    while True:
        running = worker.worker.runner.running
        metrics.merge(worker.worker.tally.take())
        metrics.gauges(running, options.concurrency)
        about = WorkerInfo(
            WORKER,
            host,
            os.getpid(),
            version("ropeway"),
            queues,
            (),
            options.concurrency,
            running,
            rss_bytes=held_bytes(os.getpid()),
        )
        # The store may be one that was started for a moment only; the demo itself tells of that.
        with contextlib.suppress(EngineError):
            await engine.report_worker(about, tenant=options.tenant)
        await asyncio.sleep(1.0)
