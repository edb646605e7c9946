"""Runs the API and the dashboard on one port: where it may listen, how it starts, how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
import ssl
from collections.abc import Awaitable, Iterable, Iterator, MutableMapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import uvicorn

from ropeway.api.app import Api, build_app
from ropeway.api.below import Application, Below
from ropeway.api.guard import LOOPBACK_NAMES, Guard, scan
from ropeway.api.protocol import HEAD_SECONDS, ClosesSlowHeads
from ropeway.api.routes import ROUTES
from ropeway.core.errors import ConfigurationError
from ropeway.dashboard import Dashboard
from ropeway.observability.logs import Logger, logger
from ropeway.observability.names import HTTP_PORT_TAKEN, SERVER_STARTED, SERVER_STOPPED, SERVER_STOPPING

if TYPE_CHECKING:
    from ropeway.api.reading import Patience
    from ropeway.api.routing import Route
    from ropeway.engines.protocol import Engine
    from ropeway.observability.metrics import WorkerMetrics
    from ropeway.settings import Settings

#: Seconds that requests have to be answered after the server was asked to stop.
STOP_SECONDS = 10.0
#: Seconds that a connection may stay open between two requests: longer than the pools of most clients keep theirs,
#: so that it is the client who closes and no request is sent into a closing connection.
KEEP_ALIVE_SECONDS = 75
BACKLOG = 2_048

#: Connections beside those that wait. Beyond that uvicorn itself says 503: the last wall, before memory runs out.
BESIDE_WAITING = 10_000
#: Addresses that mean every address of the host.
EVERYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104


def check_place(settings: Settings, *, auth: bool) -> None:
    """Whether the server may listen where it is told to. Raises ConfigurationError.

    Beyond loopback, keys must not cross the network in the clear, and nobody may come in without one.
    """
    if (settings.tls_cert is None) is not (settings.tls_key is None):
        raise ConfigurationError("TLS needs both a certificate and its key", hint="give --tls-cert and --tls-key")
    if is_loopback(settings.host):
        return
    if not auth:
        raise ConfigurationError(
            f"--no-auth works on loopback only, and {settings.host} is not",
            hint="leave it out, or listen on 127.0.0.1",
        )
    if settings.tls_cert is None and not settings.behind_proxy:
        raise ConfigurationError(
            f"{settings.host} can be reached from elsewhere, and keys would cross the network unencrypted",
            hint="give --tls-cert and --tls-key, or say --behind-proxy when a proxy in front speaks TLS",
        )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def names_of(settings: Settings) -> tuple[str, ...]:
    """What requests may call the server."""
    own = f"[{settings.host}]" if ":" in settings.host else settings.host
    more = (name.strip() for name in (settings.host_names or "").split(","))
    return (*LOOPBACK_NAMES, *(() if settings.host in EVERYWHERE else (own,)), *filter(None, more))


class Site:
    """One port: the dashboard at its addresses, the API at all others."""

    def __init__(self, api: Api, dashboard: Dashboard) -> None:
        self.api = api
        self._dashboard = dashboard

    def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> Awaitable[None]:
        # No coroutine of its own: the hot calls go straight on to the API.
        if scope["type"] == "http" and not scope["path"].startswith("/v1/") and Dashboard.serves(scope["path"]):
            return self._dashboard(scope, receive, send)
        return self.api(scope, receive, send)

    def count_refused(self, status: int) -> None:
        """For the protocol: a request that did not get as far as an application."""
        self.api.count_refused(status)


class Server:
    """The application on a port, while the block lasts. The engine is open, and stays so.

    `open_dashboard`: on loopback the pages ask nobody to sign in; the API still asks for keys.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        *,
        auth: bool = True,
        open_dashboard: bool = False,
        metrics: WorkerMetrics | None = None,
        port_may_change: bool = False,
        routes: Iterable[Route] = ROUTES,
        patience: Patience | None = None,
        log: Logger | None = None,
    ) -> None:
        check_place(settings, auth=auth)
        self.settings = settings
        self.api: Api = build_app(
            engine,
            settings,
            auth=auth,
            host_names=names_of(settings),
            own_address=settings.host in EVERYWHERE,
            metrics=metrics,
            routes=routes,
            patience=patience,
        )
        self.dashboard = self._make_dashboard(auth=auth and not (open_dashboard and is_loopback(settings.host)))
        self._port_may_change = port_may_change
        self._log = logger("ropeway.server") if log is None else log
        self._socket: socket.socket | None = None
        self._server: _Uvicorn | None = None
        self._running: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None

    def _make_dashboard(self, *, auth: bool) -> Dashboard:
        deps = self.api.deps
        guard = Guard(names_of(self.settings), own_address=self.settings.host in EVERYWHERE)
        return Dashboard(
            deps.engine,
            self.settings,
            access=deps.access,
            seals=deps.seals,
            tickets=deps.tickets,
            notes=deps.notes,
            stopping=deps.stopping,
            check=lambda scope: guard.check(scan(scope["headers"]), scope.get("server")),
            observe=deps.metrics.http,
            poke=deps.streams.poke,
            auth=auth,
        )

    @property
    def port(self) -> int:
        return 0 if self._socket is None else int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        """Where to find it from this host."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.settings.host, self.settings.host)  # noqa: S104
        scheme = "http" if self.settings.tls_cert is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    async def __aenter__(self) -> Self:
        self._socket = self._listen()
        try:
            self._server = _Uvicorn(self._config())
            await self.api.start()
            await self._bring_up(self._server, self._socket)
        except BaseException:
            self._socket.close()
            raise
        self._looking = asyncio.create_task(self._close_slow_heads(), name="ropeway slow heads")
        self._log.info(SERVER_STARTED, url=self.url, engine=self.api.deps.engine.name)
        return self

    async def _bring_up(self, server: _Uvicorn, bound: socket.socket) -> None:
        self._running = asyncio.create_task(server.serve(sockets=[bound]), name="ropeway server")
        up = asyncio.create_task(server.up.wait())
        await asyncio.wait([self._running, up], return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if self._running.done():
            await self._running
            raise ConfigurationError("the server ended before it had started")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Requests are answered, long polls and streams end at once."""
        self._log.info(SERVER_STOPPING)
        if self._looking is not None:
            self._looking.cancel()
        self.api.end_waiting()
        self.dashboard.end_streams()
        if self._server is not None and self._running is not None:
            self._server.should_exit = True
            await self._running
        await self.dashboard.close()
        await self.api.stop()
        self._log.info(SERVER_STOPPED)

    # ── Listening ──

    def _listen(self) -> socket.socket:
        host, port = self.settings.host, self.settings.port
        try:
            return _bound(host, port)
        except PermissionError as error:
            self._cannot_listen(error, "ports below 1024 need rights: choose another with --port")
        except OSError as error:
            if not self._port_may_change or error.errno != errno.EADDRINUSE:
                self._cannot_listen(error, "choose another port with --port, or another address with --host")
        bound = _bound(host, 0)
        self._log.warning(HTTP_PORT_TAKEN, port=port, instead=bound.getsockname()[1])
        return bound

    def _cannot_listen(self, error: OSError, hint: str) -> None:
        place = f"{self.settings.host} port {self.settings.port}"
        raise ConfigurationError(f"cannot listen on {place}: {error.strerror or error}", hint=hint) from error

    def _config(self) -> uvicorn.Config:
        prefix = self.settings.path_prefix
        site: Application = Site(self.api, self.dashboard)
        config = uvicorn.Config(
            site if prefix is None else Below(site, prefix),
            http=ClosesSlowHeads,
            ws="none",
            loop="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            limit_concurrency=self.settings.max_waiting + BESIDE_WAITING,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=int(STOP_SECONDS),
            ssl_certfile=self.settings.tls_cert,
            ssl_keyfile=self.settings.tls_key,
        )
        # Uvicorn tells of every connection that speaks no HTTP, and of what we answer and log ourselves.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        try:
            config.load()
        except (OSError, ssl.SSLError) as error:
            files = " and ".join(
                str(Path(file)) for file in (self.settings.tls_cert, self.settings.tls_key) if file
            )
            raise ConfigurationError(
                f"the certificate or its key cannot be used: {error.strerror or error}", hint=f"look at {files}"
            ) from error
        return config

    async def _close_slow_heads(self) -> None:
        """A connection on which no request gets complete is closed: uvicorn itself would wait for ever."""
        assert self._server is not None  # noqa: S101
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(HEAD_SECONDS / 5)
            for connection in list(self._server.server_state.connections):
                if isinstance(connection, ClosesSlowHeads):
                    connection.close_if_slow(loop.time())


class _Uvicorn(uvicorn.Server):
    """Leaves signals to whoever runs it, and says when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and host == "::":
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind(address)
        # Before anything is announced: two processes may both bind a port, only one may listen on it.
        bound.listen(BACKLOG)
    except BaseException:
        bound.close()
        raise
    bound.setblocking(False)
    return bound
