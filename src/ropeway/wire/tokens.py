"""Lease tokens as text: opaque, 40 characters, good for one job and one attempt.

Inside are the grant's secret, the attempt, and a short hash of the job's id under that secret, so that a token of
one job does not pass for another that was leased in the same call. What cannot be read becomes a ticket that no
job has ever had: the engine then answers it as it answers any stale one, by the same way and in the same words.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from hashlib import blake2b
from hmac import compare_digest
from uuid import UUID, uuid4

from ropeway.core.lease import Lease

#: No token is longer; text beyond it is not looked at.
MAX_TOKEN = 128

_SECRET, _ATTEMPT, _HASH = 16, 4, 10
_LENGTH = (_SECRET + _ATTEMPT + _HASH) * 4 // 3
_LARGEST_ATTEMPT = 2**31 - 1


def format_token(lease: Lease) -> str:
    """The text that a worker gets."""
    secret = lease.token.bytes
    attempt = lease.attempt.to_bytes(_ATTEMPT, "big")
    return urlsafe_b64encode(secret + attempt + _hash(lease.job_id, secret)).decode()


def parse_token(job_id: UUID, text: str) -> Lease | None:
    """The ticket of a job that `format_token` wrote; None for any other text and any other job's."""
    if len(text) != _LENGTH:
        return None
    try:
        data = urlsafe_b64decode(text.encode("ascii"))
    except (Error, ValueError):
        return None
    secret, attempt = data[:_SECRET], int.from_bytes(data[_SECRET : _SECRET + _ATTEMPT], "big")
    # Some other spelling of the same bytes is no token: there is one text for each ticket.
    if len(data) != _LENGTH * 3 // 4 or attempt > _LARGEST_ATTEMPT or urlsafe_b64encode(data).decode() != text:
        return None
    if not compare_digest(data[_SECRET + _ATTEMPT :], _hash(job_id, secret)):
        return None
    return Lease(job_id, attempt, UUID(bytes=secret))


def lease_of(job_id: UUID, text: str) -> Lease:
    """As `parse_token`, total: text that is no token of this job becomes a ticket that no engine knows."""
    return parse_token(job_id, text) or Lease(job_id, 0, uuid4())


def _hash(job_id: UUID, secret: bytes) -> bytes:
    return blake2b(job_id.bytes, key=secret, digest_size=_HASH).digest()
