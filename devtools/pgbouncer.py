"""A PgBouncer of one's own in front of a PostgreSQL.

    with PrivatePgBouncer(server.url, pool_mode="transaction") as bouncer:
        connect(bouncer.url)                        # the database that server.url names, pooled
        connect(bouncer.url_for("another"))         # any other database of that server

It is deliberately bare: a start-up parameter it does not know is refused, as in an installation nobody tuned.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote, unquote, urlsplit

from devtools.private import (
    Household,
    NotAvailable,
    ServerFailed,
    apt_install,
    free_port,
    run_as,
    server_account,
)
from devtools.waiting import NeverCameTrue, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

PoolMode = Literal["session", "transaction", "statement"]


def find_pgbouncer() -> Path | None:
    """The program: $ROPEWAY_TEST_PGBOUNCER, or on the PATH, or where Debian puts it. None if missing."""
    if asked := os.environ.get("ROPEWAY_TEST_PGBOUNCER"):
        if not os.access(asked, os.X_OK):
            raise NotAvailable(f"ROPEWAY_TEST_PGBOUNCER: {asked} is not a program")
        return Path(asked)
    # An ordinary user's PATH has no sbin.
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
    return Path(found) if found else None


def install_pgbouncer() -> Path:
    """Install Debian's pgbouncer by apt and return the program; NotAvailable when that cannot be done.

    On a machine that runs systemd the package starts a pgbouncer of its own on port 6432: it knows no
    database and is in nobody's way; `systemctl disable --now pgbouncer` stops it.
    """
    apt_install("pgbouncer")
    program = find_pgbouncer()
    if program is None:
        raise NotAvailable("pgbouncer was installed but its program was not found")
    return program


class PrivatePgBouncer:
    """One pgbouncer process on a free port of 127.0.0.1, passing every database name on to one server.

    Every client is let in and reaches the server as the user (and password) of `upstream_url`.
    `stop` ends it and drops its clients, `start` starts it again on the same port, `close` removes
    everything; like PrivatePostgres, nothing stays behind however the process that started it ends.

    settings    more of the [pgbouncer] section, `{"server_idle_timeout": 5}`; they win over the arguments.
    """

    def __init__(
        self,
        upstream_url: str,
        *,
        pool_mode: PoolMode = "transaction",
        default_pool_size: int = 20,
        max_client_conn: int = 500,
        settings: Mapping[str, object] | None = None,
        program: Path | None = None,
        start_seconds: float = 20.0,
    ) -> None:
        self.program = program or find_pgbouncer() or install_pgbouncer()
        self._upstream = urlsplit(upstream_url)
        self._start_seconds = start_seconds
        self._pid: int | None = None
        self._port = 0
        self._settings: dict[str, object] = {
            "pool_mode": pool_mode,
            "default_pool_size": default_pool_size,
            "max_client_conn": max_client_conn,
            **(settings or {}),
        }
        account = server_account()
        # SIGTERM ends it at once; SIGINT would wait for its clients.
        self._home = Household("ropeway-pgb-", account=account, stop_signal=signal.SIGTERM)
        self.log_file = self.folder / "log"
        try:
            self.version = run_as(account, [self.program, "--version"]).split()[1]
            self._start_on_a_free_port()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PrivatePgBouncer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def folder(self) -> Path:
        return self._home.folder

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        """The upstream URL's database, through the pool."""
        return self.url_for(unquote(self._upstream.path.lstrip("/")))

    @property
    def admin_url(self) -> str:
        """The console: SHOW POOLS, PAUSE, KILL ..."""
        return self.url_for("pgbouncer")

    def url_for(self, database: str) -> str:
        """Any database of the upstream server, by name, through the pool."""
        user = self._upstream.username or "ropeway"
        return f"postgresql://{user}@127.0.0.1:{self._port}/{quote(database, safe='')}"

    @property
    def pid(self) -> int | None:
        return self._pid if self.running else None

    @property
    def running(self) -> bool:
        return self._pid is not None and not self._home.closed and self._home.exit_code(self._pid) is None

    def log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def start(self) -> None:
        """Start on the same port; ServerFailed with the log when it does not come up."""
        if self.running:
            return
        config = self.folder / "pgbouncer.ini"
        config.write_text(self._config())
        config.chmod(0o644)  # the folder itself is closed to others
        seen = len(self.log())
        self._pid = self._home.start([self.program, config], log=self.log_file)
        try:
            # "process up" is its last line of a start, after the sockets listen.
            wait_until(lambda: not self.running or "process up" in self.log()[seen:], within=self._start_seconds)
        except NeverCameTrue as error:
            raise self._failure("was not ready in time") from error
        if not self.running:
            raise self._failure("did not start")

    def stop(self) -> None:
        """End it at once, dropping its clients; port and settings are kept for `start`."""
        if self._pid is not None:
            self._home.signal(self._pid, signal.SIGTERM)
            wait_until(lambda: not self._home.processes(), what="pgbouncer is gone")
            self._pid = None

    def close(self) -> None:
        """Stop it and remove its folder. May be called twice."""
        self._home.close()

    def _start_on_a_free_port(self) -> None:
        for _ in range(5):
            self._port = free_port()
            try:
                self.start()
            except ServerFailed:
                if "in use" not in self.log():
                    raise
                self.log_file.unlink()
            else:
                return
        raise ServerFailed("five free ports in a row were taken by others before pgbouncer could listen")

    def _config(self) -> str:
        upstream = {
            "host": self._upstream.hostname or "127.0.0.1",
            "port": self._upstream.port or 5432,
            "user": unquote(self._upstream.username or "ropeway"),
        }
        if self._upstream.password is not None:
            upstream["password"] = unquote(self._upstream.password)
        target = " ".join(f"{key}='{_doubled(value)}'" for key, value in upstream.items())
        section = {
            "listen_addr": "127.0.0.1",
            "listen_port": self._port,
            "unix_socket_dir": self.folder,
            "auth_type": "any",
            **self._settings,
        }
        lines = [f"{key} = {value}" for key, value in section.items()]
        return "\n".join(["[databases]", f"* = {target}", "", "[pgbouncer]", *lines, ""])

    def _failure(self, what: str) -> ServerFailed:
        log = "\n".join(self.log().splitlines()[-40:]) or "(empty)"
        return ServerFailed(f"{self.program} {what}. Its log:\n{log}")


def _doubled(value: object) -> str:
    """A value inside the quotes of a connection string."""
    return str(value).replace("'", "''")
