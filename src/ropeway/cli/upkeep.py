"""`ropeway upkeep`: the maintenance loops alone, for deployments that keep them out of their workers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from ropeway.cli.options import Url, check_place
from ropeway.cli.signals import stop_on_signals
from ropeway.core.errors import ConfigurationError
from ropeway.settings import Settings, hide_password

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine
    from ropeway.observability.metrics import WorkerMetrics
    from ropeway.runtime.service import Outage
    from ropeway.upkeep import Upkeep

Reaper = Annotated[
    bool | None,
    typer.Option(
        "--reaper/--no-reaper",
        help="Take back lost jobs, end overdue ones, remove old ones; default ROPEWAY_REAPER or yes.",
        show_default=False,
    ),
]
Dispatcher = Annotated[
    bool | None,
    typer.Option(
        "--dispatcher/--no-dispatcher",
        help="Fire recurring schedules; default ROPEWAY_DISPATCHER or yes.",
        show_default=False,
    ),
]
Port = Annotated[
    int | None,
    typer.Option("--metrics-port", help="A port for /health, /ready and /metrics; 0 any.", show_default=False),
]
LogLevel = Annotated[str | None, typer.Option("--log-level", help="DEBUG, INFO, WARNING or ERROR.")]
LogFormat = Annotated[str | None, typer.Option("--log-format", help="auto, json or text.")]


def upkeep(
    url: Url = None,
    reaper: Reaper = None,
    dispatcher: Dispatcher = None,
    metrics_port: Port = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Run the maintenance loops alone. Workers run them too; any number may, at once.

    Ctrl-C or SIGTERM stops it cleanly; a second one stops it now.
    """
    from ropeway.observability import logs

    settings = Settings.load(
        {
            "url": url,
            "reaper": reaper,
            "dispatcher": dispatcher,
            "metrics_port": metrics_port,
            "log_level": log_level,
            "log_format": log_format,
        }
    )
    if not (settings.reaper or settings.dispatcher):
        raise ConfigurationError(
            "there is nothing to do: both loops are switched off",
            hint=f"reaper by {settings.sources['reaper']}, dispatcher by {settings.sources['dispatcher']}",
        )
    check_place(settings, makes_store=True)
    logs.configure(settings.log_level, settings.log_format)
    asyncio.run(run(settings))


async def run(settings: Settings) -> None:
    """Until a signal asks it to stop."""
    from ropeway.engines.capabilities import Capability
    from ropeway.engines.open import engine_for
    from ropeway.observability import logs
    from ropeway.observability.metrics import WorkerMetrics
    from ropeway.observability.names import UPKEEP_STARTED, UPKEEP_STOPPED
    from ropeway.runtime.service import Outage
    from ropeway.upkeep import Upkeep

    log = logs.logger("ropeway.upkeep")
    stopping = stop_on_signals()
    outage = Outage(log)
    metrics = None if settings.metrics_port is None else WorkerMetrics()
    engine = engine_for(settings)
    if Capability.UPKEEP not in engine.capabilities:
        raise ConfigurationError(
            "a server looks after its own store, so there is nothing to do for this URL",
            hint="run upkeep with the store's own URL, or leave it to the server",
        )
    chores = Upkeep(engine, settings, metrics, log=log, outage=outage, survey=True)
    async with AsyncExitStack() as stack:
        if metrics is not None:
            _serve(stack, settings, metrics, chores)
        stack.push_async_callback(engine.close)
        if not await _open(engine, outage, stopping):
            return
        log.info(UPKEEP_STARTED, engine=engine.name, url=hide_password(settings.url), every=_told(chores))
        async with chores:
            await stopping.wait()
    log.info(UPKEEP_STOPPED)


async def _open(engine: Engine, outage: Outage, stopping: asyncio.Event) -> bool:
    from ropeway.runtime.service import patiently

    return await patiently(engine.open, name="open", outage=outage, stopping=stopping)


def _serve(stack: AsyncExitStack, settings: Settings, metrics: WorkerMetrics, chores: Upkeep) -> None:
    from ropeway.worker.sidecar import Sidecar

    def ready() -> list[str]:
        if chores.outage.away:
            return [f"the store has been away for {chores.outage.seconds:.0f} s"]
        return [] if all(loop.running for loop in chores.loops) else ["the loops are not running"]

    sidecar = Sidecar(
        settings.host,
        settings.metrics_port or 0,
        lambda: {"chores": list(chores.chores)},
        ready,
        metrics.render,
        observe=metrics.http,
    )
    stack.enter_context(sidecar)


def _told(chores: Upkeep) -> list[str]:
    return [f"{name} {interval:g} s" for name, interval in chores.chores.items()]
