"""Coming in and going out: with a key, or with a link that is good once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse

from ropeway.core.errors import MissingScope, Unauthenticated
from ropeway.dashboard.places import is_page

if TYPE_CHECKING:
    from starlette.responses import Response

    from ropeway.dashboard.frame import Visit


async def login_page(visit: Visit) -> Response:
    return _asks(visit, wanted=_wanted(visit.request.query_params.get("next", "")))


async def log_in(visit: Visit) -> Response:
    wanted = _wanted(visit.form.one("next"))
    inside = RedirectResponse(visit.url(wanted), 303)
    try:
        await visit.frame.sessions.sign_in(visit.request, inside, visit.form.one("key").strip())
    except Unauthenticated:
        return _asks(visit, 401, "That key is not good: unknown, expired or revoked.", wanted=wanted)
    except MissingScope:
        return _asks(visit, 403, "That key may not look at jobs: it needs the scope read.", wanted=wanted)
    return inside


async def enter(visit: Visit) -> Response:
    inside = RedirectResponse(visit.url(""), 303)
    try:
        await visit.frame.sessions.enter(visit.request, inside, visit.request.query_params.get("ticket", ""))
    except Unauthenticated:
        return _asks(visit, 401, "That link was used already, or is too old.")
    return inside


async def log_out(visit: Visit) -> Response:
    response = RedirectResponse(visit.url("ui/login"), 303)
    await visit.frame.sessions.sign_out(visit.request, response, visit.viewer)
    return response


def _asks(visit: Visit, status: int = 200, wrong: str | None = None, *, wanted: str = "") -> Response:
    return visit.show("login.html", status=status, wrong=wrong, next=wanted)


def _wanted(address: str) -> str:
    """The page that somebody asked for before they had signed in; the overview if it is none of ours."""
    return address if is_page(address) else ""
