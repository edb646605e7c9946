"""What is looked at first: the headers, the request's id, whom the request was meant for, who sent it."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ropeway.api.routing import Header
from ropeway.core.errors import FieldError, Unauthenticated
from ropeway.wire.problems import Refused

MAX_HEADERS: Final = 100
MAX_HEADER_BYTES: Final = 16_384
#: What a line has besides its name and value: a colon, a space and the end of the line.
_LINE = 4

_GOOD_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}\Z")
_PORT = re.compile(r":[0-9]{1,5}\Z")

#: Names that mean this host to whoever is on it.
LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
#: Accepted spellings of hosts are remembered, up to this number: the check itself takes longer than it should.
_MOST_KNOWN = 256


def scan(raw: Sequence[Header]) -> dict[bytes, bytes]:
    """Headers by name. Raises for too many, too large ones, and for a second one of those that are single."""
    headers: dict[bytes, bytes] = {}
    size = len(raw) * _LINE
    for name, value in raw:
        size += len(name) + len(value)
        if name in headers:
            value = _joined(name, headers[name], value)
        headers[name] = value
    if size > MAX_HEADER_BYTES or len(raw) > MAX_HEADERS:
        raise Refused(
            f"at most {MAX_HEADERS} headers and {MAX_HEADER_BYTES} bytes of them are accepted",
            code="headers_too_large",
        )
    return headers


def _joined(name: bytes, first: bytes, second: bytes) -> bytes:
    """Of most headers a second one goes on with the list; of some, nobody could say which one counts."""
    match name:
        case b"host":
            raise Refused("the request has two Host headers", code="wrong_host")
        case b"authorization":
            raise Unauthenticated
        case b"content-type" | b"content-encoding":
            raise Refused("the request has two headers for the kind of its body", code="unsupported_media_type")
        case b"origin":
            raise Refused("the request has two Origin headers", code="bad_origin")
        case b"idempotency-key" | b"last-event-id":
            text = name.decode()
            raise FieldError(f"two {text} headers", code="conflicting_fields", pointer=f"/{text}")
    return first + b", " + second


def request_id(headers: Mapping[bytes, bytes] | None) -> str:
    """The id that the caller gave, or a new one when there is none that can be shown as it is."""
    given = None if headers is None else headers.get(b"x-request-id")
    if given is not None and _GOOD_ID.match(given):
        return given.decode("ascii")
    return f"{random.getrandbits(96):024x}"


class Guard:
    """Refuses requests that were meant for another host, and those that a page of another origin made.

    A browser can be led to reach a server on loopback or inside a network (by a name that resolves to it), so both
    are checked also where no key is needed. Answers never allow another origin to read them.
    """

    def __init__(self, names: Iterable[str], *, own_address: bool = False) -> None:
        self._names = frozenset(name.lower().rstrip(".") for name in names)
        #: A server that listens everywhere also answers to whichever of its addresses was connected to: that is no
        #: name, so nobody can have made it lead here.
        self._own_address = own_address
        self._known: set[bytes] = set()

    def check(self, headers: Mapping[bytes, bytes], server: tuple[str, int | None] | None) -> None:
        """`server` is the address that the connection came in on."""
        host = headers.get(b"host")
        if host is None or host not in self._known:
            self._check_host(host, server)
        origin = headers.get(b"origin")
        if origin is not None and not self._own(origin, host or b""):
            raise Refused(
                "a page of another origin made this request",
                code="bad_origin",
                hint="call the API from a server, or from a page that it serves itself",
            )

    def _check_host(self, host: bytes | None, server: tuple[str, int | None] | None) -> None:
        if host is not None:
            name = _PORT.sub("", host.decode("latin-1").lower()).rstrip(".")
            if name in self._names or (self._own_address and server is not None and name.strip("[]") == server[0]):
                if len(self._known) < _MOST_KNOWN:
                    self._known.add(host)
                return
        raise Refused(
            "the Host header names a host that this server does not serve",
            code="wrong_host",
            hint="start it with --host-name NAME, or set ROPEWAY_HOST_NAMES, to let it be called by that name",
        )

    @staticmethod
    def _own(origin: bytes, host: bytes) -> bool:
        # The host has been checked; a proxy in front may have taken the TLS off, so both schemes are ours.
        return origin in (b"http://" + host, b"https://" + host)
