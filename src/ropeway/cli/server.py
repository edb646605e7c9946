"""`ropeway server`: the engine behind HTTP, for producers and workers in any language."""

from __future__ import annotations

import os
import shlex
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple
from urllib.parse import urlsplit

import typer

from ropeway.cli import firstkey, output
from ropeway.cli.options import Url
from ropeway.cli.signals import stop_on_signals
from ropeway.core.errors import ConfigurationError
from ropeway.core.redact import hide_password
from ropeway.engines.capabilities import Capability
from ropeway.runtime import collector
from ropeway.settings import Settings

if TYPE_CHECKING:
    from ropeway.asgi import Server
    from ropeway.engines.protocol import Engine
    from ropeway.observability.metrics import WorkerMetrics
    from ropeway.runtime.service import Outage
    from ropeway.upkeep import Upkeep

LogLevel = Annotated[str | None, typer.Option("--log-level", help="DEBUG, INFO, WARNING or ERROR.")]
LogFormat = Annotated[str | None, typer.Option("--log-format", help="auto, json or text.")]


def server(
    url: Url = None,
    host: Annotated[
        str | None, typer.Option("--host", help="The address to listen on; default 127.0.0.1.", show_default=False)
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", help="The port; 0 any free one; default 8000.", show_default=False)
    ] = None,
    host_names: Annotated[
        list[str] | None,
        typer.Option("--host-name", metavar="NAME", help="A name that requests may call it by; may be repeated."),
    ] = None,
    behind_proxy: Annotated[
        bool | None,
        typer.Option("--behind-proxy", help="A proxy in front speaks TLS, so beyond this host it need not."),
    ] = None,
    path_prefix: Annotated[
        str | None,
        typer.Option("--path-prefix", metavar="PATH", help="The path that a proxy shows it below and passes on."),
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option("--tls-cert", metavar="FILE", help="Speak HTTPS with this.")
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option("--tls-key", metavar="FILE", help="The certificate's key.")
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Ask for no keys: everybody on this host may do everything.")
    ] = False,
    no_upkeep: Annotated[bool, typer.Option("--no-upkeep", help="Leave the maintenance loops to others.")] = False,
    compat: Annotated[
        bool | None, typer.Option("--compat", help="Answer the older paths too, see docs/http.md.")
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port", help="A port on loopback for /metrics without a key; 0 any.", show_default=False
        ),
    ] = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Serve the HTTP API. The first start on an empty store makes a key and says where it is.

    Ctrl-C or SIGTERM finishes what is being answered, a second one stops now.
    """
    from ropeway.observability import logs
    from ropeway.runtime.loops import run_in_new_loop

    settings = Settings.load(
        {
            "url": url,
            "host": host,
            "port": port,
            "host_names": ",".join(host_names) if host_names else None,
            "behind_proxy": behind_proxy,
            "path_prefix": path_prefix,
            "tls_cert": tls_cert,
            "tls_key": tls_key,
            "compat": compat,
            "metrics_port": metrics_port,
            "log_level": log_level,
            "log_format": log_format,
        }
    )
    if urlsplit(settings.url).scheme in ("http", "https"):
        raise ConfigurationError(
            "a server needs a store of its own, and that URL is another server's",
            hint="name a store: sqlite:///ropeway.db or postgresql://user@host/database",
        )
    check_installed()
    from ropeway.asgi import check_place

    check_place(settings, auth=not no_auth)
    logs.configure(settings.log_level, settings.log_format)
    collector.look_rarely()
    run_in_new_loop(run(settings, auth=not no_auth, upkeep=not no_upkeep))


def check_installed() -> None:
    """What serves HTTP is an extra."""
    try:
        import httptools  # noqa: F401
        import jinja2  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError:
        raise ConfigurationError(
            "the server's parts are not installed", hint="pip install 'ropeway[server]'"
        ) from None


async def run(settings: Settings, *, auth: bool, upkeep: bool) -> None:
    """Until a signal asks it to stop."""
    from ropeway.asgi import Server
    from ropeway.assembly import upkeep_of
    from ropeway.engines.open import engine_for
    from ropeway.observability import logs
    from ropeway.observability.metrics import WorkerMetrics
    from ropeway.runtime.service import Outage, patiently

    stopping = stop_on_signals()
    outage = Outage(logs.logger("ropeway.server"))
    metrics = WorkerMetrics()
    engine = engine_for(settings, serving=True)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(engine.close)
        for step in (partial(make_first_tables, engine), engine.open):
            if not await patiently(step, name="open", outage=outage, stopping=stopping):
                return
        server = Server(engine, settings, auth=auth, metrics=metrics)
        way_in = await find_way_in(server, settings) if auth else NO_KEYS
        if upkeep:
            chores = upkeep_of(engine, settings, metrics, outage)
            await stack.enter_async_context(chores)
            server.api.deps.readiness.also("upkeep", lambda: _running(chores))
        if settings.metrics_port is not None:
            _serve_metrics(stack, settings.metrics_port, metrics)
        async with server:
            about = "upkeep    in this process" if upkeep else "upkeep    left to others"
            output.say(greeting(server, settings, way_in, await pages(server), about) + "\nCtrl-C stops it.")
            await stopping.wait()


async def make_first_tables(engine: Engine) -> None:
    """A PostgreSQL database that Ropeway never saw gets its tables. One with older tables is not touched: when
    those change is for people to say (`ropeway migrate up`)."""
    if engine.name != "postgres":
        return
    from ropeway.engines.postgres import PostgresEngine

    assert isinstance(engine, PostgresEngine)  # noqa: S101 - its name says so
    if not (await engine.migrations.status()).applied:
        done = await engine.migrations.up()
        output.note(f"A first start: made the tables in the schema {engine.schema} ({len(done)} migrations).")


@asynccontextmanager
async def beside_a_worker(
    engine: Engine, settings: Settings, metrics: WorkerMetrics, _outage: Outage
) -> AsyncIterator[None]:
    """The API in a worker's own process, while tasks are written: on the worker's store, whatever port is free."""
    from ropeway.asgi import Server

    if Capability.TENANCY not in engine.capabilities:
        # The store is another server's: the API is there.
        yield
        return
    server = Server(engine, settings, open_dashboard=True, metrics=metrics, port_may_change=True)
    way_in = await find_way_in(server, settings)
    async with server:
        output.say(greeting(server, settings, way_in, await pages(server)))
        yield


def _running(chores: Upkeep) -> str:
    return "ok" if all(loop.running for loop in chores.loops) else "the loops are not running"


def _serve_metrics(stack: AsyncExitStack, port: int, metrics: WorkerMetrics) -> None:
    """Without a key, so never beyond this host."""
    from ropeway.worker.sidecar import Sidecar

    stack.enter_context(Sidecar("127.0.0.1", port, dict, list, metrics.render, observe=metrics.http))


# ── What a person is told ──


class WayIn(NamedTuple):
    """How to get in, in words, and the file with a key if there is one."""

    words: str
    file: Path | None = None


NO_KEYS = WayIn("none are asked for: everybody on this host may do everything")


async def find_way_in(server: Server, settings: Settings) -> WayIn:
    """A first key when there is none yet, in a file. Its text is never printed."""
    file = firstkey.place_of(settings)
    if await firstkey.write_first_key(file, server.api.deps.access.create_first_key):
        return WayIn(f"{_shown(file)}  (made just now, with all scopes; only you can read it)", file)
    if os.access(file, os.R_OK):
        return WayIn(f"{_shown(file)}  (made at the first start)", file)
    return WayIn("ropeway keys list; ropeway keys create NAME makes one")


async def pages(server: Server) -> str:
    """Where the dashboard is, and how to get in: without a key, or by a link that is good once."""
    sessions = server.dashboard.sessions
    link = None if sessions.open else await sessions.first_link()
    if sessions.open:
        return f"dashboard {server.url}/  (no login on this host)"
    if link is None:
        return f"dashboard {server.url}/  (sign in with a key)"
    words = "sign in with a key, or once, within ten minutes, by this link"
    return f"dashboard {server.url}/  ({words})\n            {server.url}{link}"


def greeting(server: Server, settings: Settings, way_in: WayIn, *more: str) -> str:
    """What a start says: where it is, on what, how to get in, what to try."""
    from importlib.metadata import version

    engine = server.api.deps.engine
    header = f' -H "Authorization: Bearer $(cat {_shown(way_in.file)})"' if way_in.file else ""
    lines = [
        f"Ropeway {version('ropeway')} serves {server.url}",
        f"store     {hide_password(settings.url)}  ({engine.name}, durability {engine.durability})",
        f"keys      {way_in.words}",
        *more,
        f"try       curl{header} {server.url}/v1/queues",
        f"API       {server.url}/openapi.json",
    ]
    return "\n  ".join(lines)


def _shown(file: Path) -> str:
    """A path as it can be pasted into a shell: short where that is possible."""
    if file.is_absolute() and file.is_relative_to(Path.home()):
        return f"~/{shlex.quote(str(file.relative_to(Path.home())))}"
    return shlex.quote(str(file))
