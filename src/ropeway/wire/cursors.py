"""Cursors as text: a place in a list, signed, and good only for the tenant and the question they were made for."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from hmac import compare_digest

from ropeway.core.errors import BadCursor

_SIGNATURE = 16


def seal(secret: bytes, position: str, *bound_to: str) -> str:
    """A position to hand out. `bound_to` says what it is for: the kind of list, the tenant, the question."""
    data = position.encode()
    return urlsafe_b64encode(_sign(secret, data, bound_to) + data).decode().rstrip("=")


def unseal(secret: bytes, cursor: str, *bound_to: str) -> str:
    """The position in a cursor. Raises BadCursor unless `seal` made it of the same secret for the same thing."""
    try:
        sealed = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
    except ValueError:
        raise bad_cursor() from None
    signature, data = sealed[:_SIGNATURE], sealed[_SIGNATURE:]
    if not compare_digest(signature, _sign(secret, data, bound_to)):
        raise bad_cursor()
    return data.decode()


def bad_cursor() -> BadCursor:
    return BadCursor(
        "this cursor was not given out for this list, key and filter", hint="start again without a cursor"
    )


def _sign(secret: bytes, data: bytes, bound_to: tuple[str, ...]) -> bytes:
    digest = blake2b(key=secret, digest_size=_SIGNATURE, person=b"ropeway cursor")
    for part in bound_to:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    digest.update(data)
    return digest.digest()
