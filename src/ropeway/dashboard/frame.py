"""What every page has round it: who looks, the headers, the template, and what an error looks like."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlencode

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ropeway.core.errors import RopewayError, Unauthenticated
from ropeway.core.states import State
from ropeway.dashboard import drawing, words
from ropeway.dashboard.asking import Form, query_of, read_form
from ropeway.dashboard.places import Place, is_ours, is_page, places_for
from ropeway.dashboard.sessions import Sessions, Viewer
from ropeway.observability.logs import Logger, logger
from ropeway.observability.names import HTTP_FAILED
from ropeway.service.actions import notes_of
from ropeway.wire.problems import Refused, problem_of

if TYPE_CHECKING:
    from ropeway.dashboard.live import Live
    from ropeway.engines.protocol import Engine
    from ropeway.service.notes import Notes
    from ropeway.settings import Settings

#: Nothing but our own files is loaded, nothing inline runs, nobody frames it.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # A page of another site that opened one of ours cannot watch it: its cookies came along (see `cookies`).
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}

_VERSION: Final = version("ropeway")
#: Browsers fetch scripts and styles anew after an upgrade; which version it is, strangers are not told.
_STAMP: Final = blake2b(_VERSION.encode(), digest_size=4).hexdigest()

_OUR_FAULT: Final = "something went wrong here; the server's log has the reason"

#: A page's handler, and that of a form.
Page: TypeAlias = Callable[["Visit"], Awaitable[Response]]


class Frame:
    """What the pages of one process share."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        sessions: Sessions,
        live: Live,
        notes: Notes,
        *,
        check: Callable[[Any], None],
        observe: Callable[[str, str, int, float], None],
        poke: Callable[[], None],
        log: Logger | None = None,
    ) -> None:
        self.engine = engine
        self.settings = settings
        self.sessions = sessions
        self.live = live
        self.notes = notes
        self.poke = poke
        self._check = check
        self._observe = observe
        self._log = logger("ropeway.dashboard") if log is None else log
        self.templates = _environment()

    # ── Handlers ──

    def page(self, handler: Page, *, name: str, scope: bool = True) -> Callable[[Request], Awaitable[Response]]:
        """A page to look at. `scope` False: also for those who have not signed in."""

        async def answer(request: Request) -> Response:
            return await self._answer(request, name, handler, form=False, signed_in=scope)

        return answer

    def form(self, handler: Page, *, name: str, scope: bool = True) -> Callable[[Request], Awaitable[Response]]:
        """What a form does: only for those who may act, only from a page of ours."""

        async def answer(request: Request) -> Response:
            return await self._answer(request, name, handler, form=True, signed_in=scope)

        return answer

    async def _answer(
        self, request: Request, name: str, handler: Page, *, form: bool, signed_in: bool
    ) -> Response:
        began = time.perf_counter()
        visit = Visit(self, request)
        try:
            self._check(request.scope)
            if signed_in:
                visit.viewer = await self.sessions.viewer(request)
            if form:
                visit.form = await read_form(request)
                if signed_in:
                    Sessions.check_mark(visit.viewer, visit.form.one("mark"))
            if request.headers.get("hx-request") != "true":
                # An update of a page that is open already would take it from the page that is about to load.
                visit.notice = await self.sessions.said(request)
            response = await handler(visit)
        except Unauthenticated:
            response = self._to_login(visit)
        except RopewayError as error:
            response = self._refused(visit, error)
        except Exception as error:  # noqa: BLE001 - the one who looks gets a page, the log gets the reason
            self._log.error(
                HTTP_FAILED, path=name, request_id=visit.id, error=type(error).__name__, exc_info=error
            )
            response = self._refused(visit, RopewayError(_OUR_FAULT))
        if visit.notice is not None and visit.notice_shown:
            await self.sessions.forget_said(request, response)
        for header, value in HEADERS.items():
            response.headers.setdefault(header, value)
        response.headers["x-request-id"] = visit.id
        self._observe(request.method, name, response.status_code, time.perf_counter() - began)
        return response

    def _to_login(self, visit: Visit) -> Response:
        where = visit.url("ui/login")
        wanted = visit.address
        if visit.request.method == "GET" and is_page(wanted):
            where += "?" + urlencode({"next": wanted})
        if visit.request.headers.get("hx-request") == "true":
            # A page that updates itself goes there as a whole.
            return Response(status_code=204, headers={"hx-redirect": where})
        return RedirectResponse(where, 303)

    def _refused(self, visit: Visit, error: RopewayError) -> Response:
        # The words of the API: those of the store itself may tell where it is, and are for the log.
        told = problem_of(error, "")
        message = _OUR_FAULT if told.code == "internal" else told.detail
        response = visit.show("error.html", status=told.status, title=told.title, message=message, hint=told.hint)
        for name, value in error.headers if isinstance(error, Refused) else ():
            response.headers[name.decode()] = value.decode()
        return response


class Visit:
    """One request, while it is answered."""

    def __init__(self, frame: Frame, request: Request) -> None:
        self.frame = frame
        self.request = request
        #: By which the log and the audit log call this request.
        self.id = f"{random.getrandbits(96):024x}"
        self._viewer: Viewer | None = None
        self.form = Form([])
        #: What was done just before, to be told.
        self.notice: str | None = None
        self.notice_shown = False

    @property
    def viewer(self) -> Viewer:
        assert self._viewer is not None, "this page needs nobody to be signed in"  # noqa: S101
        return self._viewer

    @viewer.setter
    def viewer(self, viewer: Viewer) -> None:
        self._viewer = viewer

    @property
    def engine(self) -> Engine:
        return self.frame.engine

    @property
    def tenant(self) -> str:
        return self.viewer.tenant

    # ── Addresses: relative ones, so that it works behind any prefix ──

    @property
    def address(self) -> str:
        """Of this page, as pages write it: from the root of ours, with its filters."""
        query: bytes = self.request.scope.get("query_string", b"")
        return (self._path[1:] + (b"?" + query if query else b"")).decode("latin-1")

    def url(self, path: str) -> str:
        up = "../" * (self._path.count(b"/") - 1)
        return (up + path) or "./"

    @property
    def _path(self) -> bytes:
        # As the browser sees it: a slash that came as %2F is no step.
        scope = self.request.scope
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        return raw.partition(b"?")[0]

    @property
    def places(self) -> list[Place]:
        """What the navigation names."""
        return places_for(self.viewer)

    # ── Answers ──

    def show(self, template: str, *, status: int = 200, **values: Any) -> Response:
        self.notice_shown = True
        text = self.frame.templates.get_template(template).render(
            visit=self,
            viewer=self._viewer,
            url=self.url,
            notice=self.notice,
            version=_VERSION,
            stamp=_STAMP,
            store=self.frame.engine.name,
            **values,
        )
        return HTMLResponse(text, status)

    def came_from(self, otherwise: str) -> str:
        """The page that the form was on, or `otherwise`."""
        place = self.form.one("back")
        return place if is_ours(place) else otherwise

    async def back(self, words: str, otherwise: str) -> Response:
        """To where the form was, or `otherwise`; the page there says the words."""
        response = RedirectResponse(self.url(self.came_from(otherwise)), 303)
        await self.frame.sessions.say(self.request, response, words)
        await self.frame.live.refresh(self.tenant)
        return response

    async def note(self, action: str, *targets: str, count: int | None = None) -> None:
        """Write down what was done, after it was done."""
        self.frame.poke()
        await self.frame.notes.write(
            notes_of(self.viewer.principal.actor, action, targets, count, self.id), tenant=self.tenant
        )


def _environment() -> jinja2.Environment:
    """Everything is escaped unless it is ours."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ropeway.dashboard"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=words.number,
        seconds=words.seconds,
        when=words.when,
        exactly=words.exactly,
        short=words.short_id,
        megabytes=words.megabytes,
        clipped=words.clipped,
        json_text=words.pretty_json,
        plain=words.plain,
        bar=drawing.bar,
    )
    environment.globals.update(State=State, query_of=query_of)
    return environment
