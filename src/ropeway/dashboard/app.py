"""The dashboard as an ASGI application: which address is which page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Match, Mount, Route, Router
from starlette.staticfiles import StaticFiles

from ropeway.dashboard import acting, entering, many, pages, ticking
from ropeway.dashboard.frame import HEADERS, Frame
from ropeway.dashboard.live import Live
from ropeway.dashboard.sessions import Sessions

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import Receive, Send

    from ropeway.engines.protocol import Engine
    from ropeway.service.access import Access
    from ropeway.service.notes import Notes
    from ropeway.service.seals import Seals, Tickets
    from ropeway.settings import Settings

Scope: TypeAlias = MutableMapping[str, Any]

_STATIC = Path(__file__).parent / "static"


class Dashboard:
    """The pages over an open engine.

    `check` refuses requests that were meant for another host or made by another site; `observe` counts them;
    `poke` tells the API's listeners that something was done. Without `auth` whoever reaches it may do everything.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        *,
        access: Access,
        seals: Seals,
        tickets: Tickets,
        notes: Notes,
        stopping: asyncio.Event,
        check: Callable[[Scope], None],
        observe: Callable[[str, str, int, float], None],
        poke: Callable[[], None],
        auth: bool = True,
    ) -> None:
        # Over TLS, or behind a proxy that speaks it.
        secure = settings.tls_cert is not None or settings.behind_proxy
        self.sessions = Sessions(engine, access, seals, tickets, auth=auth, secure=secure)
        self._live = Live(engine)
        self._frame = Frame(
            engine, settings, self.sessions, self._live, notes, check=check, observe=observe, poke=poke
        )
        self._routes = _routes(self._frame, stopping)
        self._elsewhere = _application(self._frame, pages.nowhere)
        self._router = Router(self._routes, redirect_slashes=False, default=self._elsewhere)

    @staticmethod
    def serves(path: str) -> bool:
        """Whether an address is one of the dashboard's."""
        return path in ("/", "/favicon.ico") or path.startswith(("/ui/", "/static/"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/favicon.ico":
            scope = {**scope, "path": "/static/favicon.svg", "raw_path": b"/static/favicon.svg"}
        # With an application in the scope starlette raises what it would otherwise answer in plain text.
        scope = {**scope, "app": self}
        try:
            # A copy: it writes its findings into what it gets.
            await self._router({**scope}, receive, send)
        except HTTPException as error:
            # No such file, or no such method: nothing has been answered yet.
            refused = self._wrong_method(scope) if error.status_code == 405 else self._elsewhere
            await refused(scope, receive, send)

    def _wrong_method(self, scope: Scope) -> Any:
        """The answer to an address of ours that is not for this method, with those that it is for."""
        here = [route for route in self._routes if route.matches(scope)[0] is not Match.NONE]
        allowed = {method for route in here for method in _methods(route)}
        return _application(self._frame, pages.wrong_method(sorted(allowed)))

    def end_streams(self) -> None:
        """The server stops: `stopping` is set already."""
        self._live.wake()

    async def close(self) -> None:
        await self._live.close()


def _routes(frame: Frame, stopping: asyncio.Event) -> list[Route | Mount]:
    def page(path: str, handler: Any, *, name: str, scope: bool = True) -> Route:
        return Route(path, frame.page(handler, name=name, scope=scope), methods=["GET"])

    def form(path: str, handler: Any, *, name: str, scope: bool = True) -> Route:
        return Route(path, frame.form(handler, name=name, scope=scope), methods=["POST"])

    return [
        page("/", pages.overview, name="/"),
        page("/ui/queues", pages.queues, name="/ui/queues"),
        page("/ui/jobs", pages.jobs, name="/ui/jobs"),
        page("/ui/jobs/{id}", pages.job, name="/ui/jobs/{id}"),
        page("/ui/dead", pages.dead, name="/ui/dead"),
        page("/ui/schedules", pages.schedules, name="/ui/schedules"),
        page("/ui/workers", pages.workers, name="/ui/workers"),
        page("/ui/events", pages.events, name="/ui/events"),
        page("/ui/audit", pages.audit, name="/ui/audit"),
        page("/ui/settings", pages.settings, name="/ui/settings"),
        page("/ui/history", pages.history, name="/ui/history"),
        page("/ui/live", ticking.stream(stopping), name="/ui/live"),
        page("/ui/login", entering.login_page, name="/ui/login", scope=False),
        form("/ui/login", entering.log_in, name="/ui/login", scope=False),
        page("/ui/enter", entering.enter, name="/ui/enter", scope=False),
        form("/ui/logout", entering.log_out, name="/ui/logout"),
        form("/ui/queues/{queue}/{verb}", acting.queue, name="/ui/queues/{queue}/{verb}"),
        form("/ui/jobs/bulk", many.bulk, name="/ui/jobs/bulk"),
        form("/ui/jobs/{id}/{verb}", acting.job, name="/ui/jobs/{id}/{verb}"),
        form("/ui/dead/replay", many.replay, name="/ui/dead/replay"),
        form("/ui/schedules/{schedule}/{verb}", acting.schedule, name="/ui/schedules/{schedule}/{verb}"),
        Mount("/static", _Files(directory=_STATIC)),
    ]


def _methods(route: Route | Mount) -> Collection[str]:
    """What an address is for. What is mounted are files: they are only read."""
    return route.methods or () if isinstance(route, Route) else ("GET", "HEAD")


def _application(frame: Frame, handler: Any) -> Any:
    """The answer to an address of ours that is no page, or not for this method."""
    answer = frame.page(handler, name="unknown", scope=False)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        response = await answer(Request(scope, receive))
        await response(scope, receive, send)

    return application


class _Files(StaticFiles):
    """Files of ours. Browsers keep them, and ask each time whether they are still the same."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update({**HEADERS, "cache-control": "no-cache"})
        return response
