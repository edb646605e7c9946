"""Runs servers on behalf of another process and cleans up when that process is gone, however it went.

Started by `private.py` as `python guard.py PREFIX STOP_SIGNAL [UID GID]`, in a session of its own so that
Ctrl-C in a terminal does not reach it. It makes the folder, starts every process that is to live in it and
obeys one JSON line at a time on stdin, one JSON answer each. When stdin closes (its owner closed it, was
interrupted or was killed with kill -9: the kernel closes the pipe in every case) it stops what it started and
deletes the folder.

Why a process of its own, and not PR_SET_PDEATHSIG on the server: that signal is forgotten when the user id
changes (PostgreSQL may not run as root), it follows the starting *thread*, and nobody would delete the
folder. Why the guard starts the server, and not its owner: otherwise an owner killed between fork and the
first look at the pid would leave a server nobody knows.

    {"op": "run", "argv": [...], "log": path}    → {"code": 0}     run to the end
    {"op": "start", "argv": [...], "log": path}  → {"pid": 123}    leave running
    {"op": "signal", "pid": 123, "signal": 9}    → {}
    {"op": "poll", "pid": 123}                   → {"code": null | int}
    {"op": "children"}                           → {"pids": [...]}  everything started here that still lives

Standard library only, and importable by nobody: it must start fast and in any interpreter.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PR_SET_CHILD_SUBREAPER = 36

#: How long a server may take to obey its stop signal before it is killed.
PATIENCE_SECONDS = 10.0


class Guard:
    def __init__(self, prefix: str, stop_signal: int, uid: int | None, gid: int | None) -> None:
        self.stop_signal = stop_signal
        self.uid = uid
        self.gid = gid
        self.codes: dict[int, int] = {}
        self.started: set[int] = set()
        self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir=self._base_folder()))
        if uid is not None and gid is not None:
            os.chown(self.folder, uid, gid)

    def _base_folder(self) -> str:
        """A temporary folder that the server's user can reach: root's own TMPDIR often is not one."""
        if self.uid is None:
            return tempfile.gettempdir()
        for base in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
            reachable = subprocess.run(
                ["/bin/sh", "-c", 'cd "$0"', base],
                user=self.uid, group=self.gid, extra_groups=[], stderr=subprocess.DEVNULL, check=False,
            )  # fmt: skip
            if reachable.returncode == 0:
                return base
        raise SystemExit(f"no temporary folder is reachable for user id {self.uid}")

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["op"]:
            case "run":
                process = self._spawn(request)
                return {"code": process.wait()}
            case "start":
                process = self._spawn(request)
                self.started.add(process.pid)
                # From here on reap() collects it; Popen must not complain that it was never waited for.
                process.returncode = 0
                return {"pid": process.pid}
            case "signal":
                self.reap()
                # A pid that was reaped may already belong to a stranger.
                if request["pid"] not in self.codes:
                    os.kill(request["pid"], request["signal"])
                return {}
            case "poll":
                self.reap()
                return {"code": self.codes.get(request["pid"])}
            case "children":
                self.reap()
                return {"pids": self.children()}
            case unknown:
                raise ValueError(f"unknown op {unknown!r}")

    def _spawn(self, request: dict[str, Any]) -> subprocess.Popen[bytes]:
        with Path(request["log"]).open("ab") as log:
            return subprocess.Popen(
                request["argv"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=request.get("env"),
                start_new_session=True,
                user=self.uid,
                group=self.gid,
                extra_groups=None if self.uid is None else [],
            )

    def reap(self) -> bool:
        """Collect every child that ended; True when none is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            self.codes[pid] = os.waitstatus_to_exitcode(status)

    def children(self) -> list[int]:
        """Living processes whose parent is this one; a subreaper inherits the orphans of what it started."""
        me = str(os.getpid())
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                # "pid (name) state ppid ...": the name may hold spaces and brackets, the rest cannot.
                state, ppid = stat.read_text().rpartition(")")[2].split()[:2]
                if ppid == me and state != "Z":
                    found.append(int(stat.parent.name))
        return found

    def clean_up(self) -> None:
        self._signal(self.started - self.codes.keys(), self.stop_signal)
        if not self._all_gone_within(PATIENCE_SECONDS):
            # Children first appear here when their parent dies, so look again until none is left.
            deadline = time.monotonic() + PATIENCE_SECONDS
            while time.monotonic() < deadline:
                self._signal(self.children(), signal.SIGKILL)
                if self._all_gone_within(0.1):
                    break
        self._free_shared_memory()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.folder.exists():
            sys.stderr.write(f"could not remove {self.folder}\n")

    def _all_gone_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self.reap():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def _signal(self, pids: Any, number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _free_shared_memory(self) -> None:
        """A PostgreSQL killed with kill -9 leaves a small System V segment, named in its lock file."""
        for lock_file in self.folder.glob("*/postmaster.pid"):
            with contextlib.suppress(OSError, IndexError, ValueError):
                segment = int(lock_file.read_text().splitlines()[6].split()[1])
                ctypes.CDLL(None).shmctl(segment, 0, None)  # IPC_RMID


def main() -> None:
    prefix, stop_signal, *account = sys.argv[1:]
    uid, gid = (int(account[0]), int(account[1])) if account else (None, None)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    with contextlib.suppress(AttributeError, OSError):  # Linux only; elsewhere orphans go to init as ever
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    guard = Guard(prefix, int(stop_signal), uid, gid)
    try:
        reply({"folder": str(guard.folder), "pid": os.getpid()})
        # readline, not iteration: a read-ahead buffer would sit on a request.
        while line := sys.stdin.readline():
            try:
                reply(guard.answer(json.loads(line)))
            except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
                reply({"error": f"{type(error).__name__}: {error}"})
    except BrokenPipeError:
        pass  # the owner is gone; that is the signal to clean up
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        guard.clean_up()
        # A reader that is gone must not turn the interpreter's last flush into a traceback.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def reply(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
