"""Coming in and going out: with a key, or with a link that is good once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse

from ropeway.core.errors import MissingScope, Unauthenticated
from ropeway.dashboard.sessions import COOKIE, drop_cookie, keep_cookie

if TYPE_CHECKING:
    from starlette.responses import Response

    from ropeway.dashboard.frame import Visit


async def login_page(visit: Visit) -> Response:
    return visit.show("login.html", wrong=None)


async def log_in(visit: Visit) -> Response:
    try:
        cookie = await visit.frame.sessions.sign_in(visit.form.one("key").strip())
    except Unauthenticated:
        return visit.show("login.html", status=401, wrong="That key is not good: unknown, expired or revoked.")
    except MissingScope:
        return visit.show(
            "login.html", status=403, wrong="That key may not look at jobs: it needs the scope read."
        )
    return _inside(visit, cookie)


async def enter(visit: Visit) -> Response:
    try:
        cookie = await visit.frame.sessions.enter(visit.request.query_params.get("ticket", ""))
    except Unauthenticated:
        return visit.show("login.html", status=401, wrong="That link was used already, or is too old.")
    return _inside(visit, cookie)


async def log_out(visit: Visit) -> Response:
    await visit.frame.sessions.sign_out(visit.viewer)
    response = RedirectResponse(visit.url("ui/login"), 303)
    drop_cookie(response, COOKIE, secure=visit.frame.secure)
    return response


def _inside(visit: Visit, cookie: str) -> Response:
    response = RedirectResponse(visit.url(""), 303)
    keep_cookie(response, cookie, secure=visit.frame.secure)
    return response
