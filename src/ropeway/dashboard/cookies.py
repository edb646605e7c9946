"""What the cookies are called, and where browsers send them.

Browsers keep cookies by host, whatever the port. So the names end in a hash of the store's secret: servers of
other stores on the same host have their own, those of one store share theirs, as they share its sessions. Below
a path of its host a server has cookies of its own as well, and other programs there never get them.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

from ropeway.wire.paths import BELOW

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

#: Who looks.
SESSION: Final = "ropeway_session"
#: What the page after an action says, once.
NOTICE: Final = "ropeway_notice"


class Cookies(msgspec.Struct, frozen=True):
    """Those of one server, as one request finds it. Over TLS (`secure`) they travel nowhere else."""

    ending: str
    path: str
    secure: bool

    def name(self, kind: str) -> str:
        return f"{kind}_{self.ending}"

    def get(self, request: Request, kind: str) -> str | None:
        return request.cookies.get(self.name(kind))

    # Lax: a link from elsewhere finds whoever follows it signed in. No GET changes anything; a POST of another
    # site comes without the cookie, and is refused for its origin and for want of the mark.

    def put(self, response: Response, kind: str, value: str, seconds: int) -> None:
        response.set_cookie(
            self.name(kind),
            value,
            max_age=seconds,
            path=self.path,
            secure=self.secure,
            httponly=True,
            samesite="lax",
        )

    def drop(self, response: Response, kind: str) -> None:
        response.delete_cookie(self.name(kind), path=self.path, secure=self.secure, httponly=True, samesite="lax")


def cookies_of(request: Request, secret: bytes, *, secure: bool) -> Cookies:
    """`secret` is the store's. Without a prefix that is known the path is that of the whole host: a proxy may
    have taken one off."""
    below: str = request.scope.get(BELOW, "")
    ending = blake2b(below.encode(), key=secret, digest_size=4, person=b"ropeway cookie").hexdigest()
    return Cookies(ending, below or "/", secure)
