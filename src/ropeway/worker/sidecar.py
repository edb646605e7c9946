"""A worker's small HTTP port: /health (it is alive), /ready (it takes jobs) and /metrics (Prometheus).

It runs in a thread of its own, so it answers while the event loop is busy. It needs no credentials and tells
no secrets.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import msgspec

from ropeway.core.errors import ConfigurationError
from ropeway.observability.logs import Logger, logger
from ropeway.observability.metrics import CONTENT_TYPE
from ropeway.observability.names import HTTP_FAILED, HTTP_PORT_TAKEN, HTTP_STARTED

#: Port numbers with a meaning of their own.
ANY_PORT, OFF = 0, -1

#: Seconds after which a client that says nothing is hung up on.
CLIENT_PATIENCE = 5.0


class Sidecar:
    """Answers from three functions, each called in the thread of a request.

    `health` gives what to show as JSON: that it is called at all means the process is alive. `ready` gives the
    reasons why the process is not ready, none if it is. `metrics` gives a page for Prometheus. `observe` is told
    of each request (method, path, status, seconds). A port that is taken is replaced by a free one, with a
    warning: a second worker on a host must not die of it. Port 0 takes any, -1 makes all of this do nothing.
    """

    def __init__(
        self,
        host: str,
        port: int,
        health: Callable[[], Mapping[str, object]],
        ready: Callable[[], Sequence[str]],
        metrics: Callable[[], bytes],
        *,
        observe: Callable[[str, str, int, float], None] | None = None,
        log: Logger | None = None,
    ) -> None:
        self._host = host
        self._asked_port = port
        self._routes: dict[str, Callable[[], _Answer]] = {
            "/health": lambda: _Answer.json(200, {"status": "ok", **health()}),
            "/ready": lambda: _readiness(ready()),
            "/metrics": lambda: _Answer(200, CONTENT_TYPE, metrics()),
        }
        self._observe = observe
        self._log = logger("ropeway.http") if log is None else log
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int | None:
        """The port it listens on; None while it does not."""
        return None if self._server is None else int(self._server.server_address[1])

    @property
    def url(self) -> str | None:
        """Where to find it from this host."""
        if self.port is None:
            return None
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)  # noqa: S104
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def start(self) -> None:
        """Listen, and answer from now on. Raises ConfigurationError for an address this host does not have."""
        if self._asked_port == OFF or self._server is not None:
            return
        self._server = self._listen()
        self._thread = threading.Thread(
            # How often it looks whether it should stop: the most that `stop` has to wait.
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.2},
            name="ropeway http",
            daemon=True,
        )
        self._thread.start()
        self._log.info(HTTP_STARTED, url=self.url)

    def stop(self) -> None:
        """Stop listening. May be repeated."""
        server, thread = self._server, self._thread
        self._server = self._thread = None
        if server is not None:
            server.shutdown()
            server.server_close()
        if thread is not None:
            thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _listen(self) -> _Server:
        try:
            return _Server(self._host, self._asked_port, self)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES) or self._asked_port == ANY_PORT:
                raise ConfigurationError(
                    f"cannot listen on {self._host} port {self._asked_port}: {error.strerror or error}",
                    hint="set ROPEWAY_HOST to an address of this host",
                ) from error
        server = _Server(self._host, ANY_PORT, self)
        self._log.warning(HTTP_PORT_TAKEN, port=self._asked_port, instead=server.server_address[1])
        return server

    # ── For the handler ──

    def answer(self, method: str, path: str) -> _Answer:
        """What to say to one request; it is counted."""
        began = time.perf_counter()
        route = self._routes.get(path)
        if route is None:
            path = "unknown"
            answer = _Answer.json(404, {"error": "not found", "paths": list(self._routes)})
        elif method not in ("GET", "HEAD"):
            answer = _Answer.json(405, {"error": "only GET and HEAD"})
        else:
            answer = self._ask(path, route)
        if self._observe is not None:
            self._observe(method, path, answer.status, time.perf_counter() - began)
        return answer

    def _ask(self, path: str, route: Callable[[], _Answer]) -> _Answer:
        try:
            return route()
        except Exception as error:  # noqa: BLE001 - the one who asks gets an answer, the log gets the reason
            self._log.error(HTTP_FAILED, path=path, error=repr(error), exc_info=error)
            return _Answer.json(500, {"error": "this page could not be made; the log says why"})


class _Answer(msgspec.Struct, frozen=True):
    status: int
    content_type: str
    body: bytes

    @classmethod
    def json(cls, status: int, document: Mapping[str, object]) -> _Answer:
        return cls(status, "application/json", msgspec.json.encode(document, enc_hook=str) + b"\n")


def _readiness(reasons: Sequence[str]) -> _Answer:
    if not reasons:
        return _Answer.json(200, {"status": "ready"})
    return _Answer.json(503, {"status": "not ready", "reasons": list(reasons)})


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Without it `server_close` would wait for clients that say nothing.
    block_on_close = False

    def __init__(self, host: str, port: int, sidecar: Sidecar) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.sidecar = sidecar
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer's own asks the DNS for its name, which nobody uses and which may take seconds.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hung up is no news; what our pages raise is caught before."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = CLIENT_PATIENCE
    server_version = "ropeway"
    sys_version = ""

    def _respond(self) -> None:
        method = self.command
        answer = self.server.sidecar.answer(method, self.path.partition("?")[0])
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        if answer.status == 405:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if method != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _respond  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        """Not on stderr: probes come every few seconds."""
