"""One set of services for a parallel test run.

pytest-xdist runs tests in worker processes. The controlling process owns the services, because it outlives
every worker; workers ask it, and only what is asked for is started or installed, once.

    broker = Broker()              # controller: pass broker.address and broker.key to the workers
    ask(address, key, "postgres")  # worker: the URL, or NotAvailable with the reason
"""

from __future__ import annotations

import secrets
import threading
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from typing import TYPE_CHECKING

from devtools.pgbouncer import find_pgbouncer, install_pgbouncer
from devtools.postgres import shared_postgres
from devtools.private import NotAvailable
from devtools.programs import PROGRAMS, obtain_program

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


def obtain(service: str) -> str:
    """Start or install it in this process; NotAvailable, with the reason, when that cannot be done.

    "postgres" answers the server's URL; "pgbouncer" its program, as every worker runs a cheap pool of its own.
    "node", "curl" and "chromium" answer where the program is.
    """
    if service == "postgres":
        return shared_postgres().url
    if service == "pgbouncer":
        return str(find_pgbouncer() or install_pgbouncer())
    if service in PROGRAMS:
        return obtain_program(service)
    raise NotAvailable(f"unknown service {service!r}")


class Broker:
    """Answers `ask` from worker processes on a loopback port, to those who know its key."""

    def __init__(self) -> None:
        self.key = secrets.token_hex(16)
        self._listener = Listener(("127.0.0.1", 0), backlog=64, authkey=self.key.encode())
        host, port = self._listener.address
        self.address = f"{host}:{port}"
        self._lock = threading.Lock()
        self._closed = False
        threading.Thread(target=self._serve, name="ropeway-test-broker", daemon=True).start()

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            self._listener.close()

    def _serve(self) -> None:
        while not self._closed:
            try:
                connection = self._listener.accept()
            except (OSError, EOFError, AuthenticationError):
                continue  # closed, or a caller that went away or does not know the key
            # A thread each: one worker waiting for an installation must not keep the others from connecting.
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        with connection, suppress(EOFError, OSError):
            service = connection.recv()
            with self._lock:
                try:
                    answer = ("have", obtain(service))
                except NotAvailable as error:
                    answer = ("lack", str(error))
                except Exception as error:  # noqa: BLE001 - a worker left without an answer would hang
                    answer = ("lack", f"{type(error).__name__}: {error}")
            connection.send(answer)


def ask(address: str, key: str, service: str) -> str:
    """In a worker: what `obtain` answers in the controlling process."""
    host, _, port = address.rpartition(":")
    with Client((host, int(port)), authkey=key.encode()) as connection:
        connection.send(service)
        verdict, text = connection.recv()
    if verdict == "lack":
        raise NotAvailable(text)
    return str(text)
