"""How connections are read: uvicorn's way, with limits on the head of a request, which it has none for.

Httptools takes headers of any size and waits for their end for ever. Here a head has a size and a time, and a
request that is no HTTP gets the same kind of answer as any other that is refused.
"""

from __future__ import annotations

import asyncio
import re
import sys
from typing import TYPE_CHECKING, Any, Final, cast

from httptools import HttpParserInvalidMethodError
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from ropeway.api import guard
from ropeway.api.answering import EVERY_ANSWER, LINGER_SECONDS
from ropeway.api.corking import OneWrite
from ropeway.api.routing import Header
from ropeway.wire import problems

if TYPE_CHECKING:
    from ropeway.api.app import Api

#: Seconds from a connection's or a request's first byte to the end of its head.
HEAD_SECONDS: Final = 10.0
#: More than the application accepts, so that it is the one to say so, as long as the head ends at all.
MAX_HEAD_BYTES: Final = 4 * guard.MAX_HEADER_BYTES

#: A request line, whatever its method: the parser knows those that have a name, and takes others for no HTTP.
_REQUEST_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64} [^ \r\n]{1,8192} HTTP/1\.[01]\r?\n")
#: The host in a target that names it.
_AUTHORITY = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")
_ALLOW: Final = (b"allow", b"DELETE, GET, HEAD, PATCH, POST, PUT")


class ClosesSlowHeads(HttpToolsProtocol):
    """One connection."""

    #: When the head that is being read began, in the loop's time; None while none is.
    head_since: float | None
    head_bytes: int
    #: It has had its last answer; what still comes is thrown away.
    refused: bool
    #: What came last, while it is looked at.
    _latest: bytes = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.head_since = self.loop.time()
        self.head_bytes = 0
        self.refused = False
        super().connection_made(cast(asyncio.Transport, OneWrite(transport, self.loop)))

    def data_received(self, data: bytes) -> None:
        if self.refused:
            return
        self._latest = data
        super().data_received(data)
        if self.head_since is not None:
            self.head_bytes += len(data)
            if self.head_bytes > MAX_HEAD_BYTES:
                self._refuse("headers_too_large", "the head of the request is too large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.head_since = self.loop.time()
        self.head_bytes = 0

    def on_headers_complete(self) -> None:
        self.head_since = None
        if authority := _AUTHORITY.match(self.url):
            self._name_host(authority[1])
        super().on_headers_complete()

    def _name_host(self, authority: bytes) -> None:
        """A host in the target counts instead of the Host header (RFC 9112 §3.2.2), so it is what is checked."""
        for index, (name, _) in enumerate(self.headers):
            if name == b"host":
                self.headers[index] = (name, authority)
                return

    def close_if_slow(self, now: float) -> None:
        if self.head_since is not None and now - self.head_since > HEAD_SECONDS:
            if self.head_bytes:
                self._refuse("request_timeout", f"the head did not arrive within {HEAD_SECONDS:g} seconds")
            else:
                self.transport.close()

    def send_400_response(self, msg: str) -> None:
        if isinstance(sys.exception(), HttpParserInvalidMethodError) and _REQUEST_LINE.match(self._latest):
            self._refuse("method_not_allowed", "no path takes that method", _ALLOW)
        else:
            self._refuse("bad_request", "the request is not valid HTTP/1.1")

    def _refuse(self, code: str, detail: str, *more: Header) -> None:
        """Answer and hang up. The application was not called, so this is counted here."""
        self.head_since = None
        if self.refused or self.transport.is_closing():
            return
        self.refused = True
        request_id = guard.request_id(None)
        problem = problems.problem(code, detail, request_id)
        body = problems.encode(problem)
        headers = [
            *self.server_state.default_headers,
            *EVERY_ANSWER,
            (b"x-request-id", request_id.encode()),
            (b"content-type", problems.CONTENT_TYPE.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            *more,
        ]
        lines = [STATUS_LINE[problem.status], *(b"%s: %s\r\n" % header for header in headers), b"\r\n", body]
        self.transport.write(b"".join(lines))
        self._hang_up()
        app: Any = self.config.loaded_app
        api: Api = app
        api.count_refused(problem.status)

    def _hang_up(self) -> None:
        """Close after a moment: closing while the client still sends would take our answer from it."""
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.loop.call_later(LINGER_SECONDS, self.transport.close)
        else:
            self.transport.close()
