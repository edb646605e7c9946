"""The Authorization header becomes a principal. Every kind of bad key gets the same answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ropeway.core.errors import Unauthenticated

if TYPE_CHECKING:
    from ropeway.service.access import Access, Principal

_BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([!-~]{1,512})\Z")


async def principal_of(headers: Mapping[bytes, bytes], access: Access) -> Principal:
    """Who sent this. Raises Unauthenticated."""
    given = headers.get(b"authorization")
    match = None if given is None else _BEARER.match(given)
    if match is None:
        raise Unauthenticated
    return await access.authenticate(match[1].decode("ascii"))
