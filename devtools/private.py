"""What every private server here shares: user, folder, port, guard, and how it is installed."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence


class NotAvailable(Exception):
    """A service cannot be had on this machine; the message says why and what would help."""


class ServerFailed(RuntimeError):
    """A private server did not start or died; the message ends with its log."""


@dataclass(frozen=True)
class Account:
    """The user a server runs as."""

    name: str
    uid: int
    gid: int


def server_account(preferred: Sequence[str] = ("postgres", "nobody")) -> Account | None:
    """The user to run servers as, or None for "as we are".

    PostgreSQL and PgBouncer refuse to run as root, so root lends them an account that owns nothing of value.
    """
    if os.geteuid() != 0:
        return None
    for name in preferred:
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return Account(name, entry.pw_uid, entry.pw_gid)
    raise NotAvailable(f"root cannot run this server and none of the users {', '.join(preferred)} exists")


def run_as(account: Account | None, argv: Sequence[str | Path]) -> str:
    """Standard output of a short command run as that user. OSError or SubprocessError when it fails."""
    ids: dict[str, Any] = {}
    if account is not None:
        ids = {"user": account.uid, "group": account.gid, "extra_groups": []}
    done = subprocess.run(
        [str(part) for part in argv],
        capture_output=True, text=True, check=True, cwd="/", timeout=30, stdin=subprocess.DEVNULL, **ids,
    )  # fmt: skip
    return str(done.stdout)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody held a moment ago; whoever uses it must be ready to try another."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def apt_install(*packages: str) -> None:
    """Install Debian packages, saying so; NotAvailable with the reason when that cannot be done."""
    apt = shutil.which("apt-get")
    if apt is None:
        raise NotAvailable(f"{', '.join(packages)} is missing and this machine has no apt-get")
    prefix = as_root()
    say(f"installing {', '.join(packages)} with apt-get")
    # Another apt may be at work (a fresh machine upgrades itself): wait for it instead of failing.
    command = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", apt, "-q", "-o", "DPkg::Lock::Timeout=300"]
    said = ""
    # A failed update is not the end: the package may be in the lists already.
    for arguments in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        done = subprocess.run(
            [*command, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        said += done.stdout + done.stderr
    if done.returncode != 0:
        tail = "\n".join(said.splitlines()[-8:])
        raise NotAvailable(f"apt-get could not install {', '.join(packages)}:\n{tail}")


def as_root() -> list[str]:
    """What to put before a command that needs root: nothing, or sudo that asks no questions."""
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if sudo is None or subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode != 0:
        raise NotAvailable("installing needs root or a sudo that asks for no password")
    return [sudo, "-n"]


def say(line: str) -> None:
    """Tell the person at the terminal what takes time. Standard error: standard output may be data."""
    print(f"[ropeway] {line}", file=sys.stderr, flush=True)


class Household:
    """A temporary folder and the processes living in it, owned by a guard process (see guard.py).

    `close` stops and deletes everything. So does the end of this process, of any kind: the guard notices that
    its pipe closed. A forked copy of this process does not keep the pipe open.
    """

    def __init__(self, prefix: str, *, account: Account | None, stop_signal: signal.Signals) -> None:
        self.account = account
        ids = [] if account is None else [str(account.uid), str(account.gid)]
        guard = Path(__file__).with_name("guard.py")
        self._guard = subprocess.Popen(
            # -I -S: neither the caller's environment nor its packages have a say in whether the guard works.
            [sys.executable, "-I", "-S", str(guard), prefix, str(int(stop_signal)), *ids],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd="/",
        )
        self._lock = threading.Lock()
        self._owner = os.getpid()
        _households.add(self)
        self.folder = Path(self._read()["folder"])

    def run(self, argv: Sequence[str | Path], *, log: Path) -> int:
        """Run a command to its end inside the folder and return its exit code."""
        return int(self._ask(op="run", argv=[str(part) for part in argv], log=str(log))["code"])

    def start(self, argv: Sequence[str | Path], *, log: Path, env: dict[str, str] | None = None) -> int:
        """Start a server and return its pid."""
        return int(self._ask(op="start", argv=[str(part) for part in argv], log=str(log), env=env)["pid"])

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to a server started here; nothing happens when it has ended."""
        self._ask(op="signal", pid=pid, signal=int(number))

    def exit_code(self, pid: int) -> int | None:
        """How that server ended, or None while it runs."""
        code = self._ask(op="poll", pid=pid)["code"]
        return None if code is None else int(code)

    def processes(self) -> list[int]:
        """Direct children of the guard that live: the servers, and orphans of servers that were killed."""
        return list(self._ask(op="children")["pids"])

    @property
    def closed(self) -> bool:
        return self._guard.stdin is None or self._guard.stdin.closed

    def close(self) -> None:
        """Stop every process, delete the folder, return when both are done. May be called twice."""
        if self.closed or os.getpid() != self._owner:
            return
        with self._lock:
            _close_quietly(self._guard.stdin)
            # The guard kills what does not stop within its patience, so this wait is bounded.
            self._guard.wait()
            _close_quietly(self._guard.stdout)

    def _ask(self, **request: Any) -> dict[str, Any]:
        with self._lock:
            if self.closed or self._guard.stdin is None:
                raise ServerFailed("this server was closed")
            try:
                self._guard.stdin.write(json.dumps(request) + "\n")
                self._guard.stdin.flush()
            except BrokenPipeError as error:
                raise ServerFailed("the guard process of this server is gone") from error
            return self._read()

    def _read(self) -> dict[str, Any]:
        line = self._guard.stdout.readline() if self._guard.stdout else ""
        if not line:
            raise ServerFailed("the guard process of this server is gone")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ServerFailed(answer["error"])
        return answer

    def let_go(self) -> None:
        """In a forked child: drop the copy of the pipe, or the guard would wait for the child as well."""
        _close_quietly(self._guard.stdin)
        _close_quietly(self._guard.stdout)
        self._guard.returncode = 0  # not this process's child: nothing to wait for, nothing to warn about


_households: weakref.WeakSet[Household] = weakref.WeakSet()


def _let_go_of_all() -> None:
    for household in list(_households):
        household.let_go()


os.register_at_fork(after_in_child=_let_go_of_all)


def _close_quietly(stream: Any) -> None:
    if stream is not None:
        with contextlib.suppress(OSError):
            stream.close()
