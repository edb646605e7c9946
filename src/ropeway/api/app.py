"""The ASGI application: from the first header to the last byte of every answer.

It is its own small framework, because the hot calls (enqueue, lease, ack) cost a store less than a stack of
middleware costs: headers are scanned once, a path is found in a dict, a body is decoded into the struct that the
handler takes, and an answer is encoded once.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from ropeway.api import guard
from ropeway.api.answering import EVERY_ANSWER, Answering
from ropeway.api.deps import Deps
from ropeway.api.errors import Told, told, told_of_a_bug
from ropeway.api.guard import Guard
from ropeway.api.intake import ASGIScope, Exchange, Intake
from ropeway.api.openapi import document
from ropeway.api.presence import Receive
from ropeway.api.reading import ClientGone, Patience
from ropeway.api.routes import ROUTES
from ropeway.api.routing import Header, Reply, Route, Stream, Table
from ropeway.core.errors import EngineError, RopewayError
from ropeway.observability.logs import Logger, logger
from ropeway.observability.metrics import WorkerMetrics
from ropeway.observability.names import HTTP_FAILED, HTTP_REQUEST
from ropeway.service.limits import RateState
from ropeway.wire import problems

if TYPE_CHECKING:
    from ropeway.engines.protocol import Engine
    from ropeway.settings import Settings

Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_encode = msgspec.json.Encoder().encode
_PROBLEM = problems.CONTENT_TYPE.encode()


class Api:
    """The application. `start` before the first request, `stop` after the last; or by ASGI's lifespan."""

    def __init__(
        self,
        deps: Deps,
        routes: Iterable[Route],
        *,
        host_names: Iterable[str] = guard.LOOPBACK_NAMES,
        own_address: bool = False,
        auth: bool = True,
        patience: Patience | None = None,
        log: Logger | None = None,
    ) -> None:
        self.deps = deps
        self.table = Table(routes)
        patience = Patience() if patience is None else patience
        names = Guard(host_names, own_address=own_address)
        self._intake = Intake(deps, self.table, names, patience, auth=auth)
        self._answering = Answering(patience, deps.stopping)
        self._log = logger("ropeway.api") if log is None else log
        self._observe = deps.metrics.http

    async def start(self) -> None:
        await self.deps.start()

    async def stop(self) -> None:
        """Long polls and streams end at once; whatever else runs may finish before this is called."""
        self.end_waiting()
        await self.deps.stop()

    def end_waiting(self) -> None:
        """No new waiting: long polls answer with what they have, streams end."""
        self.deps.stopping.set()
        self._answering.end_streams()

    # ── ASGI ──

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # What starts and stops it is not the server's business: an engine has to be open for it.
            raise NotImplementedError(f"this application does not speak {scope['type']}")
        await self._http(scope, receive, send)

    async def _http(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        exchange = Exchange()
        try:
            reply = await self._intake.reply(scope, receive, exchange)
            headers = self._headers(exchange, reply)
            if isinstance(reply, Stream):
                self._tell(scope, exchange, reply.status, began)
                await self._stream(reply, headers, exchange, receive, send)
                return
            status, body = reply.status, self._body(reply)
        except RopewayError as error:
            status, body, headers = self._refuse(error, exchange)
        except ClientGone:
            return
        except Exception as error:  # noqa: BLE001 - the one who asks gets an answer, the log gets the reason
            status, body, headers = self._own_fault(error, exchange)
        finally:
            if exchange.held is not None:
                exchange.held.release()
        self._tell(scope, exchange, status, began)
        if exchange.unread and exchange.small:
            exchange.unread = not await self._answering.forget(receive)
        await self._answering.send(
            status, body, headers, send, receive if exchange.unread else None, head=exchange.head
        )

    async def _stream(
        self, stream: Stream, headers: list[Header], exchange: Exchange, receive: Receive, send: Send
    ) -> None:
        """The status has been sent, so all that is left to say of an error is that the answer breaks off."""
        watched = None if exchange.unread else receive
        try:
            await self._answering.stream(stream, headers, watched, send, head=exchange.head)
        except ClientGone:
            pass
        except Exception as error:  # noqa: BLE001 - as above
            self._log_failure(error, exchange, stream.status, "broken_off")

    # ── What is sent ──

    def _body(self, reply: Reply) -> bytes:
        body = reply.body
        if body is None:
            return b""
        return body if type(body) is bytes else _encode(body)

    def _headers(self, exchange: Exchange, reply: Reply | Stream) -> list[Header]:
        headers: list[Header] = [
            *EVERY_ANSWER,
            (b"x-request-id", exchange.request_id.encode()),
            *reply.headers,
        ]
        if isinstance(reply, Stream) or reply.body is not None:
            headers.append((b"content-type", reply.media_type.encode()))
        if exchange.rate is not None:
            headers += _rate_headers(exchange.rate)
        return headers

    def _refuse(self, error: RopewayError, exchange: Exchange) -> tuple[int, bytes, list[Header]]:
        answer = told(error, exchange.request_id)
        exchange.code = answer.code
        if answer.status >= 500:
            self._log_failure(error, exchange, answer.status, answer.code)
        return self._told(answer, exchange)

    def _own_fault(self, error: Exception, exchange: Exchange) -> tuple[int, bytes, list[Header]]:
        exchange.request_id = exchange.request_id or guard.request_id(None)
        answer = told_of_a_bug(exchange.request_id)
        exchange.code = answer.code
        self._log_failure(error, exchange, answer.status, answer.code)
        return self._told(answer, exchange)

    def _told(self, answer: Told, exchange: Exchange) -> tuple[int, bytes, list[Header]]:
        headers: list[Header] = [
            *EVERY_ANSWER,
            (b"x-request-id", exchange.request_id.encode()),
            (b"content-type", _PROBLEM),
            *answer.headers,
        ]
        if exchange.rate is not None:
            headers += _rate_headers(exchange.rate)
        return answer.status, answer.body, headers

    # ── What is told to others ──

    def count_refused(self, status: int) -> None:
        """A request that did not get as far as here."""
        self._observe("other", "unknown", status, 0.0)

    def _tell(self, scope: ASGIScope, exchange: Exchange, status: int, began: float) -> None:
        seconds = time.perf_counter() - began
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._observe(method, exchange.template, status, seconds)
        if exchange.code:
            self.deps.metrics.problem(exchange.code)
        self._log.debug(
            HTTP_REQUEST,
            method=method,
            path=exchange.template,
            status=status,
            code=exchange.code or None,
            ms=round(seconds * 1000, 3),
            request_id=exchange.request_id,
        )

    def _log_failure(self, error: Exception, exchange: Exchange, status: int, code: str) -> None:
        fields: dict[str, Any] = {
            "path": exchange.template,
            "status": status,
            "code": code,
            "request_id": exchange.request_id,
        }
        if isinstance(error, EngineError):
            self._log.warning(HTTP_FAILED, error=error.message, **fields)
        else:
            self._log.error(HTTP_FAILED, error=type(error).__name__, exc_info=error, **fields)


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"})


def _rate_headers(rate: RateState) -> tuple[Header, ...]:
    return (
        (b"ratelimit-limit", b"%d" % rate.limit),
        (b"ratelimit-remaining", b"%d" % rate.remaining),
        (b"ratelimit-reset", b"%d" % (rate.reset + 0.999)),
    )


def build_app(
    engine: Engine,
    settings: Settings,
    *,
    auth: bool = True,
    host_names: Iterable[str] = guard.LOOPBACK_NAMES,
    own_address: bool = False,
    metrics: WorkerMetrics | None = None,
    routes: Iterable[Route] = ROUTES,
    patience: Patience | None = None,
) -> Api:
    """The application over an open engine. Without `auth` every request is the tenant `default` with all scopes:
    only for a port that nobody else can reach."""
    deps = Deps(engine, settings, WorkerMetrics() if metrics is None else metrics)
    served = [route for route in routes if settings.compat or not route.compat]
    deps.openapi = document(served)
    return Api(deps, served, host_names=host_names, own_address=own_address, auth=auth, patience=patience)
