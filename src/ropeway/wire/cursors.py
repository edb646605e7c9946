"""Cursors as text: a place in a list, signed, and good only for the tenant and the question they were made for.

A place may be a number that counts what all tenants do (the end of the event log, or of the audit log), so
it is also hidden, and padded: from the cursors it gets, a tenant learns nothing of how busy the others are.
"""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from hmac import compare_digest

from ropeway.core.errors import BadCursor

_SIGNATURE = 16
_NONCE = 16
#: Places are made as long as the next multiple of this.
_PADDED_TO = 32
_END, _PADDING = b"\x80", b"\0"


def seal(secret: bytes, position: str, *bound_to: str) -> str:
    """A position to hand out. `bound_to` says what it is for: the kind of list, the tenant, the question."""
    data = position.encode() + _END
    data += _PADDING * (-len(data) % _PADDED_TO)
    nonce = secrets.token_bytes(_NONCE)
    hidden = nonce + _hide(secret, nonce, data)
    return urlsafe_b64encode(_sign(secret, hidden, bound_to) + hidden).decode().rstrip("=")


def unseal(secret: bytes, cursor: str, *bound_to: str) -> str:
    """The position in a cursor. Raises BadCursor unless `seal` made it of the same secret for the same thing."""
    try:
        sealed = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
    except ValueError:
        raise bad_cursor() from None
    signature, hidden = sealed[:_SIGNATURE], sealed[_SIGNATURE:]
    if not compare_digest(signature, _sign(secret, hidden, bound_to)):
        raise bad_cursor()
    return _hide(secret, hidden[:_NONCE], hidden[_NONCE:]).rstrip(_PADDING)[:-1].decode()


def bad_cursor() -> BadCursor:
    return BadCursor(
        "this cursor was not given out for this list, key and filter", hint="start again without a cursor"
    )


def _hide(secret: bytes, nonce: bytes, data: bytes) -> bytes:
    """Data under a stream of bytes that only the secret gives, never the same twice. Done again, it undoes."""
    stream = b"".join(
        blake2b(block.to_bytes(8, "big"), key=secret, salt=nonce, person=b"ropeway hidden").digest()
        for block in range(-(-len(data) // blake2b.MAX_DIGEST_SIZE))
    )[: len(data)]
    return (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(data), "big")


def _sign(secret: bytes, data: bytes, bound_to: tuple[str, ...]) -> bytes:
    digest = blake2b(key=secret, digest_size=_SIGNATURE, person=b"ropeway cursor")
    for part in bound_to:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    digest.update(data)
    return digest.digest()
