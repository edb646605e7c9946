"""The route table as data: what a route is, what its handler gets and what it gives back.

A handler is `async def handler(call: Call) -> Reply | Stream`. By the time it runs, host, origin, key, scope,
rate, media type, size and every field of query and body have been checked; what it raises of `core.errors` becomes
a problem. It parses nothing, calls a service and renders.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import unquote_to_bytes
from uuid import UUID

import msgspec

from ropeway.api.presence import Receive, is_present, until_gone
from ropeway.core import fields
from ropeway.core.access import Scope
from ropeway.core.errors import FieldError

if TYPE_CHECKING:
    from ropeway.api.deps import Deps
    from ropeway.service.access import Principal

Header: TypeAlias = tuple[bytes, bytes]
Method: TypeAlias = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]

JSON = "application/json"


class Call:
    """One request, checked. `principal` is None only on routes that need no key."""

    __slots__ = (
        "_chunks",
        "_principal",
        "body",
        "deps",
        "headers",
        "params",
        "query",
        "raw",
        "receive",
        "request_id",
        "route",
    )

    def __init__(
        self,
        deps: Deps,
        route: Route,
        request_id: str,
        headers: Mapping[bytes, bytes],
        params: Mapping[str, str],
        *,
        principal: Principal | None = None,
        query: Any = None,
        body: Any = None,
        raw: bytes = b"",
    ) -> None:
        self.deps = deps
        self.route = route
        self.request_id = request_id
        #: Names in lower case; the guard has refused a second one of those that must be single.
        self.headers = headers
        #: The `{...}` parts of the path, decoded.
        self.params = params
        self._principal = principal
        #: The route's `query` struct, and its `body` struct (None on a lenient or streamed route).
        self.query = query
        self.body = body
        #: The whole body as it came; empty on a streamed route.
        self.raw = raw
        self._chunks: Callable[[], AsyncIterator[bytes]] | None = None
        #: For the frame: where the request's messages come from.
        self.receive: Receive | None = None

    @property
    def principal(self) -> Principal:
        assert self._principal is not None, "this route needs no key, so it has no principal"  # noqa: S101
        return self._principal

    @property
    def tenant(self) -> str:
        return self.principal.tenant

    @property
    def job_id(self) -> UUID:
        """The `{id}` of the path; 422 `invalid_id` unless it is in its one canonical form."""
        return fields.parse_id(self.params["id"])

    def allows(self, scope: Scope) -> bool:
        return scope in self.principal.scopes

    async def confirm(self) -> None:
        """For a call that has gone on for a while: its key must still be good. Raises Unauthenticated."""
        self._principal = await self.deps.access.confirm(self.principal)

    def header(self, name: str) -> str | None:
        """A request header as text; its name in lower case."""
        value = self.headers.get(name.encode())
        return None if value is None else value.decode("latin-1")

    def disconnected(self) -> Coroutine[Any, Any, None]:
        """Returns when the client has gone. After the body was read."""
        assert self.receive is not None, "the frame gives it before it calls a handler"  # noqa: S101
        return until_gone(self.receive)

    async def present(self) -> bool:
        """Whether the client is still there, without waiting. After the body was read."""
        assert self.receive is not None, "the frame gives it before it calls a handler"  # noqa: S101
        return await is_present(self.receive)

    def read_from(self, chunks: Callable[[], AsyncIterator[bytes]]) -> None:
        """For the frame: where a streamed body comes from."""
        self._chunks = chunks

    def chunks(self) -> AsyncIterator[bytes]:
        """The body of a streamed route as it comes; 408 when it stalls."""
        assert self._chunks is not None, "this route's body was read already; it is `call.raw`"  # noqa: S101
        return self._chunks()


class Reply:
    """An answer: `body` is bytes as they are, None for none, or anything that msgspec can write as JSON."""

    __slots__ = ("body", "headers", "media_type", "status")

    def __init__(
        self,
        status: int = 200,
        body: Any = None,
        headers: tuple[Header, ...] = (),
        media_type: str = JSON,
    ) -> None:
        self.status = status
        self.body = body
        self.headers = headers
        self.media_type = media_type


class Stream:
    """An answer whose body goes on. The iterator is closed when the client goes or the server stops."""

    __slots__ = ("chunks", "headers", "media_type", "status")

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        *,
        media_type: str = "text/event-stream",
        status: int = 200,
        headers: tuple[Header, ...] = (),
    ) -> None:
        self.chunks = chunks
        self.media_type = media_type
        self.status = status
        self.headers = headers


Handler: TypeAlias = Callable[[Call], Awaitable["Reply | Stream"]]


class _Place(msgspec.Struct, frozen=True):
    method: Method
    path: str
    handler: Handler


class Route(_Place, frozen=True, kw_only=True):
    """One method of one path: `Route("GET", "/v1/jobs/{id}", get_job, scopes=(Scope.READ,), ...)`.

    `scopes`: any of them suffices, none means no key is needed. `body` and `query` are structs with
    `forbid_unknown_fields`; a body that may be left out has `body_optional`. `replies` maps each good status to
    the type of its JSON body, or None for no body; `media` names other media types of the 200 (a stream, NDJSON);
    `headers` are request headers that the handler reads. `codes` are the problems that the handler itself may
    raise; those of the frame (401, 413, ...) are added.

    `lenient`: the handler decodes `call.raw` itself, because its contents must never be refused; `body` then only
    documents. `streamed` gives a handler of its own to each further media type of the body, which reads
    `call.chunks()`. `large`: up to the size of a batch.

    `cost` is what the call takes from the tenant's rate, a number or a function of the call; `free` is never
    refused for rate. `ticket`: a one-use ticket in the query stands for the key. `compat` routes exist only when
    `ROPEWAY_COMPAT` is on. `links` maps the name of a later operation to its parameters as runtime expressions of
    OpenAPI, such as `{"get_job": {"id": "$response.body#/id"}}`.
    """

    scopes: tuple[Scope, ...] = ()
    body: Any = None
    query: Any = None
    replies: Mapping[int, Any]
    codes: tuple[str, ...] = ()
    summary: str = ""
    description: str = ""
    tag: str = ""
    name: str = ""
    body_optional: bool = False
    lenient: bool = False
    large: bool = False
    streamed: Mapping[str, Handler] = {}
    media: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    cost: float | Callable[[Call], float] = 1.0
    free: bool = False
    ticket: bool = False
    compat: bool = False
    hidden: bool = False
    links: Mapping[str, Mapping[str, str]] = {}

    @property
    def operation(self) -> str:
        """The operation's id in the OpenAPI document."""
        return self.name or str(getattr(self.handler, "__name__", "")).strip("_")


class Table:
    """Finds the route of a request: whole paths in a dict, the others by their segments."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._whole: dict[bytes, dict[str, Route]] = {}
        self._tree: _Node = _Node()
        for route in self.routes:
            methods = (
                self._whole.setdefault(route.path.encode(), {}) if "{" not in route.path else self._node(route)
            )
            if methods.setdefault(route.method, route) is not route:
                raise ValueError(f"{route.method} {route.path} is there twice")

    def _node(self, route: Route) -> dict[str, Route]:
        node, names = self._tree, []
        for segment in route.path.split("/")[1:]:
            if segment.startswith("{"):
                names.append(segment[1:-1])
                node.any = node.any or _Node()
                node = node.any
            else:
                node = node.named.setdefault(segment.encode(), _Node())
        if node.methods and node.names != tuple(names):
            raise ValueError(f"{route.path} calls its parts {names}, another method of it {node.names}")
        node.names = tuple(names)
        return node.methods

    def find(self, raw_path: bytes) -> tuple[Mapping[str, Route], Mapping[str, str]] | None:
        """The methods of a path and what stands in its `{...}`; None when there is no such path.

        Takes the path as it was sent: an escaped slash is part of a segment, not the end of one.
        """
        methods = self._whole.get(raw_path)
        if methods is not None:
            return methods, _NO_PARAMS
        values: list[bytes] = []
        node = self._tree
        for segment in raw_path.split(b"/")[1:]:
            child = node.named.get(segment)
            if child is None:
                child = node.any
                if child is None or not segment:
                    return None
                values.append(segment)
            node = child
        if not node.methods or len(values) != len(node.names):
            return None
        return node.methods, {name: _decoded(value, name) for name, value in zip(node.names, values, strict=True)}


class _Node:
    __slots__ = ("any", "methods", "named", "names")

    def __init__(self) -> None:
        self.named: dict[bytes, _Node] = {}
        self.any: _Node | None = None
        self.names: tuple[str, ...] = ()
        self.methods: dict[str, Route] = {}


_NO_PARAMS: Mapping[str, str] = {}


def _decoded(segment: bytes, name: str) -> str:
    try:
        return (unquote_to_bytes(segment) if b"%" in segment else segment).decode()
    except UnicodeDecodeError:
        raise FieldError(f"{name} in the path is not valid UTF-8", pointer=f"/{name}") from None
