"""A Redis of one's own, for tests and benchmarks.

    with PrivateRedis() as server:
        url = server.url                           # redis://127.0.0.1:41234/0
        server.command("DBSIZE")                   # 0
        server.kill(signal.SIGKILL)                # the data stays, but for the last second of it
        server.start()

The server and its folder are gone after the block, after Ctrl-C and after a kill -9 of the process that
started it. Nothing but the standard library is needed to talk to it: see `command`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from devtools.private import (
    Household,
    NotAvailable,
    ServerFailed,
    apt_install,
    as_root,
    free_port,
    run_as,
    server_account,
)
from devtools.waiting import NeverCameTrue, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

#: What a command may answer; an error is raised instead.
Answer = str | int | None | list["Answer"]

#: Where Debian asks whether a package may start its service.
POLICY = Path("/usr/sbin/policy-rc.d")


class RedisError(Exception):
    """Redis refused a command; the message is its own."""


# ── Finding and installing ──


def find_redis() -> Path | None:
    """The program: $ROPEWAY_TEST_REDIS_SERVER, or on the PATH. None if missing."""
    if asked := os.environ.get("ROPEWAY_TEST_REDIS_SERVER"):
        if not os.access(asked, os.X_OK):
            raise NotAvailable(f"ROPEWAY_TEST_REDIS_SERVER: {asked} is not a program")
        return Path(asked)
    found = shutil.which("redis-server")
    return Path(found) if found else None


def install_redis() -> Path:
    """Install Debian's redis-server by apt and return the program; NotAvailable when that cannot be done.

    The package would also start a Redis on port 6379, now and at every boot. It is kept from both.
    """
    sudo = as_root()
    with _no_services_started(sudo):
        apt_install("redis-server")
    if systemctl := shutil.which("systemctl"):
        subprocess.run([*sudo, systemctl, "disable", "redis-server"], check=False, capture_output=True)
    program = find_redis()
    if program is None:
        raise NotAvailable("redis-server was installed but its program was not found")
    return program


@contextmanager
def _no_services_started(sudo: list[str]) -> Iterator[None]:
    """A policy that forbids starts, while the installation lasts; a policy that is there is left alone."""
    if POLICY.exists():
        yield
        return
    with tempfile.NamedTemporaryFile("w") as text:
        text.write("#!/bin/sh\nexit 101\n")
        text.flush()
        subprocess.run([*sudo, "install", "-m", "755", text.name, str(POLICY)], check=True)
    try:
        yield
    finally:
        subprocess.run([*sudo, "rm", "-f", str(POLICY)], check=False)


# ── The server ──


class PrivateRedis:
    """One redis-server process with a folder of its own, on a free port of 127.0.0.1, open to this machine.

    Every write goes to an append-only file that is synced once a second, the setting that Redis recommends
    to those who want to keep their data. There are no snapshots beside it: they would only be in the way.

    settings      more of redis.conf, `{"maxmemory": "100mb"}`; they win over what is set here.
    stop/start    `stop` keeps data and port, `start` starts again.
    kill          a signal to the server; after SIGKILL it waits until the process is gone.
    close         the end: server and folder are removed. So does leaving the `with` block.
    """

    def __init__(
        self,
        *,
        program: Path | None = None,
        settings: Mapping[str, object] | None = None,
        start_seconds: float = 20.0,
    ) -> None:
        self.program = program or find_redis() or install_redis()
        self._start_seconds = start_seconds
        self.settings: dict[str, object] = {
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            **(settings or {}),
        }
        self._port = 0
        self._pid: int | None = None
        account = server_account(("redis", "nobody"))
        # What is closed for good is deleted, so it need not be written out first.
        self._home = Household("ropeway-redis-", account=account, stop_signal=signal.SIGKILL)
        self.log_file = self.folder / "log"
        try:
            self.version = _version_in(run_as(account, [self.program, "--version"]))
            self._start_on_a_free_port()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PrivateRedis:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def folder(self) -> Path:
        """Holds the append-only file and the server's `log`."""
        return self._home.folder

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return self.url_for(0)

    def url_for(self, database: int) -> str:
        """One of its numbered databases."""
        return f"redis://127.0.0.1:{self._port}/{database}"

    @property
    def pid(self) -> int | None:
        """The server, or None while it is stopped."""
        return self._pid if self.running else None

    @property
    def running(self) -> bool:
        return self._pid is not None and not self._home.closed and self._home.exit_code(self._pid) is None

    def log(self) -> str:
        """What the server wrote so far."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def command(self, *words: str | int) -> Answer:
        """Send one command on a connection of its own; its answer. RedisError when Redis refuses it."""
        with socket.create_connection(("127.0.0.1", self._port), timeout=10) as line, line.makefile("rwb") as file:
            parts = [str(word).encode() for word in words]
            file.write(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts))
            file.flush()
            return _read_answer(file)  # type: ignore[arg-type]

    def info(self) -> dict[str, str]:
        """What INFO tells, by name: `used_memory`, `aof_current_size`, …"""
        lines = str(self.command("INFO", "everything")).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))

    def start(self) -> None:
        """Start on the same data and port; ServerFailed with the log when it does not come up."""
        if self.running:
            return
        options = {**self.settings, "port": self._port, "bind": "127.0.0.1", "dir": self.folder}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self._pid = self._home.start([self.program, *words], log=self.log_file)
        try:
            wait_until(lambda: not self.running or self._answers(), within=self._start_seconds)
        except NeverCameTrue as error:
            raise self._failure(f"was not ready within {self._start_seconds:g} s") from error
        if not self.running:
            raise self._failure("did not start")

    def stop(self) -> None:
        """Stop the server and keep its data; `close` is the one that removes it."""
        self._end(signal.SIGTERM)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the server. After SIGKILL, return when it is gone."""
        if number == signal.SIGKILL:
            self._end(number)
        elif self._pid is not None:
            self._home.signal(self._pid, number)

    def close(self) -> None:
        """Stop the server and remove everything. May be called twice."""
        self._home.close()

    def _end(self, number: signal.Signals) -> None:
        if self._pid is not None:
            self._home.signal(self._pid, number)
            wait_until(lambda: not self._home.processes(), what="redis-server is gone")
            self._pid = None

    def _answers(self) -> bool:
        with suppress(OSError, RedisError):  # RedisError: it still loads its data
            return self.command("PING") == "PONG" and self.info().get("process_id") == str(self._pid)
        return False

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
        raise ServerFailed("five free ports in a row were taken by others before redis-server could listen")

    def _failure(self, what: str) -> ServerFailed:
        log = "\n".join(self.log().splitlines()[-40:]) or "(empty)"
        return ServerFailed(f"{self.program} {what}. Its log:\n{log}")


def _version_in(said: str) -> str:
    found = re.search(r"v=(\d+\.\d+\.\d+)", said)
    if found is None:
        raise NotAvailable(f"redis-server --version answered {said[:100]!r}")
    return found[1]


def _read_answer(file: BinaryIO) -> Answer:
    """One reply of the protocol: a line whose first character tells what follows."""
    line = file.readline().rstrip(b"\r\n")
    kind, rest = line[:1], line[1:]
    match kind:
        case b"+":
            return rest.decode()
        case b"-":
            raise RedisError(rest.decode())
        case b":":
            return int(rest)
        case b"$" if rest == b"-1":
            return None
        case b"$":
            return file.read(int(rest) + 2)[:-2].decode()
        case b"*":
            return [_read_answer(file) for _ in range(max(0, int(rest)))]
        case _:
            raise ConnectionError(f"redis-server answered {line!r}")
