"""From the first header to the handler: a request is looked at, admitted, read, and handed over as a `Call`.

The order is part of the contract: what a request is (headers, host, origin, path, method), who sent it (key,
scope, rate), what it brings (query; kind, size, time and fields of its body). Nothing is told about a body to
somebody without a key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TypeAlias

from ropeway.api import guard
from ropeway.api.credentials import principal_of
from ropeway.api.heavy import SLOW_BYTES
from ropeway.api.reading import (
    BATCH_BYTES,
    ROUND_A_PAYLOAD,
    Fields,
    Patience,
    body_chunks,
    declared_length,
    has_body,
    media_type,
    read_query,
    refuse_media_type,
    ticket_in,
    whole_body,
)
from ropeway.api.routing import JSON, Call, Handler, Header, Reply, Route, Stream, Table
from ropeway.core.access import Scope
from ropeway.core.errors import MissingScope, NotFound, PayloadError, RateLimited, RopewayError
from ropeway.service.access import ANYBODY, Principal
from ropeway.service.limits import Purpose
from ropeway.wire.problems import Refused

if TYPE_CHECKING:
    from ropeway.api.budget import Held
    from ropeway.api.deps import Deps
    from ropeway.api.guard import Guard
    from ropeway.api.presence import Receive
    from ropeway.service.limits import RateState

ASGIScope: TypeAlias = MutableMapping[str, Any]

#: A refused body this small is read and forgotten, so that the connection stays good for the next request.
SMALL_BODY = 65_536

_OPERATORS = frozenset({Scope.ADMIN, Scope.TENANT_ADMIN})
_WORKERS = frozenset({Scope.WORK})


class Exchange:
    """What is known of one request while it is answered."""

    __slots__ = ("code", "head", "held", "purpose", "rate", "request_id", "small", "template", "unread")

    def __init__(self) -> None:
        self.request_id = ""
        #: The route's path, never the one that was asked for: it labels metrics.
        self.template = "unknown"
        self.rate: RateState | None = None
        #: Which of the tenant's buckets pays for it.
        self.purpose = Purpose.REQUESTS
        #: Whether some of the body may still be on its way, and whether it is not much.
        self.unread = False
        self.small = False
        self.head = False
        #: The bytes of its body, if that is not known to be small.
        self.held: Held | None = None
        self.code = ""


class Bound:
    """A route with all that can be prepared before the first request."""

    __slots__ = ("cost", "fields", "limit", "purpose", "route", "scopes", "streamed", "takes_body")

    def __init__(self, route: Route, max_payload_bytes: int) -> None:
        self.route = route
        self.scopes = frozenset(route.scopes)
        self.limit = max(BATCH_BYTES, max_payload_bytes) if route.large else max_payload_bytes + ROUND_A_PAYLOAD
        self.takes_body = route.body is not None or bool(route.streamed)
        item_limit = max_payload_bytes + ROUND_A_PAYLOAD if route.large else None
        self.fields = None if route.body is None or route.lenient else Fields(route.body, self.limit, item_limit)
        self.streamed = dict(route.streamed)
        self.cost = route.cost
        self.purpose = _purpose(self.scopes)


class Intake:
    """Takes requests in for one application."""

    def __init__(self, deps: Deps, table: Table, guard: Guard, patience: Patience, *, auth: bool) -> None:
        self._deps = deps
        self._table = table
        self._guard = guard
        self._patience = patience
        self._auth = auth
        largest = deps.settings.max_payload_bytes
        self._bound = {(route.method, route.path): Bound(route, largest) for route in table.routes}

    async def reply(self, scope: ASGIScope, receive: Receive, exchange: Exchange) -> Reply | Stream:
        """What the handler says. Raises what is wrong with the request; `exchange` has what is known of it."""
        headers = self._look_at(scope["headers"], exchange)
        self._guard.check(headers, scope.get("server"))
        method: str = scope["method"]
        found = self._table.find(scope["raw_path"])
        if found is None:
            raise NotFound("there is no such path", hint="GET /openapi.json lists them all")
        methods, params = found
        route = methods.get(method)
        if route is None:
            exchange.template = next(iter(methods.values())).path
            if method != "HEAD" or "GET" not in methods:
                raise _not_allowed(methods)
            route = methods["GET"]
            exchange.head = True
        exchange.template = route.path
        bound = self._bound[route.method, route.path]
        query_string: bytes = scope["query_string"]
        principal = await self._admit(headers, bound, query_string, exchange) if bound.scopes else None
        query = read_query(query_string, route) if query_string or route.query is not None else None
        call = Call(self._deps, route, exchange.request_id, headers, params, principal=principal, query=query)
        if exchange.unread and not exchange.small:
            tenant = "" if principal is None else principal.tenant
            exchange.held = self._deps.bodies.held(tenant, outcomes=route.free)
        if not bound.takes_body:
            if exchange.unread:
                await whole_body(receive, headers, bound.limit, self._patience, exchange.held)
                exchange.unread = False
            handler: Handler = route.handler
        else:
            handler = await self._read(call, bound, receive, exchange)
        if principal is not None and callable(bound.cost):
            await self._charge_rest(principal, bound.cost(call), exchange)
        call.receive = receive
        return await handler(call)

    def _look_at(self, raw: list[Header], exchange: Exchange) -> dict[bytes, bytes]:
        """The headers. Whatever is wrong with them, the request gets its id."""
        try:
            headers = guard.scan(raw)
        except RopewayError:
            exchange.request_id = guard.request_id(None)
            exchange.unread = True
            raise
        exchange.request_id = guard.request_id(headers)
        if has_body(headers):
            exchange.unread = True
            length = declared_length(headers)
            exchange.small = length is not None and length <= SMALL_BODY
        return headers

    async def _admit(
        self, headers: Mapping[bytes, bytes], bound: Bound, query_string: bytes, exchange: Exchange
    ) -> Principal:
        """Who asks, whether they may, and whether they may now."""
        route = bound.route
        exchange.purpose = bound.purpose
        if not self._auth:
            principal = ANYBODY
        elif route.ticket and b"authorization" not in headers and (ticket := ticket_in(query_string)):
            principal = await self._deps.tickets.redeem(ticket)
        else:
            principal = await principal_of(headers, self._deps.access)
        if bound.scopes.isdisjoint(principal.scopes):
            raise _missing(route.scopes)
        if not route.free:
            # What costs more than one request is known when it was read; reading it has a price already.
            await self._charge(principal, 1.0 if callable(bound.cost) else bound.cost, exchange)
        return principal

    async def _charge(self, principal: Principal, cost: float, exchange: Exchange) -> None:
        try:
            exchange.rate = await self._deps.admission.request(principal, cost, exchange.purpose)
        except RateLimited:
            exchange.rate = self._deps.admission.state(principal, exchange.purpose)
            raise

    async def _charge_rest(self, principal: Principal, cost: float, exchange: Exchange) -> None:
        """The price of a call of which one request is paid."""
        if cost <= 1.0:
            return
        rate = self._deps.admission.state(principal, exchange.purpose)
        if rate is not None and cost > rate.limit:
            # It can never be paid, and is told so.
            await self._charge(principal, cost, exchange)
        try:
            await self._charge(principal, cost - 1.0, exchange)
        except RateLimited as error:
            if error.retry_in is not None and (rate := exchange.rate) is not None:
                # When it comes again it pays for being read again.
                error.retry_in += rate.reset / max(1, rate.limit - rate.remaining)
            raise

    async def _read(self, call: Call, bound: Bound, receive: Receive, exchange: Exchange) -> Handler:
        """Read the body into the call; the handler that takes it."""
        route, headers = bound.route, call.headers
        kind = media_type(headers)
        if kind in bound.streamed:
            call.read_from(lambda: self._chunks(receive, exchange))
            return bound.streamed[kind]
        if kind != JSON and (exchange.unread or kind):
            refuse_media_type(JSON)
        if not exchange.unread:
            if route.body_optional:
                call.body = route.body()
                return route.handler
            raise PayloadError("the body is empty", code="malformed_json", hint="send a JSON object")
        raw = await whole_body(receive, headers, bound.limit, self._patience, exchange.held)
        exchange.unread = False
        call.raw = raw
        if bound.fields is not None:
            read = bound.fields.read
            call.body = read(raw) if len(raw) <= SLOW_BYTES else await self._deps.heavy.run(read, raw)
        return route.handler

    async def _chunks(self, receive: Receive, exchange: Exchange) -> AsyncIterator[bytes]:
        async for chunk in body_chunks(receive, self._patience):
            yield chunk
        exchange.unread = False


def _purpose(scopes: frozenset[Scope]) -> Purpose:
    """What only operators or only workers may call is paid from a bucket that no producer can empty."""
    if scopes <= _OPERATORS:
        return Purpose.OPERATE
    return Purpose.WORK if scopes == _WORKERS else Purpose.REQUESTS


def _not_allowed(methods: Mapping[str, Route]) -> Refused:
    allowed = sorted({*methods, "HEAD"} if "GET" in methods else methods)
    return Refused(
        "this path does not take that method",
        code="method_not_allowed",
        hint=f"it takes {', '.join(allowed)}",
        headers=((b"allow", ", ".join(allowed).encode()),),
    )


def _missing(scopes: tuple[Scope, ...]) -> MissingScope:
    return MissingScope(
        f"the key lacks the scope {' or '.join(scopes)}", hint="an operator gives scopes when a key is made"
    )
