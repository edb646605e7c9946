"""The application below a path of its host, for proxies that pass paths on as they came.

A proxy that takes the path off needs none of this: pages use relative addresses only.
"""

from __future__ import annotations

from collections.abc import Awaitable, MutableMapping
from typing import Any, Final, Protocol

from ropeway.api.answering import EVERY_ANSWER, Send
from ropeway.api.presence import Receive
from ropeway.wire.paths import BELOW

_MOVED: Final = 308


class Application(Protocol):
    """What uvicorn runs, and what its protocol tells of requests that did not get as far."""

    def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> Awaitable[None]: ...

    def count_refused(self, status: int) -> None: ...


class Below:
    """An application whose addresses may begin with `prefix`, such as /tools/ropeway.

    Those without it are answered as well: whoever probes the process itself knows nothing of the proxy.
    """

    def __init__(self, application: Application, prefix: str) -> None:
        self._application = application
        self._prefix = prefix.encode()
        self._inside = self._prefix + b"/"

    def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self._application(scope, receive, send)
        raw: bytes = scope["raw_path"]
        if raw == self._prefix:
            # Relative addresses would leave the prefix from here.
            return self._move_inside(scope, send)
        if not raw.startswith(self._inside):
            return self._application(scope, receive, send)
        # The prefix has nothing to decode: it is as long in both.
        cut = len(self._prefix)
        # What was taken off is kept beside it: cookies belong below it too (`dashboard.cookies`).
        scope = {**scope, "path": scope["path"][cut:], "raw_path": raw[cut:], BELOW: self._prefix.decode()}
        return self._application(scope, receive, self._with_places(send))

    def count_refused(self, status: int) -> None:
        self._application.count_refused(status)

    def _with_places(self, send: Send) -> Send:
        """Answers that say where something is say it below the prefix."""

        async def sent(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    (name, self._prefix + value if name == b"location" and value.startswith(b"/") else value)
                    for name, value in message["headers"]
                ]
            await send(message)

        return sent

    async def _move_inside(self, scope: MutableMapping[str, Any], send: Send) -> None:
        query: bytes = scope.get("query_string", b"")
        where = self._inside + (b"?" + query if query else b"")
        headers = [*EVERY_ANSWER, (b"location", where), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": _MOVED, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
